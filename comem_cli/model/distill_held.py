"""Measure a student on held-out packs: LM tax, agreement and copying, against the teacher on the same ids.

LM tax: exp of the difference in mean negative log-likelihood over the pack's tokens. Agreement: share of the pack's
positions with the same first choice. Copied: share of planted facts, in phrasings that are never trained on, whose
value is the first choice at each of its tokens, which is what greedy decoding writes. The teacher runs once a process.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from comem_cli.model.distill_data import Sampler
from comem_cli.model.distill_lesson import Lesson
from comem_cli.model.distill_pack import Pack
from comem_cli.model.distill_step import teacher_logits

SEED_SHIFT = 1 << 32  # held-out samples never share a number with a training sample


@dataclass(frozen=True)
class Scores:
    """Hold sums over one pack: positions, -log p in nats, and for a fact whether it is copied."""

    positions: int
    nll: float
    best: torch.Tensor
    copied: bool | None


class HeldOut:
    """Hold held-out samples and what the teacher makes of them."""

    def __init__(self, lesson: Lesson, sampler: Sampler, packs: int) -> None:
        """Draw `packs` samples; the teacher reads them at the first measurement."""
        self._lesson = lesson
        seed = lesson.options.seed
        self._samples = [(SEED_SHIFT + n, sampler.sample(seed, SEED_SHIFT + n)) for n in range(packs)]
        self._teacher: list[Scores] = []

    def measure(self) -> dict[str, float]:
        """Return lm_tax, agreement, and copied and copied_by_teacher where there are facts."""
        ours = []
        for number, sample in enumerate(self._samples):
            packs = self._lesson.maker.make([sample], all_positions=True)
            if number == len(self._teacher):
                self._teacher.append(score(packs[0], teacher_logits(self._lesson.teacher, packs)))
            ours.append(score(packs[0], self._lesson.logits(packs)))
        return compare(ours, self._teacher)


@torch.no_grad()
def score(pack: Pack, logits: torch.Tensor) -> Scores:
    """Score one pack: logits (n, vocab) at its weighted positions."""
    places = (pack.weights > 0).nonzero()[:, 0].to(logits.device)
    best = logits.argmax(-1)
    in_pack = places < pack.query - 1  # the query part is scored by copying alone
    next_ids = pack.ids.to(logits.device)[places[in_pack] + 1]
    nll = 0.0
    for part, wanted in zip(torch.split(logits[in_pack], 256), torch.split(next_ids, 256), strict=True):
        nll += float(torch.nn.functional.cross_entropy(part.float(), wanted, reduction="sum"))
    copied = None
    if pack.sample.kind == "fact":
        first, last = pack.answer
        said = best[(places >= first - 1) & (places < last - 1)]
        copied = bool((said == pack.ids.to(logits.device)[first:last]).all())
    return Scores(int(in_pack.sum()), nll, best[in_pack].cpu(), copied)


def compare(ours: Sequence[Scores], theirs: Sequence[Scores]) -> dict[str, float]:
    """Compare a reader with the teacher over the same packs."""
    positions = sum(one.positions for one in ours)
    nll = sum(a.nll - b.nll for a, b in zip(ours, theirs, strict=True))
    agreed = sum(int((a.best == b.best).sum()) for a, b in zip(ours, theirs, strict=True))
    found = {"positions": positions, "lm_tax": math.exp(nll / positions), "agreement": agreed / positions}
    facts = [(bool(a.copied), bool(b.copied)) for a, b in zip(ours, theirs, strict=True) if a.copied is not None]
    if facts:
        found |= {
            "facts": len(facts),
            "copied": sum(a for a, _ in facts) / len(facts),
            "copied_by_teacher": sum(b for _, b in facts) / len(facts),
        }
    return found
