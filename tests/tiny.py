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

    settings = {**COMMON, "num_hidden_layers": layers, **FAMILIES[family], **extra}
    config = AutoConfig.for_model(family, **settings)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation="sdpa")
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
