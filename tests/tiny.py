"""Tiny random models and one tiny byte-level BPE tokenizer (512 ids), for every test that needs a model.

`tiny_model` builds a fp32 model in memory, always with the same weights for the same arguments; `save_tiny` writes a
directory as the Hugging Face hub has it: config, generation config, safetensors, tokenizer.json and tokenizer config.
Ids 0, 1 and 2 are <pad>, <bos> and <eos>; every other id decodes to text.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import tokenizers
    from transformers import PreTrainedModel

VOCABULARY = 512
PAD_ID, BOS_ID, EOS_ID = 0, 1, 2
WIDTH = 64

COMMON: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": WIDTH,
    "intermediate_size": 96,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 512,
    "pad_token_id": PAD_ID,
    "bos_token_id": BOS_ID,
    "eos_token_id": EOS_ID,
}
MOE: dict[str, Any] = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {},
    "qwen3": {},
    "gemma3_text": {"sliding_window": 16},
    "qwen3_moe": {**MOE, "decoder_sparse_step": 1, "mlp_only_layers": [0]},
    "hy_v3": {**MOE, "first_k_dense_replace": 1},
}

SLIDING: dict[str, Any] = {"sliding_window": 16}
LINEAR: dict[str, Any] = {
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
}
HYBRID = ["linear_attention", "linear_attention", "full_attention"] * 2
OLDER: dict[str, Any] = {"num_key_value_heads": None, "head_dim": None}  # not among their settings
# One tiny config for every proved family; None leaves a setting to the family. Every scalar that a family multiplies
# with is away from 1: a multiplier of 1 hides that it is applied twice.
MATRIX: dict[str, dict[str, Any]] = {
    **FAMILIES,
    "bloom": {**OLDER, "intermediate_size": None},
    "cohere2": {**SLIDING, "logit_scale": 0.3},
    "deepseek_v3": {
        "n_routed_experts": 4,
        "num_experts_per_tok": 2,
        "n_group": 2,
        "topk_group": 1,
        "moe_intermediate_size": 32,
        "first_k_dense_replace": 1,
        "q_lora_rank": 16,
        "kv_lora_rank": 16,
        "qk_rope_head_dim": 8,
        "qk_nope_head_dim": 8,
        "v_head_dim": 16,
        "num_key_value_heads": 4,
        "head_dim": 8,
        "routed_scaling_factor": 2.5,
    },
    "falcon": {**OLDER, "new_decoder_architecture": True, "num_kv_heads": 2, "intermediate_size": None},
    "gemma": {},
    "gemma2": {**SLIDING, "query_pre_attn_scalar": 24, "attn_logit_softcapping": 2.0, "final_logit_softcapping": 1.0},
    "gemma4_text": {**SLIDING, "hidden_size_per_layer_input": 0, "num_kv_shared_layers": 0, "global_head_dim": 32},
    "glm4": {"partial_rotary_factor": 0.5},
    "gpt2": {**OLDER, "intermediate_size": None},
    "gpt_neox": {**OLDER, "rotary_pct": 0.5},
    "gpt_oss": {**SLIDING, "num_local_experts": 4, "num_experts_per_tok": 2},
    "granite": {
        "embedding_multiplier": 12.0,
        "residual_multiplier": 0.22,
        "attention_multiplier": 0.1,
        "logits_scaling": 8.0,
    },
    "hunyuan_v1_dense": {},
    "lfm2": {"layer_types": ["conv", "conv", "full_attention", "conv", "full_attention", "conv"]},
    "ministral3": {},
    "mistral": SLIDING,
    "mixtral": {**SLIDING, "num_local_experts": 4},
    "nemotron": {},
    "olmo2": {},
    "olmo3": SLIDING,
    "opt": {**OLDER, "intermediate_size": None, "ffn_dim": 96, "word_embed_proj_dim": 64},
    "phi3": {**SLIDING},
    "qwen2": {"use_sliding_window": True, **SLIDING, "max_window_layers": 3},
    "qwen3_5_text": {**LINEAR, "layer_types": HYBRID},
    "qwen3_next": {**MOE, **LINEAR, "layer_types": HYBRID, "shared_expert_intermediate_size": 32},
    "smollm3": {"no_rope_layer_interval": 4},
    "stablelm": {"use_qkv_bias": True, "qk_layernorm": True, "use_parallel_residual": True},
    "starcoder2": SLIDING,
}

# Enough distinct words for 512 - 256 - 3 merges; the indented lines make merges of blanks and of line ends.
_PROSE = """
The harbour master keeps a ledger of every vessel that enters or leaves the northern basin between dawn and dusk.
Questions about cargo, draught, berth number and departure are answered from that ledger, never from memory alone.
When a storm warning arrives the duty officer raises two black cones, closes the outer gate and calls the pilots home.
Visitors should read the safety handbook before they climb the lighthouse stairs because the handrail is being repaired.
A residual is written once for each token and replayed whenever somebody asks something about the same document again.

def measure(values):
    total = 0
    for value in values:
        if value is not None:
            total += value

    return total / len(values)


    # two blank lines and a comment
        # deeper
            # and deeper still
"""


def tiny_tokenizer() -> tokenizers.Tokenizer:
    """Train the byte-level BPE tokenizer: digits one by one, every byte known, lossless both ways."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=["<pad>", "<bos>", "<eos>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([_PROSE], trainer)
    assert tokenizer.get_vocab_size() == VOCABULARY
    return tokenizer


def tiny_model(family: str = "llama", layers: int = 6, *, seed: int = 0, **extra: Any) -> PreTrainedModel:
    """Build a random fp32 model of one family in eval mode; `extra` overrides its config.

    The global random generator of torch is left as it was.
    """
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    settings = {**COMMON, "num_hidden_layers": layers, **MATRIX[family], **extra}
    settings = {key: value for key, value in settings.items() if value is not None}
    config = AutoConfig.for_model(family, **settings)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    model.requires_grad_(False)
    return model.eval()


def save_tiny(directory: Path, family: str = "llama", layers: int = 6, *, seed: int = 0, **extra: Any) -> Path:
    """Write a tiny model with its tokenizer into `directory` (made where it is missing) and return the directory."""
    from transformers import PreTrainedTokenizerFast

    directory.mkdir(parents=True, exist_ok=True)
    tiny_model(family, layers, seed=seed, **extra).save_pretrained(directory)
    specials = {"pad_token": "<pad>", "bos_token": "<bos>", "eos_token": "<eos>"}
    PreTrainedTokenizerFast(tokenizer_object=tiny_tokenizer(), **specials).save_pretrained(directory)
    return directory
