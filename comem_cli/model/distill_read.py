"""Read packs, and then several query parts of each as if every one stood alone after its pack.

Serving computes [BOS; pack; one query part]. Here the pack is read once, causally, and its keys and values are kept;
the parts of a pack follow in a second forward with a mask: a part sees the pack and its own tokens before, and its
positions go on after the pack as if there were no other part. So the logits of a part are those of a forward of its
own, and gradients flow through the kept keys. Sliding layers count their window in positions, which are those of
serving. Two forwards instead of one masked one: a causal mask lets the attention kernel skip half of the pack.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers import DynamicCache

from comem_cli.errors import ModelError
from comem_cli.model.families import ATTENTION, require_movable
from comem_cli.model.split import SplitModel

_FULL, _SLIDING = "full_attention", "sliding_attention"  # layer types as Transformers names them


@dataclass(frozen=True)
class PackState:
    """Hold the keys and values of b packs, padded to the right, and the tokens of each."""

    cache: DynamicCache
    lengths: tuple[int, ...]


def read_packs(
    split: SplitModel, rows: Sequence[torch.Tensor], keep: Sequence[torch.Tensor]
) -> tuple[torch.Tensor, PackState]:
    """Run packs through the upper half: rows, each (P, d), and places to keep, each (P,) bool.

    Returns logits (n, vocab) at the kept places, pack by pack, and what the parts need. Raises: ModelError where the
    parts could not be placed: layers without attention, positions that are not rotary.
    """
    _require_placeable(split.model.config)
    cache = (
        DynamicCache()
    )  # not the model's own kind: a sliding layer would forget what a window by position still sees
    logits = split.upper(batch(rows), cache, keep=batch(keep).to(split.device))
    return logits, PackState(cache, tuple(len(one) for one in rows))


def read_parts(
    split: SplitModel,
    state: PackState,
    rows: Sequence[torch.Tensor],
    parts: Sequence[Sequence[int]],
    keep: Sequence[torch.Tensor],
) -> torch.Tensor:
    """Run the query parts of each pack, one after another in `rows`, each (Q, d); `parts`: tokens of each part.

    Returns logits (n, vocab) at the kept places, pack by pack. The state is used up.
    """
    positions, mask = place_parts(state.lengths, parts, split.model.config)
    if isinstance(mask, dict):
        mask = {name: one.to(split.device) for name, one in mask.items()}
    else:
        mask = mask.to(split.device)
    return split.upper(
        batch(rows), state.cache, positions=positions.to(split.device), mask=mask, keep=batch(keep).to(split.device)
    )


def place_parts(
    packs: Sequence[int], parts: Sequence[Sequence[int]], config: Any
) -> tuple[torch.Tensor, torch.Tensor | dict[str, torch.Tensor]]:
    """Place query parts after packs, both in tokens: -> positions (b, q) int64 and mask (b, 1, q, p + q) bool.

    The mask is a dict by layer type where a model mixes sliding and full layers, as Transformers takes it.
    Raises: ModelError for layers of another kind.
    """
    longest, q = max(packs), max(sum(lengths) for lengths in parts)
    positions = torch.zeros(len(packs), q, dtype=torch.int64)
    allowed = torch.zeros(len(packs), q, longest + q, dtype=torch.bool)
    distance = torch.zeros(len(packs), q, longest + q, dtype=torch.int64)
    for row, (pack, lengths) in enumerate(zip(packs, parts, strict=True)):
        own = [number for number, length in enumerate(lengths) for _ in range(length)]
        own += [-1] * (q - len(own))  # padding: a part that nobody reads
        part = torch.tensor(own)
        at = torch.arange(q)
        first = torch.tensor([own.index(number) for number in own])
        positions[row] = pack + at - first
        allowed[row, :, :pack] = True
        allowed[row, :, longest:] = (part[:, None] == part[None, :]) & (at[:, None] >= at[None, :])
        keys = torch.cat([torch.arange(longest), positions[row]])
        distance[row] = positions[row][:, None] - keys[None, :]
    full = allowed[:, None]
    _require_placeable(config)
    types = set(getattr(config, "layer_types", None) or ())
    window = getattr(config, "sliding_window", None)
    if types == {_FULL} or window is None:
        return positions, full
    near = full & (distance[:, None] < window)
    return positions, {_FULL: full, _SLIDING: near} if types else near


def _require_placeable(config: Any) -> None:
    """Refuse models in whose layers query parts cannot stand beside each other."""
    require_movable(config, "distillation")
    other = sorted(set(getattr(config, "layer_types", None) or ()) - ATTENTION)
    if other:
        raise ModelError(f"distillation does not work with '{other[0]}' layers", "comem models list")


@torch.no_grad()
def say(split: SplitModel, state: PackState, row: int, prompt: Sequence[int], count: int) -> list[int]:
    """Go on greedily after one pack and a prompt: -> `count` ids. The state is left as it was."""
    cache, length = DynamicCache(), state.lengths[row]
    layers: list[Any] = state.cache.layers
    for number, layer in enumerate(layers):
        cache.update(layer.keys[row : row + 1, :, :length], layer.values[row : row + 1, :, :length], number)
    ids: list[int] = []
    given = list(prompt)
    while len(ids) < count:
        rows = split.lower(torch.tensor([given], device=split.device))
        ids.append(int(split.upper(rows, cache)[0, -1].argmax()))
        given = ids[-1:]
    return ids


def batch(parts: Sequence[torch.Tensor]) -> torch.Tensor:
    """Stack tensors of several lengths, zeros to the right, where causal attention never looks: -> (b, T, ...)."""
    return torch.nn.utils.rnn.pad_sequence(list(parts), batch_first=True)
