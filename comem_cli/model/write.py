"""Write: run token chunks through layers [0:j) in a small fixed set of padded batch shapes.

Contract: the bits of a chunk's residual depend on its own tokens and its left context only, never on the chunks that
share its batch, on order, or on where a run was resumed. So a chunk's shape follows from its own length, short batches
are filled up, and padding stands to the right, where causal attention never looks. The paper's §4: positions restart
at 0 in each chunk, no BOS. With `left` context (Overlap-Write) the context's own residuals are dropped.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch

from comem_cli.model.shapes import Pending, Shape, shape_of
from comem_cli.model.split import SplitModel

ROW_DTYPE = torch.bfloat16


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
        rows = stored_rows(run_batch(self._split, shape, chunks))
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


def stored_rows(h: torch.Tensor) -> np.ndarray[tuple[int, ...], np.dtype[np.uint16]]:
    """Round residuals to what a store keeps: h (..., d) in any dtype and place -> bf16 as uint16, on the CPU."""
    rows: np.ndarray[tuple[int, ...], np.dtype[np.uint16]] = h.to(ROW_DTYPE).cpu().view(torch.uint16).numpy()
    return rows
