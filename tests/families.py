"""Tiny models of every proved family; `python -m tests.families` measures them and prints docs/families.md."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from comem_cli.model.families import FAMILIES, PROVED_FAMILIES, RECURRENT, REFUSED, layer_types
from tests.tiny import BOS_ID, MATRIX, tiny_model

if TYPE_CHECKING:
    from transformers import PreTrainedModel

LAYERS = 6
IDS = [(7 * i * i + 11 * i) % 500 + 3 for i in range(60)]  # longer than the sliding window of 16
CHUNKS, QUERY = IDS[:40], IDS[40:]
EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts")
# Published models whose config.json names the family; only tiny random ones of each are tested here.
EXAMPLES = {
    "bloom": "BLOOM, BLOOMZ",
    "cohere2": "Command R7B, Command A",
    "deepseek_v3": "DeepSeek-V3, R1",
    "falcon": "Falcon 7B, 40B",
    "gemma": "Gemma 2B, 7B",
    "gemma2": "Gemma 2",
    "gemma3_text": "Gemma 3 270M, 1B",
    "gemma4_text": "Gemma 4 without per-layer inputs",
    "glm4": "GLM-4-0414",
    "gpt2": "GPT-2",
    "gpt_neox": "Pythia, GPT-NeoX",
    "gpt_oss": "gpt-oss",
    "granite": "Granite 3 dense",
    "hunyuan_v1_dense": "Hunyuan dense",
    "hy_v3": "Hunyuan Hy3",
    "lfm2": "LFM2",
    "llama": "Llama 2 and 3, SmolLM2",
    "ministral3": "Ministral 3",
    "mistral": "Mistral 7B",
    "mixtral": "Mixtral",
    "nemotron": "Nemotron-4, Minitron",
    "olmo2": "OLMo 2",
    "olmo3": "OLMo 3",
    "opt": "OPT",
    "phi3": "Phi-3 4k, Phi-4",
    "qwen2": "Qwen2, Qwen2.5",
    "qwen3": "Qwen3 dense",
    "qwen3_5_text": "Qwen3.5 text",
    "qwen3_moe": "Qwen3 MoE",
    "qwen3_next": "Qwen3-Next",
    "smollm3": "SmolLM3",
    "stablelm": "StableLM",
    "starcoder2": "StarCoder2",
}


@dataclass(frozen=True)
class Figures:
    """What the table shows: max |Δlogit| over all j, and of cached decode, relative to the largest logit."""

    partition: float
    decode: float


def lively_model(family: str, layers: int = LAYERS, **extra: Any) -> PreTrainedModel:
    """A tiny model whose norms, biases, sinks and gates are random, too: those of a fresh one are all 1 or 0."""
    import torch

    model = tiny_model(family, layers, initializer_range=0.1, **extra)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for tensor in (*model.parameters(), *(b for name, b in model.named_buffers() if name.endswith("bias"))):
            if tensor.dim() == 1:
                tensor.add_(0.2 * torch.randn(tensor.shape, generator=generator))
    return model


def measure(model: PreTrainedModel) -> Figures:
    """Run the two contracts of the table."""
    from comem_cli.measure import contracts

    decoded = [contracts.decode_error(model, BOS_ID, CHUNKS, QUERY, j, new_tokens=5) for j in (0, 3, 5)]
    return Figures(contracts.partition_error(model, IDS), max(worst for worst, _ in decoded))


def notes(family: str, config: Any) -> str:
    """Say what is special about a family."""
    types, said = set(layer_types(config)), []
    if types & RECURRENT:
        said.append("recurrent layers")
    if getattr(config, "sliding_window", None):
        said.append("sliding window" + (" and full layers" if "full_attention" in types else ""))
    if any(getattr(config, key, None) for key in EXPERTS):
        said.append("MoE")
    if getattr(config, "kv_lora_rank", None):
        said.append("latent attention")
    if config._attn_implementation == "eager":
        said.append("eager attention")
    if FAMILIES[family].fixed:
        said.append("fixed positions")
    return ", ".join(said)


PAGE = """# Model families

A family is the `model_type` of config.json. comem accepts a model only where tests prove its split exact: layers [0:j)
and then [j:L) give the logits of the stock Transformers forward, bit for bit, at every j (fp32, CPU). The figures are
of tiny random models ({layers} layers, width 64, {tokens} tokens; every norm, bias and multiplier away from 1), printed
by `python -m tests.families`; `comem verify` measures your own model. Cached decode: max |Δlogit| / max(1, max |logit|)
of decoding with two caches against recomputing everything for every token, at j = 0, 3 and 5.

| family | example models | max \\|Δlogit\\| over all j | cached decode | notes |
|---|---|---|---|---|
"""
AFTER = """
- *MoE*: Write runs one chunk a batch, so that routing cannot change a residual's bits.
- *Recurrent layers*: the state of a chunk begins at its first token, as its keys do, and Read runs the upper recurrent
  layers over the pack. In document mode the state goes on past the model's window, where keys are dropped; residuals
  of that mode may differ from slices of one forward by 1e-4 (fp32), because the state is summed in other blocks. Block
  attention and `distill` are refused.
- *Eager attention*: soft caps, sinks or ALiBi, for which Transformers has no SDPA kernel: slower, and more memory in a
  long Read. The attention selector is refused, and so it is for falcon, whose attention is its own.
- *Fixed positions*: learned positions (gpt2, opt) are part of a residual when it is written, and ALiBi (bloom) counts
  keys. Read can neither move nor mask chunks there, so `--read-positions origin`, `--attention block` and `distill` are
  refused.
- `distill` adapts every `nn.Linear` of the layers, but not routed experts, nor shared ones where peft takes their names
  for those of routed ones (deepseek_v3, qwen3_next); gpt2 has no `nn.Linear`.

Refused in every family: rotary scaling that depends on the length of the input (`dynamic`, `longrope`), because a
residual's bits would depend on what it is read with; multimodal models. Refused by name:

"""


def page() -> str:
    """Measure every family and write the page."""
    lines = [PAGE.format(layers=LAYERS, tokens=len(IDS))]
    for family in PROVED_FAMILIES:
        model = lively_model(family)
        found = measure(model)
        about = notes(family, model.config)
        lines.append(f"| {family} | {EXAMPLES[family]} | {found.partition:.1g} | {found.decode:.1e} | {about} |\n")
    lines.append(AFTER)
    lines += [f"- {family}: {reason}\n" for family, reason in sorted(REFUSED.items())]
    lines.append(
        "- models of proved families: gemma4_text with per-layer inputs or shared keys, falcon with ALiBi, opt with "
        "narrow embeddings\n"
    )
    return "".join(lines)


if __name__ == "__main__":
    import sys

    assert set(EXAMPLES) == set(MATRIX)
    sys.stdout.write(page())
