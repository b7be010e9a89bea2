"""KV caches of a Read: room that is set aside once, and the packs of the last questions.

Transformers' `DynamicCache` joins old and new keys into a new tensor for every token. Here each of its full-attention
layers has a buffer for the pack and the longest answer; what it hands out are views of it. Sliding layers, which keep a
window only, and layers of other kinds stay as they are.

`PackCache` keeps the upper half's keys and values of [BOS; chunks] for the packs used last, so that another question
over the same chunks in the same order pays for itself alone. Whoever uses one reads every pack in two steps, the chunks
and then the question, found or not: so an answer has the same bits either way.
"""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer


class ReservedLayer(DynamicLayer):  # type: ignore[no-untyped-call]  # Transformers' base carries no types
    """Hold keys and values, (b, heads, n, d) each, at the head of buffers with room for `capacity` positions.

    A layer that outgrows its room takes twice as much.
    """

    def __init__(self, capacity: int) -> None:
        """Set the room; the buffers are made at the first update."""
        super().__init__()  # type: ignore[no-untyped-call]
        self._capacity = capacity
        self._buffers: tuple[torch.Tensor, torch.Tensor] | None = None

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Append keys and values (b, heads, t, d) and return all there are."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        before = self.get_seq_length()
        now = before + key_states.shape[-2]
        if self._buffers is None or now > self._buffers[0].shape[-2]:
            self._capacity = max(self._capacity, now if self._buffers is None else 2 * now)
            grown = (self._room(key_states), self._room(value_states))
            for buffer, held in zip(grown, (self.keys, self.values), strict=True):
                if before and held is not None:
                    buffer[:, :, :before] = held
            self._buffers = grown
        keys, values = self._buffers
        keys[:, :, before:now] = key_states
        values[:, :, before:now] = value_states
        self.keys, self.values = keys[:, :, :now], values[:, :, :now]
        return self.keys, self.values

    def reset(self) -> None:
        """Drop everything."""
        self._buffers = None
        super().reset()

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Repeat each sequence; the buffers are made anew at the next update."""
        super().batch_repeat_interleave(repeats)
        self._buffers = None

    def batch_select_indices(self, indices: torch.Tensor) -> None:
        """Keep the sequences at `indices`; the buffers are made anew at the next update."""
        super().batch_select_indices(indices)
        self._buffers = None

    def fork(self, capacity: int) -> ReservedLayer:
        """Copy what is there into a layer with another room."""
        twin = ReservedLayer(capacity)
        if self.is_initialized and self.keys is not None and self.values is not None:
            twin.update(self.keys, self.values)
        return twin

    def _room(self, states: torch.Tensor) -> torch.Tensor:
        return states.new_empty((*states.shape[:-2], self._capacity, states.shape[-1]))


def reserve(cache: DynamicCache, positions: int) -> DynamicCache:
    """Give the empty full-attention layers of a cache room for so many positions; returns the cache."""
    cache.layers = [ReservedLayer(positions) if type(layer) is DynamicLayer else layer for layer in cache.layers]
    return cache


def fork(cache: DynamicCache, positions: int) -> DynamicCache:
    """Copy a cache, so that the original stays as it is; its full-attention layers get room for so many positions."""
    twin = copy.copy(cache)
    twin.layers = [
        layer.fork(positions) if isinstance(layer, ReservedLayer) else copy.deepcopy(layer) for layer in cache.layers
    ]
    return twin


@dataclass(frozen=True)
class Kept:
    """Hold a pack that was read: the upper half's cache of it, never changed, and its tokens."""

    cache: DynamicCache
    tokens: int

    @property
    def nbytes(self) -> int:
        """Count the bytes of keys, values and recurrent states."""
        return sum(tensor.nbytes for layer in self.cache.layers for tensor in _tensors(layer))


class PackCache:
    """Keep the packs used last, up to `limit` bytes of keys, values and recurrent states."""

    def __init__(self, limit: int) -> None:
        """Start empty; limit: bytes."""
        self.limit = limit
        self.size = 0
        self._packs: OrderedDict[Hashable, Kept] = OrderedDict()

    def get(self, key: Hashable) -> Kept | None:
        """Return a pack, or None."""
        if key not in self._packs:
            return None
        self._packs.move_to_end(key)
        return self._packs[key]

    def put(self, key: Hashable, kept: Kept) -> None:
        """Keep a pack, in place of those used longest ago; one above the limit is not kept."""
        if kept.nbytes > self.limit:
            return
        self._packs[key] = kept
        self.size += kept.nbytes
        while self.size > self.limit:
            self.size -= self._packs.popitem(last=False)[1].nbytes


def _tensors(layer: Any) -> Iterator[torch.Tensor]:
    """Yield what a cache layer of any kind holds; a reserved buffer counts as its used part."""
    for name, held in vars(layer).items():
        if isinstance(held, torch.Tensor):
            yield held
        elif isinstance(held, dict) and name != "_buffers":
            yield from (state for state in held.values() if isinstance(state, torch.Tensor))
