"""Write: run token chunks through layers [0:j) in a small fixed set of padded batch shapes.

Contract: the bits of a chunk's residual depend on its own tokens and its left context only, never on the chunks that
share its batch, on order, or on where a run was resumed. So a chunk's shape follows from its own length, short batches
are filled up, and padding stands to the right, where causal attention never looks. The paper's §4: positions restart
at 0 in each chunk, no BOS. With `left` context (Overlap-Write) the context's own residuals are dropped.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from comem_cli.model.split import SplitModel

TOKENS_PER_BATCH = {"cpu": 2048, "mps": 8192, "cuda": 32768}
ROW_DTYPE = torch.bfloat16


@dataclass(frozen=True)
class Shape:
    """Fix one padded batch: `batch` sequences of `length` tokens."""

    batch: int
    length: int


@dataclass(frozen=True)
class Pending:
    """Hold one chunk to write: its key, its token ids and the left context, both uint32 LE bytes."""

    key: str
    ids: bytes
    left: bytes = b""

    @property
    def n_tokens(self) -> int:
        """Count the tokens of the forward, left context included."""
        return (len(self.left) + len(self.ids)) // 4


def batch_shapes(chunk: int, left: int, tokens_per_batch: int, *, routed: bool = False) -> tuple[Shape, ...]:
    """Choose the shapes for chunks of up to `chunk` tokens after `left` context tokens.

    Lengths are eighths, quarters, halves and three quarters of the longest sequence, so that short files cost little.
    A sparse-MoE model (`routed`) runs one chunk a batch: its expert GEMMs are shaped by the tokens routed to each
    expert, so a neighbour could change the rounding.
    """
    longest = chunk + left
    lengths = sorted({-(-longest * part // 8) for part in (1, 2, 4, 6, 8)})
    return tuple(Shape(1 if routed else max(1, tokens_per_batch // n), n) for n in lengths)


def shapes_to_json(shapes: Sequence[Shape]) -> str:
    """Render shapes as the JSON list that the fingerprint holds."""
    return json.dumps([[s.batch, s.length] for s in shapes], separators=(",", ":"))


def shapes_from_json(text: str) -> tuple[Shape, ...]:
    """Read shapes back from the fingerprint."""
    return tuple(Shape(int(b), int(n)) for b, n in json.loads(text))


def shape_of(chunk: Pending, shapes: Sequence[Shape]) -> Shape:
    """Return the smallest shape that holds a chunk; `shapes` in order of length."""
    return next(s for s in shapes if chunk.n_tokens <= s.length)


class BatchWriter:
    """Collect chunks by shape and run a batch whenever one is full."""

    def __init__(self, split: SplitModel, shapes: Sequence[Shape]) -> None:
        self._split = split
        self._shapes = sorted(shapes, key=lambda s: s.length)
        self._waiting: dict[Shape, list[Pending]] = {s: [] for s in self._shapes}

    def add(self, chunk: Pending) -> Iterator[tuple[Pending, bytes]]:
        """Queue a chunk; yield (chunk, residual rows) of the batch that it completes.

        Rows: n tokens x d bf16, little-endian, as bytes.
        """
        shape = shape_of(chunk, self._shapes)
        waiting = self._waiting[shape]
        waiting.append(chunk)
        if len(waiting) == shape.batch:
            self._waiting[shape] = []
            yield from self._run(shape, waiting)

    def flush(self) -> Iterator[tuple[Pending, bytes]]:
        """Run what is left, each batch filled up to its shape."""
        for shape, waiting in self._waiting.items():
            if waiting:
                self._waiting[shape] = []
                yield from self._run(shape, waiting)

    def _run(self, shape: Shape, chunks: Sequence[Pending]) -> Iterator[tuple[Pending, bytes]]:
        h = run_batch(self._split, shape, chunks)
        rows = h.to(ROW_DTYPE).cpu().view(torch.uint16).numpy()
        for row, chunk in enumerate(chunks):
            yield chunk, rows[row, len(chunk.left) // 4 : chunk.n_tokens].tobytes()


@torch.inference_mode()
def run_batch(split: SplitModel, shape: Shape, chunks: Sequence[Pending]) -> torch.Tensor:
    """Run one padded batch through [0:j): up to `shape.batch` chunks -> h (b, t, d) in the compute dtype.

    Row i holds the left context and the tokens of chunk i, then padding whose residuals mean nothing.
    """
    ids = np.zeros((shape.batch, shape.length), dtype=np.int64)
    for row, chunk in enumerate(chunks):
        ids[row, : chunk.n_tokens] = np.frombuffer(chunk.left + chunk.ids, dtype="<u4")
    return split.lower(torch.from_numpy(ids).to(split.device))
