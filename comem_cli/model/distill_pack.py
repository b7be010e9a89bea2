"""Turn samples into what both readers run on: residuals as Write stores them, ids, and where the loss is taken.

The student's pack is [BOS; chunk residuals; h_j(query)], as in serving: chunks written in the store's mode and rounded
to bf16, the query written by the lower half alone at positions from 0. The teacher's is the same ids through every
layer.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch

from comem_cli.model.distill_data import Sample
from comem_cli.model.distill_options import DistillOptions
from comem_cli.model.modes import WriteMode
from comem_cli.model.shapes import TOKENS_PER_BATCH
from comem_cli.model.split import SplitModel

ANSWER_TOKENS = 24  # of the teacher's own answer to a question


@dataclass(frozen=True)
class Pack:
    """Hold one sample of T tokens: ids (T,) int64; where the query part begins; weights (T,) fp32, 0 for no loss.

    rows: (T, d) in the compute dtype, the input of the upper half. The weight at t is that of predicting token t + 1.
    answer: [first, last) of the answer's tokens, counted in ids.
    """

    sample: Sample
    ids: torch.Tensor
    rows: torch.Tensor
    weights: torch.Tensor
    query: int
    answer: tuple[int, int]


class PackMaker:
    """Write samples in one mode."""

    def __init__(
        self,
        writer: SplitModel,
        lower: SplitModel,
        teacher: SplitModel,
        mode: WriteMode,
        options: DistillOptions,
        bos: int | None,
    ) -> None:
        """Keep them: `writer` runs chunks, `lower` BOS and query, `teacher` is the stock model split at 0."""
        self._writer, self._lower, self._teacher = writer, lower, teacher
        self._mode = mode
        self._options = options
        self._bos = [] if bos is None else [bos]
        device = lower.device.type
        # On a CPU a filled-up batch is wasted work; shapes change the rounding of a residual, not its meaning.
        tokens = 1 if device == "cpu" else TOKENS_PER_BATCH[device]
        self._shapes = mode.shapes(options.chunk, tokens, routed=device == "cpu")

    @torch.no_grad()
    def make(self, samples: Sequence[tuple[int, Sample]], *, all_positions: bool = False) -> list[Pack]:
        """Write (number, sample) pairs; all_positions: weigh every pack position, for measuring."""
        done = [self._answered(sample) for _, sample in samples]
        written = self.write(done)
        packs: list[Pack] = []
        for (number, _), sample, chunks in zip(samples, done, written, strict=True):
            query = self._lower.lower(self._tensor(sample.query))[0]
            bos = self._lower.lower(self._tensor(self._bos))[0] if self._bos else query[:0]
            ids = [*self._bos, *sample.pack, *sample.query]
            begin = len(ids) - len(sample.query)
            answer = (begin + sample.answer[0], begin + sample.answer[1])
            weights = self._weights(number, len(ids), begin, answer, all_positions)
            rows = torch.cat([bos, chunks, query])
            packs.append(Pack(sample, self._tensor(ids)[0], rows, weights, begin, answer))
        return packs

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

    def _answered(self, sample: Sample) -> Sample:
        """Let the teacher answer a question greedily."""
        if sample.kind != "question":
            return sample
        teacher, prompt = self._teacher, [*self._bos, *sample.pack, *sample.query]
        cache = teacher.upper_cache()
        token = int(teacher.upper(teacher.lower(self._tensor(prompt)), cache)[0, -1].argmax())
        ids = [token]
        while len(ids) < ANSWER_TOKENS:
            token = int(teacher.upper(teacher.lower(self._tensor([token])), cache)[0, -1].argmax())
            ids.append(token)
        query = (*sample.query, *ids)
        return replace(sample, query=query, answer=(len(sample.query), len(query)))

    def _weights(self, number: int, total: int, begin: int, answer: tuple[int, int], every: bool) -> torch.Tensor:
        """Weigh predictions: the query part sums to 1, the pack to `pack_loss`."""
        options = self._options
        weights = torch.zeros(total)
        if total > begin:
            query = torch.ones(total - begin)
            # The prediction of token t stands at t - 1; the query's first token is predicted by the pack.
            first, last = max(answer[0] - 1 - begin, 0), answer[1] - 1 - begin
            query[first : max(last, first)] = options.answer_weight
            weights[begin:] = query / query.sum().clamp(min=1e-9)
        pack = range(len(self._bos), begin)
        if every:
            chosen = list(pack)
        else:
            rng = random.Random(f"{options.seed}/{number}/positions")
            chosen = rng.sample(pack, min(len(pack), options.pack_positions))
        if chosen and (every or options.pack_loss):
            weights[chosen] = (options.pack_loss or 1.0) / len(chosen)
        return weights

    def _tensor(self, ids: Sequence[int]) -> torch.Tensor:
        return torch.tensor([list(ids)], dtype=torch.int64, device=self._lower.device)


def batch(parts: Sequence[torch.Tensor]) -> torch.Tensor:
    """Stack tensors of several lengths, zeros to the right, where causal attention never looks: -> (b, T, ...)."""
    return torch.nn.utils.rnn.pad_sequence(list(parts), batch_first=True)


def _key(prefix: str, left: bytes, ids: bytes) -> str:
    """Key a chunk: within one sample equal left context and ids mean equal residuals."""
    import hashlib

    text = prefix.encode() + np.uint32(len(left)).tobytes() + left + ids
    return hashlib.blake2b(text, digest_size=16).hexdigest()
