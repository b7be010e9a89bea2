"""Read variants against the stock model's own layers, with explicit positions and additive masks."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from comem_cli.errors import ModelError, UsageError
from comem_cli.model.split import SplitModel
from comem_cli.read.generate import Reader, Sampling
from comem_cli.read.layout import FRESH, Layout, ReadVariant
from tests.read import stock
from tests.tiny import BOS_ID, FAMILIES, tiny_model

LENGTHS = (24, 9, 24)
STARTS = (48, 72, 0)  # two chunks of one document, then the first of another: positions jump back
QUERY = [40, 41, 42, 43, 44]
NEW = 5


@pytest.fixture(scope="module", params=sorted(FAMILIES))
def model(request):
    return tiny_model(request.param, 6, initializer_range=0.2)


def chunk_ids(number: int) -> list[int]:
    return [(31 * number + 7 * i * i + 11 * i) % 500 + 3 for i in range(LENGTHS[number])]


@pytest.mark.parametrize("positions", ["fresh", "origin"])
@pytest.mark.parametrize("attention", ["full", "block"])
@pytest.mark.parametrize(("split", "bos"), [(0, BOS_ID), (2, BOS_ID), (4, None)])
def test_a_variant_equals_the_stock_layers_with_explicit_positions_and_mask(model, positions, attention, split, bos):
    with torch.inference_mode():
        chunks = [stock.residuals(model, chunk_ids(n), split) for n in range(len(LENGTHS))]
    layout = Layout(ReadVariant(positions, attention), LENGTHS, STARTS)
    reader = Reader(SplitModel(model, split), bos)
    got = reader.generate(torch.cat(chunks), QUERY, Sampling(max_new_tokens=NEW), layout=layout)
    starts = STARTS if positions == "origin" else None
    wanted = stock.greedy(model, split, chunks, QUERY, NEW, bos=bos, starts=starts, block=attention == "block")
    assert got.ids == wanted


@pytest.mark.parametrize("positions", ["fresh", "origin"])
@pytest.mark.parametrize("attention", ["full", "block"])
def test_the_first_logits_of_a_variant_are_those_of_the_stock_layers(model, positions, attention):
    split = SplitModel(model, 2)
    with torch.inference_mode():
        chunks = [stock.residuals(model, chunk_ids(n), 2) for n in range(len(LENGTHS))]
        reader = Reader(split, BOS_ID)
        pack = reader.pack(torch.cat(chunks), QUERY, split.lower_cache())
        layout = Layout(ReadVariant(positions, attention), LENGTHS, STARTS)
        logits, _ = reader.read(pack, len(QUERY), split.upper_cache(), layout)
        ids = layout.position_ids(1, len(QUERY))
        places = list(range(pack.shape[1])) if ids is None else ids[0].tolist()
        owner = [-1] + [n for n, length in enumerate(LENGTHS) for _ in range(length)] + [9] * len(QUERY)
        block = attention == "block"
        allowed = [
            [k <= q and (not block or owner[q] == 9 or owner[k] in (-1, owner[q])) for k in range(len(owner))]
            for q in range(len(owner))
        ]
        wanted = stock.upper_logits(model, pack[0], 2, places, allowed)[-1]
    assert (logits[0, -1] - wanted).abs().max() <= 1e-4 * wanted.abs().max()


def test_variants_change_the_logits():
    model = tiny_model("llama", 6, initializer_range=0.2)
    split = SplitModel(model, 2)
    reader = Reader(split, BOS_ID)
    seen = []
    with torch.inference_mode():
        rows = torch.cat([stock.residuals(model, chunk_ids(n), 2) for n in range(len(LENGTHS))])
        for variant in [ReadVariant(p, a) for p in ("fresh", "origin") for a in ("full", "block")]:
            pack = reader.pack(rows, QUERY, split.lower_cache())
            layout = Layout(variant, LENGTHS, STARTS)
            seen.append(reader.read(pack, len(QUERY), split.upper_cache(), layout)[0])
    assert all(not torch.allclose(a, b, atol=1e-4) for i, a in enumerate(seen) for b in seen[:i])


@given(st.lists(st.integers(1, 40), min_size=1, max_size=5), st.integers(0, 1), st.integers(1, 9))
@settings(deadline=None, max_examples=30)
def test_a_whole_document_has_the_same_positions_either_way(lengths, bos, query):
    starts = tuple(sum(lengths[:n]) for n in range(len(lengths)))
    ids = Layout(ReadVariant("origin"), tuple(lengths), starts).position_ids(bos, query)
    assert ids is not None
    assert ids[0].tolist() == list(range(bos + sum(lengths) + query))


def test_origin_positions_of_several_documents_repeat_and_the_query_follows_the_largest():
    layout = Layout(ReadVariant("origin"), (2, 3), (4, 0))
    assert layout.position_ids(1, 2).tolist() == [[0, 5, 6, 1, 2, 3, 7, 8]]


def test_the_default_asks_for_neither_positions_nor_a_mask():
    assert FRESH.position_ids(1, 3) is None
    assert FRESH.attention_mask(1, 3, object()) is None


@pytest.mark.parametrize("names", [("later", "full"), ("fresh", "none")])
def test_an_unknown_variant_is_a_usage_error(names):
    with pytest.raises(UsageError, match="unknown"):
        ReadVariant(*names)


def test_layers_of_another_kind_are_refused_by_name():
    config = tiny_model("gemma3_text", 2).config
    config.layer_types = ["full_attention", "chunked_attention"]
    with pytest.raises(ModelError, match="chunked_attention"):
        Layout(ReadVariant(attention="block"), (2,), (0,)).attention_mask(1, 2, config)
