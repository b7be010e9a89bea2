"""The settings of a distillation: what a run is, field by field, so that a resumed one is the same one.

Defaults follow the paper (Table 28): rank 32, alpha 64, sequences of 2,048 tokens, 8 a step. Loads neither torch nor
numpy.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from comem_cli.errors import FingerprintError, UsageError
from comem_cli.model.distill_sample import Recipe
from comem_cli.model.load import ModelIdentity
from comem_cli.model.modes import make_mode

MIX = "continue=1,recite=1.5,fact=8,sentence=1,question=0.1,chain=0.4"
KINDS = ("suffix", "write")
POOL = 64  # samples that are learned from again before the next ones come
KEPT = 256  # of the teacher's best tokens at a position, where its part is kept for later visits


@dataclass(frozen=True)
class DistillOptions:
    """Hold every setting that a run's weights depend on.

    split: j. overlap, chunk, length: tokens. steps, warmup, eval_every, checkpoint_every: optimiser steps. batch:
    samples a step, shared out among processes; micro: samples a forward. length: of the longest pack with one query
    part. parts: most query parts a pack; mix: weights by their kind. grow: samples over which packs grow to `length`.
    visits: times that each sample is learned from; the teacher's part and Write are computed in the first.
    top_k: 0 takes the KL over the whole vocabulary, k over the teacher's k best tokens and the rest as one. gold: share
    of the cross-entropy of the true token at answers that are copied from the pack; 0 is self-distillation alone.
    pack_loss: weight of the mean KL over up to `pack_positions` pack tokens beside that of the query parts;
    answer_weight: of answer positions among a query part's.
    """

    split: int
    kind: str = "suffix"
    mode: str = "chunk"
    overlap: int = 0
    chunk: int = 512
    steps: int = 1000
    batch: int = 8
    micro: int = 1
    length: int = 2048
    max_chunks: int = 12
    parts: int = 12
    grow: int = 0
    lr: float = 5e-4
    rank: int = 32
    alpha: int = 64
    warmup: int = 50
    weight_decay: float = 0.0
    clip: float = 1.0
    seed: int = 0
    visits: int = 1
    top_k: int = 0
    pack_loss: float = 1.0
    pack_positions: int = 256
    answer_weight: float = 10.0
    gold: float = 0.3
    mix: str = MIX
    eval_every: int = 100
    eval_packs: int = 6
    checkpoint_every: int = 50
    device: str = "auto"
    dtype: str = "auto"

    def checked(self, model: ModelIdentity) -> DistillOptions:
        """Return the options with the mode settled; raises UsageError (2) for a value out of range."""
        layers = model.n_layers
        least = 1 if self.kind == "write" else 0
        if self.kind not in KINDS:
            raise UsageError(f"unknown kind '{self.kind}'", f"pass --kind {' or '.join(KINDS)}")
        if not least <= self.split < layers:
            raise UsageError(f"split {self.split} is outside {least}..{layers - 1}", "pass --split 12")
        for name in (
            "steps",
            "batch",
            "micro",
            "rank",
            "alpha",
            "eval_every",
            "eval_packs",
            "checkpoint_every",
            "chunk",
            "parts",
            "visits",
        ):
            if getattr(self, name) < 1:
                raise UsageError(f"--{name.replace('_', '-')} {getattr(self, name)} is below 1", "comem distill --help")
        for name in (
            "warmup",
            "weight_decay",
            "top_k",
            "pack_loss",
            "pack_positions",
            "answer_weight",
            "overlap",
            "grow",
        ):
            if getattr(self, name) < 0:
                raise UsageError(f"--{name.replace('_', '-')} {getattr(self, name)} is below 0", "comem distill --help")
        if not 0 < self.lr < 1 or self.clip <= 0:
            raise UsageError(f"--lr {self.lr} or --clip {self.clip} is out of range", "pass --lr 5e-4 --clip 1")
        if not 0 <= self.gold <= 1:
            raise UsageError(f"--gold {self.gold} is outside 0..1", "pass --gold 0.3")
        if self.length > model.window:
            raise UsageError(f"--length {self.length} is above the window of {model.window}", "pass a smaller --length")
        mode = "overlap" if self.overlap and self.mode == "chunk" else self.mode
        make_mode(mode, self.overlap, model.window)
        self.recipe()
        return replace(self, mode=mode)

    def sample_at(self, place: int) -> int:
        """Return the number of the sample at a place of the run, from 0: `POOL` samples, `visits` times, the next."""
        block, at = divmod(place, POOL * self.visits)
        return block * POOL + at % POOL

    @property
    def outcomes(self) -> int:
        """Return how many of the teacher's best tokens the KL is taken over, 0 for all: all are too many to keep."""
        return self.top_k or (KEPT if self.visits > 1 else 0)

    def recipe(self, *, held: bool = False) -> Recipe:
        """Return what samples to draw; held: to measure on, in held-out phrasings."""
        mix = _parse(self.mix)
        grow = 0 if held else self.grow
        return Recipe(mix, self.chunk, self.length, self.max_chunks, self.parts, grow, held, self.batch)

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON values."""
        return asdict(self)


def require_same_run(found: Mapping[str, Any], wanted: Mapping[str, Any], where: object) -> None:
    """Refuse to go on with another run; raises FingerprintError (12) naming each field with both values."""
    names = sorted(found.keys() | wanted.keys())
    odd = [f"{name} {found.get(name)}, not {wanted.get(name)}" for name in names if found.get(name) != wanted.get(name)]
    if odd:
        raise FingerprintError(
            f"{where} holds a run with {'; '.join(odd)}",
            "give the options of that run to go on with it, or another --out",
        )


def _parse(mix: str) -> dict[str, float]:
    try:
        return {name.strip(): float(weight) for name, weight in (part.split("=") for part in mix.split(","))}
    except ValueError as error:
        raise UsageError(f"--mix '{mix}' is no list of kind=weight", f"pass --mix {MIX}") from error
