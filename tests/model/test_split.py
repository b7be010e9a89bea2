"""The two halves against the stock Transformers forward, at length for five families; the rest: test_families.py."""

import pytest
import torch

from comem_cli.errors import UsageError
from comem_cli.measure import contracts
from comem_cli.model.split import SplitModel
from tests.tiny import BOS_ID, FAMILIES, tiny_model

LAYERS = 6
IDS = [(7 * i * i + 11 * i) % 500 + 3 for i in range(60)]  # longer than the sliding window of 16


@pytest.fixture(scope="module", params=sorted(FAMILIES))
def model(request):
    return tiny_model(request.param, LAYERS)


def test_lower_then_upper_equals_the_stock_forward_at_every_split(model):
    assert contracts.partition_error(model, IDS) == 0.0


@pytest.mark.parametrize("split", [0, 1, 3, LAYERS])
def test_lower_half_equals_the_stock_hidden_states(model, split):
    batch = torch.tensor([IDS])
    with torch.inference_mode():
        stock = model(batch, use_cache=False, output_hidden_states=True).hidden_states
        h = SplitModel(model, split).lower(batch)
    if split < LAYERS:  # Transformers reports the last one after the final norm
        assert torch.equal(h, stock[split])
    else:
        assert torch.equal(model.base_model.norm(h), stock[split])


def test_replay_equals_stock_generate_token_for_token(model):
    assert contracts.replay_mismatches(model, BOS_ID, IDS[:40], IDS[40:], new_tokens=24) == 0


def test_replay_without_a_bos_equals_stock_generate(model):
    assert contracts.replay_mismatches(model, None, IDS[:40], IDS[40:], new_tokens=8) == 0


@pytest.mark.parametrize("split", [0, 2, 3, LAYERS])
def test_continuous_prefix_oracle_equals_replay_bit_for_bit(model, split):
    assert contracts.oracle_error(model, BOS_ID, IDS, split) == 0.0


@pytest.mark.parametrize("split", [0, 2, 5, LAYERS])
def test_cached_decode_equals_recomputing_every_token(model, split):
    worst, flips = contracts.decode_error(model, BOS_ID, IDS[:40], IDS[40:], split, new_tokens=12)
    assert worst <= 1e-4
    assert flips == 0


def test_the_halves_share_every_weight(model):
    split = SplitModel(model, 2)
    pointers = {p.data_ptr() for p in model.parameters()}
    halves = [*split._lower.parameters(), *split._upper.parameters()]
    assert {p.data_ptr() for p in halves} <= pointers


def test_building_halves_leaves_the_model_as_it_was(model):
    batch = torch.tensor([IDS])
    with torch.inference_mode():
        before = model(batch, use_cache=False).logits
        SplitModel(model, 3)
        assert torch.equal(model(batch, use_cache=False).logits, before)
    assert model.config.num_hidden_layers == LAYERS
    assert [layer.self_attn.layer_idx for layer in model.base_model.layers] == list(range(LAYERS))


@pytest.mark.parametrize("split", [-1, LAYERS + 1])
def test_a_split_outside_the_layers_is_a_usage_error(split):
    with pytest.raises(UsageError, match=r"outside 0\.\.6"):
        SplitModel(tiny_model("llama", LAYERS), split)
