"""FLOPs of a forward through layers [0:j), from the model's config alone: what a write mode costs in theory.

Every matmul parameter takes 2 FLOPs a token; attention takes 2 for a query-key product and 2 for a weighted value, for
every head, head dimension and visible key (Hoffmann et al. 2022, appendix F, with causal keys only). Norms, rotary
embeddings and softmax are left out. An MoE layer counts the experts that a token reaches. Every layer is counted as
attention, recurrent ones too, and latent attention as if its keys were projected whole: for ratios between write modes.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from comem_cli.model.families import FAMILIES, stated


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
    width, heads = stated(config, "hidden_size"), stated(config, "num_attention_heads")
    head_dim = int(config.get("head_dim") or width // heads)
    kv_heads = stated(config, "num_key_value_heads", heads)
    projections = 2 * width * heads * head_dim + 2 * width * kv_heads * head_dim
    family = FAMILIES.get(str(config.get("model_type")))
    matrices = 2 if family and not family.gated else 3
    return LowerFlops(projections + matrices * width * _mlp_width(config), heads * head_dim, _windows(config, split))


def _mlp_width(config: Mapping[str, Any]) -> int:
    """Return the hidden units that a token meets in one layer's MLP; four widths where nothing is stated (GPT-2)."""
    reached = config.get("num_experts_per_tok")
    expert = config.get("moe_intermediate_size") or (reached and config.get("intermediate_size"))
    if expert and reached:
        shared = config.get("num_shared_experts") or config.get("n_shared_experts") or 0
        return int(expert) * (int(reached) + int(shared)) + int(config.get("shared_expert_intermediate_size") or 0)
    names = ("intermediate_size", "ffn_dim", "ffn_hidden_size", "n_inner")
    return next((int(config[name]) for name in names if config.get(name)), 4 * stated(config, "hidden_size"))


def _windows(config: Mapping[str, Any], split: int) -> tuple[int | None, ...]:
    everywhere = config.get("sliding_window") and config.get("use_sliding_window", True)
    kinds = config.get("layer_types") or ["sliding_attention" if everywhere else "full_attention"] * split
    return tuple(config.get("sliding_window") if kind == "sliding_attention" else None for kind in kinds[:split])


def _visible(past: int, new: int, window: int | None) -> int:
    """Sum the keys that each of `new` tokens sees: its own, those before it, at most `window`."""
    if window is None:
        return past * new + new * (new + 1) // 2
    return sum(min(past + t, window) for t in range(1, new + 1))
