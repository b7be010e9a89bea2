"""Turn samples into what both readers run on: residuals as Write stores them, ids, and where the loss is taken.

The student's pack is [BOS; chunk residuals], each query part is h_j(part), as in serving: chunks written in the store's
mode and rounded to bf16, each part written by the lower half alone at positions from 0. The teacher's is the same ids
through every layer.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch

from comem_cli.model.distill_options import DistillOptions
from comem_cli.model.distill_read import batch
from comem_cli.model.distill_sample import QueryPart, Sample
from comem_cli.model.distill_weights import Weighing, gold_places
from comem_cli.model.modes import WriteMode
from comem_cli.model.shapes import TOKENS_PER_BATCH
from comem_cli.model.split import SplitModel

ANSWER_TOKENS = 24  # of the teacher's own answer to a question


@dataclass(frozen=True)
class Pack:
    """Hold the pack of one sample: ids (P,) int64, rows (P, d) in the compute dtype, weights (P,) fp32, 0 for no loss.

    begin: tokens before the first chunk, 1 with a BOS.
    """

    sample: Sample
    ids: torch.Tensor
    rows: torch.Tensor
    weights: torch.Tensor
    begin: int


@dataclass(frozen=True)
class Parts:
    """Hold the query parts of one pack, one after another: ids (Q,), rows (Q, d), weights (Q,), gold (Q,) bool."""

    parts: tuple[QueryPart, ...]
    ids: torch.Tensor
    rows: torch.Tensor
    weights: torch.Tensor
    gold: torch.Tensor

    @property
    def lengths(self) -> list[int]:
        """Return the tokens of each part."""
        return [len(part.ids) for part in self.parts]


class PackMaker:
    """Write samples in one mode."""

    def __init__(
        self, writer: SplitModel, lower: SplitModel, mode: WriteMode, options: DistillOptions, bos: int | None
    ) -> None:
        """Keep them: `writer` runs chunks, `lower` BOS and query parts."""
        self._writer, self._lower = writer, lower
        self._mode = mode
        self._weighing = Weighing(options.seed, options.pack_loss, options.pack_positions, options.answer_weight)
        self._bos = [] if bos is None else [bos]
        device = lower.device.type
        # On a CPU a filled-up batch is wasted work; shapes change the rounding of a residual, not its meaning.
        tokens = 1 if device == "cpu" else TOKENS_PER_BATCH[device]
        self._shapes = mode.shapes(options.chunk, tokens, routed=device == "cpu")

    @torch.no_grad()
    def packs(self, samples: Sequence[tuple[int, Sample]], *, every: bool = False) -> list[Pack]:
        """Write the packs of (number, sample) pairs; every: weigh every pack position, for measuring."""
        written = self.write([sample for _, sample in samples])
        begin = len(self._bos)
        found = []
        for (number, sample), chunks in zip(samples, written, strict=True):
            bos = self._lower.lower(self._tensor(self._bos)[None])[0] if self._bos else chunks[:0]
            ids = self._tensor([*self._bos, *sample.pack])
            weights = self._weighing.of_pack(number, begin, sample.lengths, every=every)
            found.append(Pack(sample, ids, torch.cat([bos, chunks]), weights, begin))
        return found

    @torch.no_grad()
    def parts(self, packs: Sequence[Pack], say: Callable[[int, Sequence[int], int], list[int]]) -> list[Parts]:
        """Write the query parts of packs; say(row, prompt, tokens): the teacher's greedy answer after pack `row`."""
        found = []
        for row, pack in enumerate(packs):
            parts = tuple(_answered(part, partial(say, row)) for part in pack.sample.parts)
            rows = self._lower.lower(batch([self._tensor(part.ids) for part in parts]))
            own = torch.cat([one[: len(part.ids)] for one, part in zip(rows, parts, strict=True)])
            ids = self._tensor([token for part in parts for token in part.ids])
            found.append(Parts(parts, ids, own, self._weighing.of_parts(parts), gold_places(parts)))
        return found

    def write(self, samples: Sequence[Sample]) -> list[torch.Tensor]:
        """Write the picked chunks of each sample: -> (n, d) in the compute dtype, rounded to bf16 as in a store."""
        writer = self._mode.writer(self._writer, self._shapes)
        found: dict[str, bytes] = {}
        keys: list[list[str]] = []
        for at, sample in enumerate(samples):
            keys.append([])
            for part, stretch in enumerate(sample.stretches):
                chunks = [chunk.tobytes() for chunk in stretch.chunks[: stretch.picked[-1] + 1]]
                pending = self._mode.pending(chunks, partial(_key, f"{at}.{part}."))
                for number in stretch.picked:
                    keys[-1].append(pending[number].key)
                    found |= {done.key: rows for done, rows in writer.add(pending[number])}
        found |= {done.key: rows for done, rows in writer.flush()}
        return [self._rows(b"".join(found[key] for key in wanted)) for wanted in keys]

    def _rows(self, stored: bytes) -> torch.Tensor:
        numbers = torch.frombuffer(bytearray(stored), dtype=torch.bfloat16).view(-1, self._lower.width)
        return numbers.to(self._lower.device, self._lower.dtype)

    def _tensor(self, ids: Sequence[int]) -> torch.Tensor:
        return torch.tensor(list(ids), dtype=torch.int64, device=self._lower.device)


def _answered(part: QueryPart, say: Callable[[Sequence[int], int], list[int]]) -> QueryPart:
    """Let the teacher answer a question greedily."""
    if part.kind != "question":
        return part
    ids = (*part.ids, *say(part.ids, ANSWER_TOKENS))
    return replace(part, ids=ids, answers=((len(part.ids), len(ids)),))


def _key(prefix: str, left: bytes, ids: bytes) -> str:
    """Key a chunk: within one sample equal left context and ids mean equal residuals."""
    text = prefix.encode() + np.uint32(len(left)).tobytes() + left + ids
    return hashlib.blake2b(text, digest_size=16).hexdigest()
