"""LoRA on a range of layers, with the stock model untouched: fork, inject, save, load, merge.

`fork` copies a model's modules and shares every tensor, so that peft can inject into the copy while the original stays
the stock model: the teacher, and the replay arm without adapter. Keys in the file name layers of the full model, so
`PeftModel.from_pretrained(stock_model, directory)` loads it too.

Targets are all `nn.Linear` modules of the layers: attention, dense MLP and shared experts. Routed experts are 3-D
parameters without a Linear and stay as they are; where peft takes the names of shared experts for theirs (deepseek_v3,
qwen3_next), those stay, too.
"""

from __future__ import annotations

import copy
import json
import re
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, get_peft_model_state_dict, inject_adapter_in_model, set_peft_model_state_dict
from peft.tuners.lora import LoraLayer
from peft.utils.transformers_weight_conversion import convert_peft_config_for_transformers
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import PreTrainedModel

from comem_cli.errors import ModelError, UsageError
from comem_cli.model.adapter import CONFIG, WEIGHTS, Adapter
from comem_cli.model.families import family_of

_PREFIX = "base_model.model."  # of every key in a file that peft writes


def fork(model: PreTrainedModel) -> PreTrainedModel:
    """Copy a model's modules; the copy shares every parameter and buffer."""
    tensors = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}
    return copy.deepcopy(model, memo=dict(tensors))


def lora_config(model: PreTrainedModel, first: int, last: int, rank: int, alpha: int) -> LoraConfig:
    """Describe LoRA on every `nn.Linear` of layers [first:last); raises UsageError (2) where there is none."""
    if rank < 1:
        raise UsageError(f"--rank {rank} is below 1", "pass --rank 32")
    pattern = family_of(model.config).layers
    layer = re.compile(rf"(?:^|\.){pattern}\.(\d+)\.")
    found = set()
    for name, module in model.named_modules():
        at = layer.search(name)
        if isinstance(module, nn.Linear) and at and first <= int(at[1]) < last:
            found.add(name.rpartition(".")[2])
    found -= _taken_for_experts(model, found)
    if not found:
        raise UsageError(f"no linear layer in layers {first} to {last}: nothing to adapt", "pass another --split")
    # A list with layer numbers, not one expression: for MoE families peft rewrites an expression and loses the layers.
    return LoraConfig(
        r=rank,
        lora_alpha=alpha,
        target_modules=sorted(found),
        layers_to_transform=list(range(first, last)),
        layers_pattern=pattern,
        lora_dropout=0.0,
        bias="none",
        task_type="CAUSAL_LM",
        inference_mode=False,
    )


def _taken_for_experts(model: PreTrainedModel, names: set[str]) -> set[str]:
    """Return the names that peft takes for those of fused experts, though they are linear layers: shared experts."""
    taken = set()
    for name in names:
        probe = LoraConfig(target_modules=[name])
        try:
            convert_peft_config_for_transformers(probe, model, None)
        except ValueError:  # one of two names that make up one fused parameter
            taken.add(name)
            continue
        if probe.target_parameters:
            taken.add(name)
    return taken


def inject(model: PreTrainedModel, config: LoraConfig, seed: int = 0) -> list[tuple[str, nn.Parameter]]:
    """Add fp32 LoRA weights to a fork: A drawn from `seed`, B zero; return them by name, in order.

    The global random generator of torch is left as it was.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        inject_adapter_in_model(config, model)
    weights = [(name, parameter) for name, parameter in model.named_parameters() if ".lora_" in name]
    for _, parameter in weights:
        parameter.data = parameter.data.float()
        parameter.requires_grad_(True)
    return weights


def adapter_weights(model: PreTrainedModel) -> dict[str, torch.Tensor]:
    """Return the LoRA weights, fp32 on the CPU, under the keys of a peft file."""
    state = get_peft_model_state_dict(model, adapter_name="default", save_embedding_layers=False)
    return {_PREFIX + key: value.detach().float().cpu().contiguous() for key, value in state.items()}


def save_weights(directory: Path, model: PreTrainedModel, config: LoraConfig, base: str) -> None:
    """Write `adapter_config.json` and `adapter_model.safetensors`; base: the model's name, for people."""
    stored = copy.deepcopy(config)
    stored.inference_mode = True
    stored.base_model_name_or_path = base
    stored.save_pretrained(str(directory))
    content = json.loads((directory / CONFIG).read_bytes())
    content["target_modules"] = sorted(content["target_modules"])  # peft keeps a set, in another order every time
    (directory / CONFIG).write_text(json.dumps(content, indent=2, sort_keys=True))
    save_file(adapter_weights(model), str(directory / WEIGHTS), metadata={"format": "pt"})


def load_weights(model: PreTrainedModel, weights: dict[str, torch.Tensor]) -> None:
    """Set the LoRA weights of a fork; raises ModelError unless exactly its keys are given."""
    given = {key.removeprefix(_PREFIX): value for key, value in weights.items()}
    wanted = get_peft_model_state_dict(model, adapter_name="default", save_embedding_layers=False)
    odd = sorted({key for key in wanted.keys() | given.keys() if _shape(wanted, key) != _shape(given, key)})
    if odd:
        raise ModelError(
            f"the adapter's weights do not fit the model at {odd[0]}", "train it again: comem distill --help"
        )
    set_peft_model_state_dict(model, given, adapter_name="default")


def read_weights(adapter: Adapter) -> tuple[LoraConfig, dict[str, torch.Tensor]]:
    """Read what peft stored of an adapter; raises ModelError where it cannot be read."""
    try:
        return LoraConfig.from_pretrained(str(adapter.directory)), load_file(str(adapter.directory / WEIGHTS))
    except Exception as error:  # safetensors and json raise their own
        raise ModelError(f"cannot read the adapter {adapter.directory}: {error}", f"check its {CONFIG}") from error


def adapted(model: PreTrainedModel, adapter: Adapter, *, merge: bool = True, in_place: bool = False) -> PreTrainedModel:
    """Return a fork of `model` that carries an adapter.

    merge: add alpha/r * B A to the weights (Hu et al. 2022, eq. 3), so that Read and decode cost what they cost without
    an adapter. Each merged weight is then a tensor of its own beside the stock one; in_place overwrites the stock one
    instead and takes no memory, and `model` is no stock model after it. Raises ModelError where weights do not fit.
    """
    copied = fork(model)
    config, weights = read_weights(adapter)
    inject(copied, config)
    load_weights(copied, weights)
    if merge:
        merge_weights(copied, in_place=in_place)
    copied.requires_grad_(False)
    return copied


@torch.no_grad()
def merge_weights(model: PreTrainedModel, *, in_place: bool = False) -> None:
    """Put each LoRA layer's product into its weight, summed in fp32 and rounded once, and drop the LoRA layer."""
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if not isinstance(child, LoraLayer):
                continue
            layer: Any = child
            plain, scale = layer.get_base_layer(), layer.scaling["default"]
            delta = scale * (layer.lora_B["default"].weight.float() @ layer.lora_A["default"].weight.float())
            merged = (plain.weight.float() + delta).to(plain.weight.dtype)
            if in_place:
                plain.weight.copy_(merged)
            else:
                plain.weight = nn.Parameter(merged, requires_grad=False)
            parent._modules[name] = plain


def _shape(state: dict[str, torch.Tensor], key: str) -> tuple[int, ...] | None:
    return tuple(state[key].shape) if key in state else None
