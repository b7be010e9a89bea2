"""Split a decoder at layer j into two Hugging Face models that share its weights.

lower = the base model with layers [0:j) and no final norm: token ids -> h_j.
upper = the causal model with layers [j:L): h_j -> logits (final norm, LM head and logit scaling are Transformers' own).

Each half is a shallow copy with a config of its own (`num_hidden_layers`, `layer_types` cut to its range) and shallow
copies of the modules that carry `layer_idx`, counted from 0 again. So masks, rotary embeddings, sliding windows and
caches are Transformers' code, unchanged, with one cache a half. No tensor is copied. The paper's §4, "Interface".

h_0 is the token embedding. What a base model does to it before layer 0 (a multiplier, a norm, learned positions) is
part of layer 0: the lower half does it, the upper half only at j = 0.

Only families that the tests prove exact (max |Δlogit| = 0.0 in fp32 at every j) are accepted: `families`.
"""

from __future__ import annotations

import contextlib
import copy
import functools
from typing import Any

import torch
from torch import nn
from transformers import DynamicCache, PreTrainedModel

from comem_cli.errors import ModelError, UsageError
from comem_cli.model.families import RECURRENT, Family, family_of, layer_types


class SplitModel:
    """Hold the lower half [0:j) and the upper half [j:L) of one decoder.

    j = 0 makes `lower` the token embedding alone, j = L makes `upper` the final norm and the LM head.
    """

    def __init__(self, model: PreTrainedModel, split: int) -> None:
        """Build both views; raise ModelError for an unproved family, UsageError for j outside 0..L."""
        family = family_of(model.config)
        layers = len(layers_of(model))
        if not 0 <= split <= layers:
            raise UsageError(f"split {split} is outside 0..{layers}", f"pass --split between 0 and {layers}")
        self.model = model
        self.split = split
        self.n_layers = layers
        self.width = int(model.config.hidden_size)
        self._family = family
        self._embed: Any = model.get_input_embeddings()
        self._lower = _bare(model, family, 0, split)
        self._upper = _causal(model, family, split, layers)

    @property
    def device(self) -> torch.device:
        """Return the device of the embedding, where ids go in; of a model that is spread, the one it computes on."""
        runs_on = getattr(getattr(self._embed, "_hf_hook", None), "execution_device", None)
        if runs_on is not None:
            return torch.device(runs_on)
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
        self,
        ids: torch.Tensor,
        cache: DynamicCache | None = None,
        *,
        positions: torch.Tensor | None = None,
        mask: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Run token ids through layers [0:j): ids (b, t) int64 -> h_j (b, t, d) in the compute dtype.

        positions: (b, t) int64; by default they go on from the cache, else they start at 0. mask: (b, all) int64 over
        cached and new tokens, 0 hides one (padding on the left).
        """
        if self.split == 0:
            embedded: torch.Tensor = self._embed(ids)
            return embedded
        self._require_positions(positions)
        placed = _placing(self._lower.config, ids, positions, mask)
        out = self._lower(input_ids=ids, cache=cache, use_cache=cache is not None, **placed)
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
        a dict of them by layer type where the model has sliding layers; or (b, all) int64 as for `lower`.
        """
        if not isinstance(keep, torch.Tensor) and keep == 1 < h.shape[1]:
            # As an index, not as a slice: the head would copy all its weights for a row that is not contiguous.
            keep = torch.tensor([h.shape[1] - 1], device=self.device)
        out = _run(self._upper, h, cache, positions, self._for_kernel(mask), logits_to_keep=keep)
        logits: torch.Tensor = out.logits
        return logits

    def upper_last(
        self,
        h: torch.Tensor,
        cache: DynamicCache,
        *,
        positions: torch.Tensor | None = None,
        mask: torch.Tensor | dict[str, torch.Tensor] | None = None,
    ) -> torch.Tensor:
        """Run residuals as `upper` for the last position alone: h (b, t, d) -> logits (b, 1, vocab).

        The last layer stores the keys and values of every position, and computes all else for the last one, as a step
        of decoding does. So the logits are those of `upper` but for the rounding of kernels of another shape. A last
        layer that keeps a state instead of keys runs as in `upper`. The mask has 4 dimensions.
        """
        if h.shape[1] == 1 or not self._keeps_keys_last:
            return self.upper(h, cache, positions=positions, mask=mask)
        h = self._run_below(h, cache, positions, mask)
        before, at = (None, None) if positions is None else (positions[:, :-1], positions[:, -1:])
        _store_keys(self._top, h[:, :-1], cache, before)
        top = _some_layers(cache, slice(-1, None))
        row = _last_row(mask, top.get_mask_sizes(1, 0)[0])
        logits: torch.Tensor = _run(self._top, h[:, -1:], top, at, self._for_kernel(row)).logits
        return logits

    def upper_keys(self, h: torch.Tensor, cache: DynamicCache) -> None:
        """Fill the cache of [j:L) as `upper` does, without logits: h (b, t, d)."""
        if self._keeps_keys_last:
            _store_keys(self._top, self._run_below(h, cache, None, None), cache, None)
        elif self.split < self.n_layers:
            self.upper(h, cache)

    @property
    def _keeps_keys_last(self) -> bool:
        return self.split < self.n_layers and not set(layer_types(self.model.config)[-1:]) & RECURRENT

    @functools.cached_property
    def _below(self) -> Any:
        """Layers [j:L-1)."""
        return _bare(self.model, self._family, self.split, self.n_layers - 1)

    @functools.cached_property
    def _top(self) -> Any:
        """The last layer, final norm and LM head."""
        return _causal(self.model, self._family, self.n_layers - 1, self.n_layers)

    def _run_below(self, h: torch.Tensor, cache: DynamicCache, positions: torch.Tensor | None, mask: Any) -> Any:
        """Run all but the last of the layers [j:L), whose cache `cache` is: (b, t, d) -> (b, t, d)."""
        if self.split == self.n_layers - 1:
            return h
        part = _some_layers(cache, slice(None, -1))
        return _run(self._below, h, part, positions, self._for_kernel(mask)).last_hidden_state

    def _require_positions(self, positions: torch.Tensor | None) -> None:
        """Refuse positions past a table of learned ones."""
        if positions is None or not self._family.position_table:
            return
        name, longest = self.model.config.model_type, int(self.model.config.max_position_embeddings)
        if int(positions.max()) >= longest:
            raise ModelError(
                f"a document of more than {longest} tokens does not fit '{name}', whose positions are learned",
                "pass --mode chunk or --overlap 32",
            )

    def _for_kernel(self, mask: Any) -> Any:
        """Turn a mask True/False into what eager attention adds to scores; SDPA takes it as it is."""
        if mask is None or self.model.config._attn_implementation != "eager":
            return mask
        if isinstance(mask, torch.Tensor) and mask.dim() == 2:
            return mask  # Transformers makes its own of it
        if isinstance(mask, dict):
            return {kind: self._for_kernel(part) for kind, part in mask.items()}
        lowest = torch.finfo(self.dtype).min
        return torch.zeros(mask.shape, dtype=self.dtype, device=mask.device).masked_fill(~mask, lowest)


class _KeysStored(Exception):
    """Say that an attention layer has stored its keys and values."""


class _KeysOnly(DynamicCache):
    """Store the keys and values of a layer, and end its forward there."""

    def update(self, *args: Any, **kwargs: Any) -> Any:
        super().update(*args, **kwargs)
        raise _KeysStored


def _store_keys(top: Any, h: torch.Tensor, cache: DynamicCache, positions: torch.Tensor | None) -> None:
    """Store what the last layer keeps of its input h (b, t, d) in its place in the upper half's cache."""
    keys = _KeysOnly()
    keys.layers = cache.layers[-1:]
    with contextlib.suppress(_KeysStored):
        _run(top.base_model, h, keys, positions, None)


def _some_layers(cache: DynamicCache, which: slice) -> DynamicCache:
    """Return a cache of some of the layers, which are shared."""
    part = copy.copy(cache)
    part.layers = cache.layers[which]
    return part


def _last_row(mask: Any, keys: int) -> Any:
    """Cut a mask (b, 1, t, t), or a dict of them, to what the last position sees of the last keys: (b, 1, 1, keys)."""
    if isinstance(mask, dict):
        return {kind: _last_row(part, keys) for kind, part in mask.items()}
    return None if mask is None else mask[..., -1:, -keys:]


def _run(
    half: Any, h: torch.Tensor, cache: DynamicCache | None, positions: torch.Tensor | None, mask: Any, **more: Any
) -> Any:
    """Run a view over residuals h (b, t, d); returns Transformers' output."""
    placed = _placing(half.base_model.config, h, positions, mask)
    return half(inputs_embeds=h, cache=cache, use_cache=cache is not None, **placed, **more)


def _share(module: nn.Module) -> Any:
    """Copy a module without its tensors: same parameters, a child table of its own."""
    clone: Any = copy.copy(module)
    clone._modules = dict(module._modules)
    if hasattr(clone, "_hf_hook"):
        _follow(clone)
    return clone


def _follow(clone: Any) -> None:
    """Let the forward that accelerate put into a module (`device_map`: GPUs, CPU, disk) run the copy, not the original.

    It is `partial(new_forward, module)` around the module's own bound forward; both name the original. The weights that
    its hook brings and takes away lie in a table that copies share.
    """
    clone.forward = functools.partial(clone.forward.func, clone)
    clone._old_forward = type(clone).forward.__get__(clone)


def layers_of(model: PreTrainedModel) -> nn.ModuleList:
    """Return the decoder layers; raises ModelError for an unproved family."""
    family = family_of(model.config)
    layers: nn.ModuleList = getattr(_stack(model.base_model, family), family.layers)
    return layers


def final_norm_of(model: PreTrainedModel) -> nn.Module:
    """Return the norm after the last layer; raises ModelError for an unproved family."""
    family = family_of(model.config)
    norm: nn.Module = getattr(_stack(model.base_model, family), family.norm)
    return norm


def _stack(base: Any, family: Family) -> Any:
    return getattr(base, family.stack) if family.stack else base


def _placing(config: Any, rows: torch.Tensor, positions: torch.Tensor | None, mask: Any) -> dict[str, Any]:
    """Say where tokens stand: (b, t, ...) -> arguments of a base model.

    A half that has recurrent layers only counts no tokens, and Transformers asks its cache for their number. Such a
    half uses neither positions nor masks, so it is given empty ones.
    """
    types = set(layer_types(config))
    if types and types <= RECURRENT:
        positions = torch.zeros(1, rows.shape[1], dtype=torch.int64, device=rows.device)
        mask = dict.fromkeys(types)
    return {"position_ids": positions, "attention_mask": mask}


def _bare(model: PreTrainedModel, family: Family, first: int, last: int) -> Any:
    """Return the base model with layers [first:last) and no final norm."""
    view = _view(model.base_model, family, first, last)
    _stack(view, family)._modules[family.norm] = nn.Identity()
    return view


def _causal(model: PreTrainedModel, family: Family, first: int, last: int) -> Any:
    """Return the causal model with layers [first:last), final norm and LM head."""
    view = _share(model)
    view._modules[model.base_model_prefix] = _view(model.base_model, family, first, last)
    return view


def _view(base: Any, family: Family, first: int, last: int) -> Any:
    """Copy a base model that holds layers [first:last) only, sharing every weight."""
    config = copy.deepcopy(base.config)
    config.num_hidden_layers = last - first
    if layer_types(config):
        config.layer_types = list(base.config.layer_types[first:last])
    view = _share(base)
    view.config = config
    stack = view
    if family.stack:
        stack = _share(getattr(base, family.stack))
        stack.config = config
        view._modules[family.stack] = stack
    layers = getattr(stack, family.layers)[first:last]
    stack._modules[family.layers] = nn.ModuleList([_reindex(layer, first) for layer in layers])
    if first:
        _take_residuals(stack, family)
    return view


class _NoPositions(nn.Module):
    """Stand in for a table of learned positions: adds nothing."""

    def forward(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        return torch.zeros(())


def _take_residuals(stack: Any, family: Family) -> None:
    """Let a view take h_j as it is: what a base model does to embeddings has been done by the lower half."""
    if family.input_scale:
        setattr(stack, family.input_scale, 1.0)
    if family.input_norm:
        stack._modules[family.input_norm] = nn.Identity()
    if family.position_table:
        stack._modules[family.position_table] = _NoPositions()


def _reindex(module: nn.Module, offset: int) -> Any:
    """Copy the modules that carry `layer_idx` and count it from the start of their half."""
    clone = _share(module)
    if isinstance(getattr(clone, "layer_idx", None), int):
        clone.layer_idx -= offset
    for name, child in module._modules.items():
        if child is not None and any(isinstance(getattr(m, "layer_idx", None), int) for m in child.modules()):
            clone._modules[name] = _reindex(child, offset)
    return clone
