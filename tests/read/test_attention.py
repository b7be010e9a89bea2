"""Attention masses of chunks against the weights that Transformers gives with eager attention."""

from __future__ import annotations

import pytest
import torch

from comem_cli.model.attention import group_queries
from comem_cli.model.split import SplitModel
from comem_cli.read.attention import attention_masses
from comem_cli.read.generate import Reader
from tests.tiny import BOS_ID, tiny_model

IDS = [(7 * i * i + 11 * i) % 500 + 3 for i in range(60)]
LENGTHS = (20, 9, 16)
QUERY = IDS[45:]


@pytest.mark.parametrize("family", ["llama", "qwen3", "gemma3_text"])
@pytest.mark.parametrize("bos", [BOS_ID, None])
def test_masses_at_split_0_equal_the_weights_of_eager_attention(family, bos):
    model = tiny_model(family, 4, initializer_range=0.2)
    reader = Reader(SplitModel(model, 0), bos)
    found = attention_masses(reader, reader.rows_from_ids(IDS[:45]), QUERY, LENGTHS)

    model.set_attn_implementation("eager")
    head = [] if bos is None else [bos]
    with torch.inference_mode():
        weights = model(torch.tensor([[*head, *IDS]]), output_attentions=True).attentions
    mean = torch.stack([layer[0, :, -len(QUERY) :].float().mean((0, 1)) for layer in weights]).mean(0)
    expected, start = [], len(head)
    for length in LENGTHS:
        expected.append(float(mean[start : start + length].sum()))
        start += length
    assert found == pytest.approx(expected, rel=1e-4)


def test_reading_leaves_transformers_as_it_was_and_split_L_has_no_mass():
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    before = ALL_ATTENTION_FUNCTIONS["sdpa"]
    model = tiny_model("llama", 4)
    reader = Reader(SplitModel(model, 4), BOS_ID)
    assert attention_masses(reader, torch.zeros(45, model.config.hidden_size), QUERY, LENGTHS) == [0.0, 0.0, 0.0]
    assert ALL_ATTENTION_FUNCTIONS["sdpa"] is before


def test_a_model_that_decodes_by_groups_gives_the_same_masses():
    """As `load` returns them: their attention has a name of its own."""
    found = []
    for prepare in (lambda model: None, group_queries):
        model = tiny_model("llama", 4, initializer_range=0.2)
        prepare(model)
        reader = Reader(SplitModel(model, 1), BOS_ID)
        rows = reader.split.lower(torch.tensor([IDS[:45]]))[0]
        found.append(attention_masses(reader, rows, QUERY, LENGTHS))
    assert found[1] == pytest.approx(found[0], rel=1e-5)
    assert min(found[1]) > 0
