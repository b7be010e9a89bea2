"""FLOPs of the lower half against torch's own counter and against sums by hand."""

import json

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from comem_cli.model.flops import LowerFlops, lower_flops
from comem_cli.model.split import SplitModel
from tests.tiny import tiny_model


def config_of(model, folder):
    (folder / "config.json").write_text(json.dumps(model.config.to_dict(), default=str))
    return folder


@pytest.mark.parametrize("family", ["llama", "qwen3", "gemma3_text"])
def test_matmul_flops_are_those_that_torch_counts(tmp_path, family):
    model = tiny_model(family, 6)
    flops = lower_flops(config_of(model, tmp_path), 4)
    with torch.inference_mode(), FlopCounterMode(display=False) as counter:
        SplitModel(model, 4).lower(torch.ones(1, 48, dtype=torch.int64))
    counted = counter.get_flop_counts()["Global"]
    products = sum(n for op, n in counted.items() if "mm" in str(op))
    assert len(flops.windows) * 2 * flops.parameters * 48 == pytest.approx(products, rel=0.02)  # with RoPE's


def test_attention_counts_each_visible_key_once():
    one = LowerFlops(parameters=0, attention=10, windows=(None,))
    assert one.forward(0, 4) == 4 * 10 * (1 + 2 + 3 + 4)
    assert one.forward(5, 2) == 4 * 10 * (6 + 7)
    assert one.forward(0, 100) == sum(one.forward(past, 1) for past in range(100))
    windowed = LowerFlops(parameters=0, attention=10, windows=(3, None))
    assert windowed.forward(0, 5) == 4 * 10 * ((1 + 2 + 3 + 3 + 3) + 15)
    assert windowed.forward(7, 2) == 4 * 10 * (3 + 3 + 8 + 9)


def test_a_wider_context_of_qwen3_8b_costs_a_little_more_than_its_tokens(tmp_path):
    sizes = {"hidden_size": 4096, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128}
    (tmp_path / "config.json").write_text(json.dumps({**sizes, "intermediate_size": 12288}))
    flops = lower_flops(tmp_path, 12)
    assert flops.parameters == 192_937_984  # q, k, v, o and the MLP
    for left in (32, 128):
        ratio = flops.forward(0, 512 + left) / flops.forward(0, 512)
        assert 1 + left / 512 < ratio < 1 + 1.02 * left / 512


def test_a_routed_model_counts_the_experts_that_a_token_reaches(tmp_path):
    model = tiny_model("qwen3_moe", 6)
    flops = lower_flops(config_of(model, tmp_path), 4)
    layer = model.base_model.layers[1]
    attention = sum(p.numel() for name, p in layer.self_attn.named_parameters() if "proj" in name)
    assert flops.parameters == attention + 2 * 3 * 64 * 32
