"""Measure a student on held-out packs: LM tax, agreement and copying, against the teacher on the same ids.

Packs of 4 and of 12 chunks, short ones where the length does not hold 12 full ones; each is asked for planted facts and
a chain, in phrasings that are never trained on, for a sentence and for a passage. LM tax: exp of the difference in mean
negative log-likelihood over the pack's tokens. Agreement: share of the pack's positions with the same first choice.
Copied: share of the parts for facts and chains in which every token of the answer is the first choice after those
before it. Recited: share of the tokens of sentences and passages that are. The teacher runs once a process.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from comem_cli.model.distill_data import Sampler
from comem_cli.model.distill_lesson import Lesson
from comem_cli.model.distill_pack import Pack, Parts
from comem_cli.model.distill_sample import LEAST_CHUNK, PLANTED, Recipe

SEED_SHIFT = 1 << 32  # held-out samples never share a number with a training sample
CHUNKS = (4, 12)  # of the packs that are measured on


@dataclass(frozen=True)
class Scores:
    """Hold sums over one pack: positions, -log p in nats, first choices; what is copied; tokens recited, of how many.

    copied: for each part that asks for planted values, its kind and whether all of the answer is copied.
    """

    positions: int
    nll: float
    best: torch.Tensor
    copied: tuple[tuple[str, bool], ...] = ()
    recited: int = 0
    to_recite: int = 0


class HeldOut:
    """Hold held-out samples and what the teacher makes of them."""

    def __init__(self, lesson: Lesson, sampler: Sampler, recipe: Recipe, packs: int) -> None:
        """Draw `packs` samples for each number of chunks; the teacher reads them at the first measurement."""
        self._lesson = lesson
        seed = lesson.options.seed
        fit = sorted({min(count, recipe.max_chunks, max(1, recipe.room // LEAST_CHUNK)) for count in CHUNKS})
        self._counts = [count for count in fit for _ in range(packs)]
        numbers = [SEED_SHIFT + at for _ in fit for at in range(packs)]
        pairs = zip(numbers, self._counts, strict=True)
        self._samples = [(number, sampler.sample(seed, number, count)) for number, count in pairs]
        self._teacher: list[tuple[list[Parts], Scores]] = []

    def measure(self) -> dict[str, Any]:
        """Return what `compare` finds over all packs, and as "packs" the same by their (highest) number of chunks."""
        ours, theirs = [], []
        for at, (number, sample) in enumerate(self._samples):
            packs = self._lesson.packs([(number, sample)], every=True)
            if at == len(self._teacher):
                seen, parts, said = self._lesson.taught(packs)
                self._teacher.append((parts, score(packs[0], parts[0], seen, said)))
            parts, scores = self._teacher[at]
            ours.append(score(packs[0], parts[0], *self._lesson.read(packs, parts)))
            theirs.append(scores)
        split = {}
        for count in sorted(set(self._counts)):
            own = [at for at, asked in enumerate(self._counts) if asked == count]
            split[str(count)] = compare([ours[at] for at in own], [theirs[at] for at in own])
        return {**compare(ours, theirs), "packs": split}


@torch.no_grad()
def score(pack: Pack, parts: Parts, seen: torch.Tensor, said: torch.Tensor) -> Scores:
    """Score one pack: logits `seen` at its weighted places, `said` at all places of its parts."""
    places = (pack.weights > 0).nonzero()[:, 0].to(seen.device)
    inner = places < len(pack.ids) - 1  # what follows the last token depends on the part
    next_ids = pack.ids[places[inner] + 1]
    nll = 0.0
    for part, wanted in zip(torch.split(seen[inner], 256), torch.split(next_ids, 256), strict=True):
        nll += float(torch.nn.functional.cross_entropy(part.float(), wanted, reduction="sum"))
    copied: list[tuple[str, bool]] = []
    recited = to_recite = start = 0
    best = said.argmax(-1).tolist()
    for one in parts.parts:
        right = [
            best[start + at - 1] == one.ids[at] for first, last in one.answers for at in range(max(first, 1), last)
        ]
        start += len(one.ids)
        if one.kind in PLANTED and right:
            copied.append((one.kind, all(right)))
        elif one.kind not in PLANTED:
            recited, to_recite = recited + sum(right), to_recite + len(right)
    return Scores(int(inner.sum()), nll, seen[inner].argmax(-1).cpu(), tuple(copied), recited, to_recite)


def compare(ours: Sequence[Scores], theirs: Sequence[Scores]) -> dict[str, Any]:
    """Compare a reader with the teacher over the same packs."""
    positions = sum(one.positions for one in ours)
    nll = sum(a.nll - b.nll for a, b in zip(ours, theirs, strict=True))
    agreed = sum(int((a.best == b.best).sum()) for a, b in zip(ours, theirs, strict=True))
    found: dict[str, Any] = {
        "positions": positions, "lm_tax": math.exp(nll / positions), "agreement": agreed / positions
    }  # fmt: skip
    for kind, name in zip(PLANTED, ("facts", "chains"), strict=True):
        pairs = [(_of(kind, a), _of(kind, b)) for a, b in zip(ours, theirs, strict=True)]
        if count := sum(len(a) for a, _ in pairs):
            found[name] = count
            found[f"{name}_copied"] = sum(sum(a) for a, _ in pairs) / count
            found[f"{name}_copied_by_teacher"] = sum(sum(b) for _, b in pairs) / count
    if tokens := sum(one.to_recite for one in ours):
        found["recited"] = sum(one.recited for one in ours) / tokens
        found["recited_by_teacher"] = sum(one.recited for one in theirs) / tokens
    return found


def _of(kind: str, scores: Scores) -> list[bool]:
    return [right for mine, right in scores.copied if mine == kind]
