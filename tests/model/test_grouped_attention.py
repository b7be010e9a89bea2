"""Grouped decode attention against Transformers' own SDPA."""

import pytest
import torch
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from comem_cli.model.attention import NAME, group_queries, grouped_sdpa
from tests.tiny import tiny_model


class Module(torch.nn.Module):
    is_causal = True

    def __init__(self, groups):
        super().__init__()
        self.num_key_value_groups = groups


@pytest.mark.parametrize(("heads", "kv_heads"), [(9, 3), (4, 4), (8, 1)])
@pytest.mark.parametrize("positions", [1, 5])
@pytest.mark.parametrize("scaling", [None, 0.3])
def test_it_attends_as_sdpa_does(heads, kv_heads, positions, scaling):
    torch.manual_seed(0)
    query = torch.randn(2, heads, positions, 16)
    key, value = torch.randn(2, kv_heads, 50, 16), torch.randn(2, kv_heads, 50, 16)
    module = Module(heads // kv_heads)
    found, _ = grouped_sdpa(module, query, key, value, None, scaling=scaling, dropout=0.0)
    wanted, _ = sdpa_attention_forward(module, query, key, value, None, scaling=scaling)
    assert found.shape == wanted.shape
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-6)


def test_a_mask_and_a_prefill_are_left_to_transformers():
    torch.manual_seed(0)
    query, key = torch.randn(1, 4, 1, 16), torch.randn(1, 2, 50, 16)
    mask = torch.ones(1, 1, 1, 50, dtype=torch.bool)
    mask[..., :20] = False
    found, _ = grouped_sdpa(Module(2), query, key, key, mask)
    wanted, _ = sdpa_attention_forward(Module(2), query, key, key, mask)
    assert torch.equal(found, wanted)


@pytest.mark.parametrize("family", ["llama", "gemma3_text", "qwen3_moe"])
def test_a_model_decodes_the_same_tokens_and_prefills_the_same_bits(family):
    stock, ours = tiny_model(family, 4), tiny_model(family, 4)
    stock.set_attn_implementation("sdpa")
    ours.set_attn_implementation("sdpa")
    group_queries(ours)
    assert ours.config._attn_implementation == NAME
    ids = torch.arange(3, 63)[None]
    with torch.inference_mode():
        assert torch.equal(stock(ids).logits, ours(ids).logits)
        wanted = stock.generate(ids, max_new_tokens=30, do_sample=False)
        assert torch.equal(ours.generate(ids, max_new_tokens=30, do_sample=False), wanted)


def test_a_model_with_another_attention_stays_as_it_is():
    model = tiny_model("llama", 2)
    model.set_attn_implementation("eager")
    group_queries(model)
    assert model.config._attn_implementation == "eager"
