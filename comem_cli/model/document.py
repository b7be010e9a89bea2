"""Mode document: stream a document through layers [0:j) with a KV cache, one chunk a step.

Each residual sees the whole document before it, as in one forward over it (contract 6), and every token is computed
once. Past the model's window, keys older than window - c are dropped while positions go on; a sliding-window layer
keeps its own window. A step is one unpadded sequence whose shape follows from its place in the document, so a run
that resumes in the middle recomputes the states before it in the same steps and gets the same bits.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

from comem_cli.model.shapes import Pending
from comem_cli.model.split import SplitModel
from comem_cli.model.write import stored_rows


class DocumentStream:
    """Run one document step by step from its beginning; `keep`: keys that a step may look back on."""

    def __init__(self, split: SplitModel, keep: int) -> None:
        self._split = split
        self._keep = keep
        self._cache = split.lower_cache()
        self._position = 0

    @torch.inference_mode()
    def step(self, ids: bytes) -> torch.Tensor:
        """Run the next tokens, uint32 LE bytes -> h (n, d) in the compute dtype."""
        split = self._split
        _drop_old_keys(self._cache, self._keep)
        tokens = torch.from_numpy(np.frombuffer(ids, dtype="<u4").astype(np.int64))[None].to(split.device)
        # Explicit, because the cache counts only what it still holds.
        positions = torch.arange(self._position, self._position + tokens.shape[1], device=split.device)[None]
        h = split.lower(tokens, self._cache, positions=positions)
        self._position += tokens.shape[1]
        return h[0]


class DocumentWriter:
    """Write chunks as soon as they come, each from the state that the one before it left."""

    def __init__(self, split: SplitModel, keep: int) -> None:
        self._split = split
        self._keep = keep
        self._stream = DocumentStream(split, keep)
        self._at: str | None = None  # key of the chunk whose state the stream is in

    def add(self, chunk: Pending) -> Iterator[tuple[Pending, bytes]]:
        """Run a chunk, after those before it whose state is not at hand; yield (chunk, residual rows) of it alone.

        Rows: n tokens x d bf16, little-endian, as bytes.
        """
        steps = [chunk]
        before = chunk.previous
        while before is not None and before.key != self._at:
            steps.append(before)
            before = before.previous
        if before is None:
            self._stream = DocumentStream(self._split, self._keep)
        self._at = None  # until the steps are done: an error leaves the stream anywhere
        for step in reversed(steps):
            h = self._stream.step(step.ids)
        self._at = chunk.key
        yield chunk, stored_rows(h).tobytes()

    def flush(self) -> Iterator[tuple[Pending, bytes]]:
        """Yield nothing: no chunk waits."""
        yield from ()


def _drop_old_keys(cache: DynamicCache, keep: int) -> None:
    """Cut the full-attention layers to their newest `keep` keys.

    Masks count from the keys that a layer holds, so what is left stays consistent. A sliding layer cuts itself.
    """
    for layer in cache.layers:
        if not isinstance(layer, DynamicLayer) or layer.is_sliding or layer.keys is None or layer.values is None:
            continue
        dropped = max(0, layer.keys.shape[-2] - keep)
        if dropped:
            layer.keys = layer.keys[..., dropped:, :]
            layer.values = layer.values[..., dropped:, :]
