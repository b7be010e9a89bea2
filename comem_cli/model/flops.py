"""FLOPs of a forward through layers [0:j), from the model's config alone: what a write mode costs in theory.

Every matmul parameter takes 2 FLOPs a token; attention takes 2 for a query-key product and 2 for a weighted value, for
every head, head dimension and visible key (Hoffmann et al. 2022, appendix F, with causal keys only). Norms, rotary
embeddings and softmax are left out. The MLP is taken as gated (three matrices), with the experts that a token reaches.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class LowerFlops:
    """Count FLOPs: matmul parameters of one layer that a token meets, heads x head dimension, keys a layer may see."""

    parameters: int
    attention: int
    windows: tuple[int | None, ...]

    def forward(self, past: int, new: int) -> int:
        """Return the FLOPs of running `new` tokens after `past` cached ones."""
        keys = sum(_visible(past, new, window) for window in self.windows)
        return len(self.windows) * 2 * self.parameters * new + 4 * self.attention * keys

    def forwards(self, parts: Iterable[tuple[int, int]]) -> int:
        """Sum up (past, new) forwards."""
        return sum(self.forward(past, new) for past, new in parts)


def lower_flops(directory: Path, split: int) -> LowerFlops:
    """Read a model's config.json and count layers [0:split)."""
    config: dict[str, Any] = json.loads((directory / "config.json").read_text(encoding="utf-8"))
    width, heads = int(config["hidden_size"]), int(config["num_attention_heads"])
    head_dim = int(config.get("head_dim") or width // heads)
    kv_heads = int(config.get("num_key_value_heads") or heads)
    projections = 2 * width * heads * head_dim + 2 * width * kv_heads * head_dim
    return LowerFlops(projections + 3 * width * _mlp_width(config), heads * head_dim, _windows(config, split))


def _mlp_width(config: Mapping[str, Any]) -> int:
    """Return the hidden units that a token meets in one layer's MLP."""
    expert = config.get("moe_intermediate_size")
    if expert and config.get("num_experts_per_tok"):
        return int(expert) * int(config["num_experts_per_tok"])
    return int(config["intermediate_size"])


def _windows(config: Mapping[str, Any], split: int) -> tuple[int | None, ...]:
    kinds = config.get("layer_types") or ["full_attention"] * split
    return tuple(config.get("sliding_window") if kind == "sliding_attention" else None for kind in kinds[:split])


def _visible(past: int, new: int, window: int | None) -> int:
    """Sum the keys that each of `new` tokens sees: its own, those before it, at most `window`."""
    if window is None:
        return past * new + new * (new + 1) // 2
    return sum(min(past + t, window) for t in range(1, new + 1))
