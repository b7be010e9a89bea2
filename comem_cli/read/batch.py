"""Decode several answers at once: packs are read one by one, then each step runs one token of every answer.

A step reads every weight once, however many answers it serves; that is what a batch saves. The caches of the packs are
joined: shorter ones are padded on the left, and a mask hides the padding. An answer that ends leaves the batch. In
exact arithmetic every answer is the one that it would be alone; kernels round differently for another number of rows,
so in 16 bit two continuations that are all but equally likely can change places.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer

from comem_cli.model.families import FAMILIES
from comem_cli.read.cache import ReservedLayer
from comem_cli.read.generate import Clock, Generation, Lane, Reader, Sampling, Started


@torch.inference_mode()
def decode_together(reader: Reader, lanes: Sequence[Lane], sampling: Sampling) -> list[Generation]:
    """Decode the answers of `lanes` to their ends; `decode` of each is the wall time until its own.

    The lanes' caches must be such that `can_join`.
    """
    clock, passed = Clock(reader.split.device), 0.0
    going = [lane for lane in lanes if lane.take(lane.started.token, sampling)]
    step = _Step(reader, [lane.started for lane in going], sampling.max_new_tokens) if going else None
    while step is not None and going:
        logits = step.run([lane.ids[-1] for lane in going])
        tokens = [lane.started.draw(row) for lane, row in zip(going, logits[:, None], strict=True)]
        passed += clock.lap()
        stays = [lane.take(token, sampling) for lane, token in zip(going, tokens, strict=True)]
        for lane in going:
            lane.decode_ms = passed
        if not all(stays):
            step.keep([number for number, stay in enumerate(stays) if stay])
            going = [lane for lane, stay in zip(going, stays, strict=True) if stay]
    return [lane.done() for lane in lanes]


class _Step:
    """Hold the joined caches, and run one token of each answer."""

    def __init__(self, reader: Reader, started: Sequence[Started], room: int) -> None:
        self._reader = reader
        self._lower, self._upper = (_Half([one.caches[half] for one in started], room) for half in (0, 1))
        self._places = torch.tensor([one.places for one in started], device=reader.split.device)  # (b, 2)

    def run(self, ids: Sequence[int]) -> torch.Tensor:
        """Run the ids (b,) -> logits (b, 1, vocab)."""
        split = self._reader.split
        batch = torch.tensor([[token] for token in ids], device=split.device)
        lower, upper = self._lower, self._upper
        h = split.lower(batch, lower.cache, positions=self._places[:, :1], mask=lower.grown())
        logits = split.upper(h, upper.cache, positions=self._places[:, 1:], mask=upper.grown())
        self._places = self._places + 1
        return logits

    def keep(self, numbers: Sequence[int]) -> None:
        """Go on with these answers alone."""
        chosen = torch.tensor(numbers, dtype=torch.int64, device=self._places.device)
        self._places = self._places[chosen]
        self._lower.keep(chosen)
        self._upper.keep(chosen)


class _Half:
    """Hold the joined cache of one half and the mask (b, t) of its padding, None where there is none."""

    def __init__(self, caches: Sequence[DynamicCache], room: int) -> None:
        self.cache = join(caches, room)
        lengths = [cache.get_seq_length() for cache in caches]
        self._mask: torch.Tensor | None = None
        if len(set(lengths)) > 1:
            longest = max(lengths)
            rows = [[0] * (longest - n) + [1] * n for n in lengths]
            self._mask = torch.tensor(rows, device=_first_keys(caches[0]).device)

    def grown(self) -> torch.Tensor | None:
        """Return the mask with a place for the token that comes, and keep it so."""
        if self._mask is not None:
            self._mask = torch.nn.functional.pad(self._mask, (0, 1), value=1)
        return self._mask

    def keep(self, chosen: torch.Tensor) -> None:
        """Go on with these answers alone."""
        self.cache.batch_select_indices(chosen)
        if self._mask is not None:
            self._mask = self._mask[chosen]


def can_join(reader: Reader, started: Sequence[Started]) -> bool:
    """Tell whether answers can be decoded together.

    Their caches must hold keys and values, in full or sliding layers, and their layers must take positions and masks.
    """
    family = FAMILIES.get(reader.split.model.config.model_type)
    if len(started) < 2 or family is None or family.fixed:
        return False
    return all(isinstance(layer, DynamicLayer) for one in started for cache in one.caches for layer in cache.layers)


def join(caches: Sequence[DynamicCache], room: int) -> DynamicCache:
    """Join caches of one sequence each into one of all, padded on the left to the longest, with room to grow."""
    joined = copy.copy(caches[0])
    joined.layers = [_join_layers([cache.layers[i] for cache in caches], room) for i in range(len(joined.layers))]
    return joined


def _join_layers(layers: Sequence[Any], room: int) -> Any:
    longest = max(layer.keys.shape[-2] for layer in layers)
    keys, values = (
        torch.cat([_padded(getattr(layer, name), longest) for layer in layers]) for name in ("keys", "values")
    )
    if not isinstance(layers[0], DynamicSlidingWindowLayer):
        full = ReservedLayer(longest + room)
        full.update(keys, values)
        return full
    sliding = copy.copy(layers[0])
    sliding.keys, sliding.values = keys, values
    sliding.cumulative_length = max(layer.cumulative_length for layer in layers)
    return sliding


def _padded(states: torch.Tensor, length: int) -> torch.Tensor:
    """Pad (1, heads, t, d) on the left to `length`."""
    return torch.nn.functional.pad(states, (0, 0, length - states.shape[-2], 0))


def _first_keys(cache: DynamicCache) -> torch.Tensor:
    held: list[Any] = list(cache.layers)
    keys: torch.Tensor = held[0].keys
    return keys
