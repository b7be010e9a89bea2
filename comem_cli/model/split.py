"""Split a decoder at layer j into two Hugging Face models that share its weights.

lower = the base model with layers [0:j) and no final norm: token ids -> h_j.
upper = the causal model with layers [j:L): h_j -> logits (final norm, LM head and logit scaling are Transformers' own).

Each half is a shallow copy with a config of its own (`num_hidden_layers`, `layer_types` cut to its range) and shallow
copies of the modules that carry `layer_idx`, counted from 0 again. So masks, rotary embeddings, sliding windows and
caches are Transformers' code, unchanged, with one cache a half. No tensor is copied. The paper's §4, "Interface".

Only families that the tests prove exact (max |Δlogit| = 0.0 in fp32 at every j) are accepted.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import nn
from transformers import DynamicCache, PreTrainedModel

from comem_cli.errors import ModelError, UsageError

# model_type of the config; tests/model/test_split.py proves each one.
PROVED_FAMILIES = (
    "gemma3_text",
    "hy_v3",
    "llama",
    "qwen3",
    "qwen3_moe",
)


class SplitModel:
    """Hold the lower half [0:j) and the upper half [j:L) of one decoder.

    j = 0 makes `lower` the token embedding alone, j = L makes `upper` the final norm and the LM head.
    """

    def __init__(self, model: PreTrainedModel, split: int) -> None:
        """Build both views; raise ModelError for an unproved family, UsageError for j outside 0..L."""
        family = model.config.model_type
        if family not in PROVED_FAMILIES:
            raise ModelError(
                f"model family '{family}' is not proved exact under a split",
                f"use a model of one of these families: {', '.join(PROVED_FAMILIES)}",
            )
        base: Any = model.base_model
        layers = len(base.layers)
        if not 0 <= split <= layers:
            raise UsageError(f"split {split} is outside 0..{layers}", f"pass --split between 0 and {layers}")
        self.model = model
        self.split = split
        self.n_layers = layers
        self.width = int(model.config.hidden_size)
        self._embed: Any = model.get_input_embeddings()
        self._lower = _view(base, 0, split)
        self._lower._modules["norm"] = nn.Identity()
        self._upper = _share(model)
        self._upper._modules[model.base_model_prefix] = _view(base, split, layers)

    @property
    def device(self) -> torch.device:
        """Return the device of the embedding, where ids go in."""
        weight: torch.Tensor = self._embed.weight
        return weight.device

    @property
    def dtype(self) -> torch.dtype:
        """Return the compute dtype."""
        weight: torch.Tensor = self._embed.weight
        return weight.dtype

    def lower_cache(self) -> DynamicCache:
        """Make an empty KV cache for layers [0:j)."""
        return DynamicCache(config=self._lower.config)

    def upper_cache(self) -> DynamicCache:
        """Make an empty KV cache for layers [j:L)."""
        return DynamicCache(config=self._upper.base_model.config)

    def lower(
        self, ids: torch.Tensor, cache: DynamicCache | None = None, *, positions: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Run token ids through layers [0:j): ids (b, t) int64 -> h_j (b, t, d) in the compute dtype.

        positions: (b, t) int64; by default they go on from the cache, else they start at 0.
        """
        if self.split == 0:
            embedded: torch.Tensor = self._embed(ids)
            return embedded
        out = self._lower(input_ids=ids, cache=cache, use_cache=cache is not None, position_ids=positions)
        h: torch.Tensor = out.last_hidden_state
        return h

    def upper(
        self,
        h: torch.Tensor,
        cache: DynamicCache | None = None,
        *,
        positions: torch.Tensor | None = None,
        mask: torch.Tensor | dict[str, torch.Tensor] | None = None,
        keep: int | torch.Tensor = 1,
    ) -> torch.Tensor:
        """Run residuals through layers [j:L) and the LM head: h (b, t, d) -> logits (b, keep or t, vocab).

        keep: positions from the end that reach the LM head; 0 keeps all; or those True in (b, t) bool -> (n, vocab).
        positions: (b, t) int64, by default contiguous after the cache; mask: (b, 1, t, t) bool, True attends;
        a dict of them by layer type where the model has sliding layers.
        """
        out = self._upper(
            inputs_embeds=h,
            cache=cache,
            use_cache=cache is not None,
            position_ids=positions,
            attention_mask=mask,
            logits_to_keep=keep,
        )
        logits: torch.Tensor = out.logits
        return logits


def _share(module: nn.Module) -> Any:
    """Copy a module without its tensors: same parameters, a child table of its own."""
    clone = copy.copy(module)
    clone._modules = dict(module._modules)
    return clone


def _view(base: Any, first: int, last: int) -> Any:
    """Copy a base model that holds layers [first:last) only, sharing every weight."""
    view = _share(base)
    config = copy.deepcopy(base.config)
    config.num_hidden_layers = last - first
    if getattr(config, "layer_types", None) is not None:
        config.layer_types = list(base.config.layer_types[first:last])
    view.config = config
    view._modules["layers"] = nn.ModuleList([_reindex(layer, first) for layer in base.layers[first:last]])
    return view


def _reindex(module: nn.Module, offset: int) -> Any:
    """Copy the modules that carry `layer_idx` and count it from the start of their half."""
    clone = _share(module)
    if isinstance(getattr(clone, "layer_idx", None), int):
        clone.layer_idx -= offset
    for name, child in module._modules.items():
        if child is not None and any(isinstance(getattr(m, "layer_idx", None), int) for m in child.modules()):
            clone._modules[name] = _reindex(child, offset)
    return clone
