"""Say how each model family is split: where its layers live, what it does to its input, what is refused and why.

A name is the `model_type` of config.json. Every family in `FAMILIES` is proved by tests/model/test_families.py, and
docs/families.md holds what was measured. Importing this loads no torch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from comem_cli.errors import ModelError

# Layer types, as Transformers names them. Recurrent layers keep a state instead of keys.
ATTENTION = frozenset({"full_attention", "sliding_attention"})
RECURRENT = frozenset({"conv", "linear_attention"})


@dataclass(frozen=True)
class Family:
    """Name the parts of a family's base model that a split touches.

    stack: attribute of the base model that holds the rest; "" where it is the base model itself. layers, norm: the
    decoder layers and the final norm in it.
    What the base model does to its input before layer 0, so that the upper half must not do it again to h_j:
    input_scale, an attribute that it multiplies with; input_norm, a module that it applies; position_table, a module
    of learned positions that it adds.
    fixed: why Read can neither move nor mask tokens; None where positions and masks reach every layer (rotary).
    gated: whether the MLP has three matrices. window: of models whose config.json leaves it out. attention: what
    Transformers computes attention with.
    refuse: says of a config why it cannot be split; None where it can.
    """

    stack: str = ""
    layers: str = "layers"
    norm: str = "norm"
    input_scale: str | None = None
    input_norm: str | None = None
    position_table: str | None = None
    fixed: str | None = None
    gated: bool = True
    window: int | None = None
    attention: str = "sdpa"
    refuse: Callable[[Any], str | None] | None = None


def _falcon(config: Any) -> str | None:
    return "with ALiBi it is not tested" if config.alibi else None


def _gemma4(config: Any) -> str | None:
    if config.hidden_size_per_layer_input:
        return "its upper layers need the token ids besides the residual (per-layer inputs)"
    return "its upper layers reuse keys of lower ones" if config.num_kv_shared_layers else None


def _opt(config: Any) -> str | None:
    narrow = config.word_embed_proj_dim != config.hidden_size
    return "its embeddings have another width than its layers" if narrow else None


_LEARNED = "its positions are learned and become part of a residual when it is written"
_ALIBI = "its attention counts keys instead of positions (ALiBi)"
FAMILIES: dict[str, Family] = {
    "bloom": Family(
        layers="h",
        norm="ln_f",
        input_norm="word_embeddings_layernorm",
        fixed=_ALIBI,
        gated=False,
        attention="eager",
    ),
    "cohere2": Family(),
    "deepseek_v3": Family(),
    "falcon": Family(layers="h", norm="ln_f", gated=False, window=2048, refuse=_falcon),
    "gemma": Family(),
    "gemma2": Family(attention="eager"),
    "gemma3_text": Family(),
    "gemma4_text": Family(refuse=_gemma4),
    "glm4": Family(),
    "gpt2": Family(layers="h", norm="ln_f", position_table="wpe", fixed=_LEARNED, gated=False),
    "gpt_neox": Family(norm="final_layer_norm", gated=False),
    "gpt_oss": Family(attention="eager"),
    "granite": Family(input_scale="embedding_multiplier"),
    "hunyuan_v1_dense": Family(),
    "hy_v3": Family(),
    "lfm2": Family(norm="embedding_norm"),
    "llama": Family(),
    "ministral3": Family(),
    "mistral": Family(),
    "mixtral": Family(),
    "nemotron": Family(gated=False),
    "olmo2": Family(),
    "olmo3": Family(),
    "opt": Family(
        stack="decoder",
        norm="final_layer_norm",
        position_table="embed_positions",
        fixed=_LEARNED,
        gated=False,
        refuse=_opt,
    ),
    "phi3": Family(),
    "qwen2": Family(),
    "qwen3": Family(),
    "qwen3_5_text": Family(),
    "qwen3_moe": Family(),
    "qwen3_next": Family(),
    "smollm3": Family(),
    "stablelm": Family(),
    "starcoder2": Family(gated=False),
}
PROVED_FAMILIES = tuple(FAMILIES)
# Families that were looked at and cannot be had, with the reason that the user is told.
REFUSED: dict[str, str] = {
    "gemma3n_text": "its upper layers need the token ids besides the residual (per-layer inputs)",
    "mamba2": "it has no attention, states no window, and no adapter can be trained for it",
}

# What older families call the sizes in config.json.
_ALIASES = {
    "hidden_size": ("n_embd", "n_embed"),
    "max_position_embeddings": ("n_positions", "seq_length"),
    "num_attention_heads": ("n_head",),
    "num_hidden_layers": ("n_layer",),
    "num_key_value_heads": ("num_kv_heads",),
}


def stated(config: Mapping[str, Any], key: str, default: Any = None) -> Any:
    """Read a size of config.json under its name or an older one; `default` where it is absent or null."""
    names = (key, *_ALIASES.get(key, ()))
    return next((config[name] for name in names if config.get(name) is not None), default)


def family_of(config: Any) -> Family:
    """Return how to split a model with this config.

    Raises: ModelError (1) naming the family, the reason where one is known, and the families that are proved.
    """
    family = require_proved(config.model_type)
    reason = (family.refuse(config) if family.refuse else None) or _moving_rotary(config)
    if reason:
        _refuse(config.model_type, reason)
    return family


def require_proved(name: str) -> Family:
    """Return how to split a family, by the model_type of config.json alone; raises ModelError as `family_of` does."""
    family = FAMILIES.get(name)
    if family is None:
        _refuse(name, REFUSED.get(name))
    return family


def require_movable(config: Any, what: str) -> None:
    """Refuse what places or masks tokens in the upper layers, where a family has no such positions.

    what: what was asked for, as the subject of a sentence. Raises: ModelError (1).
    """
    family = FAMILIES.get(config.model_type)
    if family is not None and family.fixed:
        raise ModelError(f"{what} does not work with '{config.model_type}': {family.fixed}", "use another model")


def layer_types(config: Any) -> list[str]:
    """Return the kinds of the layers that a config states; none where it states none."""
    return vars(config).get("layer_types") or []


def is_recurrent(config: Any) -> bool:
    """Tell whether a model has layers that keep a state instead of keys."""
    return bool(RECURRENT & set(layer_types(config)))


def _moving_rotary(config: Any) -> str | None:
    """Refuse rotary frequencies that depend on the length of a forward: a residual's bits would, too."""
    rope = getattr(config, "rope_parameters", None) or {}
    kinds = {part.get("rope_type") for part in (rope, *rope.values()) if isinstance(part, dict)}
    moving = [kind for kind in ("dynamic", "longrope") if kind in kinds]
    return f"its rotary frequencies depend on the length of the input ({moving[0]})" if moving else None


def _refuse(name: str, reason: str | None) -> NoReturn:
    why = f": {reason}" if reason else ""
    raise ModelError(
        f"model family '{name}' is not proved exact under a split{why}",
        f"use a model of one of these families: {', '.join(PROVED_FAMILIES)}",
    )
