"""Where the loss is taken and what each position weighs: a pack's query parts weigh 1 together, its tokens `pack_loss`.

The weight at t is that of predicting token t + 1. Among the pack's tokens, half of the positions are drawn from the
beginnings of chunks, which suffer most from a missing left context.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from comem_cli.model.distill_sample import COPIED, QueryPart

BEGINNING = 32  # tokens of a chunk


@dataclass(frozen=True)
class Weighing:
    """Choose the weights: see DistillOptions; `answer`: of an answer's tokens among a part's."""

    seed: int
    pack: float
    positions: int
    answer: float

    def of_pack(self, number: int, bos: int, lengths: Sequence[int], *, every: bool) -> torch.Tensor:
        """Weigh the tokens of sample `number`: `bos` tokens, then chunks of `lengths`: -> (P,) fp32.

        every: all positions but the BOS alike, for measuring.
        """
        total = bos + sum(lengths)
        weights = torch.zeros(total)
        chosen = list(range(bos, total))
        if not every:
            rng = random.Random(f"{self.seed}/{number}/positions")
            first: list[int] = []
            at = bos
            for length in lengths:
                first += range(at, at + min(length, BEGINNING))
                at += length
            first = rng.sample(first, min(len(first), self.positions // 2))
            others = sorted(set(chosen).difference(first))
            chosen = first + rng.sample(others, min(len(others), self.positions - len(first)))
        if chosen and (every or self.pack):
            weights[chosen] = (self.pack or 1.0) / len(chosen)
        return weights

    def of_parts(self, parts: Sequence[QueryPart]) -> torch.Tensor:
        """Weigh the tokens of the parts, one after another: each part sums to 1 / their number: -> (Q,) fp32."""
        found = []
        for part in parts:
            weights = torch.ones(len(part.ids))
            for first, last in part.answers:
                weights[max(first - 1, 0) : last - 1] = self.answer
            found.append(weights / weights.sum().clamp(min=1e-9) / len(parts))
        return torch.cat(found)


def gold_places(parts: Sequence[QueryPart]) -> torch.Tensor:
    """Mark where the next token is known to be right, for what is copied from the pack: -> (Q,) bool."""
    places = torch.zeros(sum(len(part.ids) for part in parts), dtype=torch.bool)
    at = 0
    for part in parts:
        for first, last in part.answers if part.kind in COPIED else ():
            places[at + max(first - 1, 0) : at + last - 1] = True
        at += len(part.ids)
    return places
