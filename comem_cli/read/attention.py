"""Measure how much a question attends to each chunk of a pack, in the layers [j:L) that the reader runs.

The pack is read once as for an answer. Every attention layer also gives the softmax weights of the question's rows;
their mean over layers, heads and rows is one mass a key, and a chunk's mass is the sum over its tokens. Only the
question's rows are kept: (heads, q, t) a layer instead of (heads, t, t).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from comem_cli.errors import ModelError
from comem_cli.read.generate import Reader


@torch.inference_mode()
def attention_masses(reader: Reader, rows: torch.Tensor, query: Sequence[int], lengths: Sequence[int]) -> list[float]:
    """Return one mass a chunk: rows (n, d) of all chunks in a row, lengths: their tokens. The sum is at most 1.

    Raises: ModelError where attention is none of Transformers' exchangeable functions: soft caps, sinks, falcon's own.
    """
    split = reader.split
    implementation = split.model.config._attn_implementation
    measurable = implementation != "eager"
    if measurable:
        pack = reader.pack(rows, query, split.lower_cache())
        with _question_weights(implementation, len(query)) as collected:
            split.upper(pack, split.upper_cache())  # every row of every layer, which `read` leaves out of the last
        if split.split == split.n_layers:  # no attention is left above it
            return [0.0] * len(lengths)
        measurable = bool(collected)
    if not measurable:
        name = split.model.config.model_type
        raise ModelError(f"attention cannot be measured in '{name}'", "pass --selector bm25-iterative")
    mass = torch.stack(collected).mean(0)
    start = pack.shape[1] - len(query) - sum(lengths)  # after the BOS, if there is one
    parts = torch.split_with_sizes(mass[start : start + sum(lengths)], list(lengths))
    return [float(part.sum()) for part in parts]


@contextmanager
def _question_weights(implementation: str, question: int) -> Iterator[list[torch.Tensor]]:
    """Collect the mean weights (t,) fp32 of the last `question` rows of every attention layer inside the block."""
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    functions: Any = ALL_ATTENTION_FUNCTIONS
    usual = functions[implementation]
    collected: list[torch.Tensor] = []

    def attend(module: Any, query: Any, key: Any, value: Any, mask: Any, *args: Any, **kwargs: Any) -> Any:
        collected.append(_weights(query, key, mask, question, kwargs.get("scaling")).cpu())
        return usual(module, query, key, value, mask, *args, **kwargs)

    functions[implementation] = attend
    try:
        yield collected
    finally:
        functions[implementation] = usual


def _weights(
    query: torch.Tensor, key: torch.Tensor, mask: torch.Tensor | None, rows: int, scaling: float | None
) -> torch.Tensor:
    """Average softmax(q k^T * scaling) over heads and rows: query (1, h, t, e), key (1, kv, t, e) -> (t,) fp32."""
    tokens = key.shape[2]
    last = query[0, :, -rows:].float()  # (h, rows, e)
    keys = key[0].float().repeat_interleave(query.shape[1] // key.shape[1], dim=0)
    scores = last @ keys.transpose(1, 2) * (scaling if scaling is not None else query.shape[-1] ** -0.5)
    at = torch.arange(tokens - rows, tokens, device=scores.device)
    hidden = torch.arange(tokens, device=scores.device) > at[:, None]
    scores = scores.masked_fill(hidden, float("-inf"))
    if mask is not None:
        seen = mask[0, :, -rows:, :tokens]
        scores = scores.masked_fill(~seen, float("-inf")) if seen.dtype == torch.bool else scores + seen.float()
    return scores.softmax(-1).mean((0, 1))
