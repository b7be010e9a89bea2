"""Reserved KV buffers against Transformers' growing ones."""

import copy

import pytest
import torch
from transformers import DynamicCache

from comem_cli.model.split import SplitModel
from comem_cli.read.cache import Kept, PackCache, ReservedLayer, reserve
from comem_cli.read.generate import Reader, Sampling
from tests.tiny import BOS_ID, tiny_model

FAMILIES = ["llama", "gemma3_text", "qwen3_moe", "gpt2", "bloom", "deepseek_v3", "gpt_oss", "lfm2", "qwen3_next"]
PIECES = (7, 1, 1, 5, 1, 9)  # positions of each update


def _pieces(seed=0):
    torch.manual_seed(seed)
    return [(torch.randn(2, 3, n, 4), torch.randn(2, 3, n, 4)) for n in PIECES]


@pytest.mark.parametrize("capacity", [1, 8, 24, 100])
def test_every_update_returns_what_a_growing_cache_returns(capacity):
    ours, theirs = reserve(DynamicCache(), capacity), DynamicCache()
    ours.layers = [ReservedLayer(capacity)]
    for keys, values in _pieces():
        found, wanted = ours.update(keys, values, 0), theirs.update(keys, values, 0)
        assert all(torch.equal(a, b) for a, b in zip(found, wanted, strict=True))
        assert ours.get_seq_length() == theirs.get_seq_length()


def test_within_its_room_nothing_that_is_there_is_copied():
    layer = ReservedLayer(sum(PIECES))
    places = {layer.update(*piece)[0].data_ptr() for piece in _pieces()}
    assert len(places) == 1


def test_a_cropped_a_selected_and_a_copied_layer_go_on_alone():
    pieces = _pieces()
    layer = ReservedLayer(40)
    layer.update(*pieces[0])
    twin = copy.deepcopy(layer)
    layer.update(*pieces[1])
    layer.crop(-1)
    assert torch.equal(layer.update(*pieces[2])[0], torch.cat([pieces[0][0], pieces[2][0]], 2))
    assert torch.equal(twin.update(*pieces[1])[0], torch.cat([pieces[0][0], pieces[1][0]], 2))
    twin.batch_select_indices(torch.tensor([1]))
    keys, _ = twin.update(pieces[2][0][1:], pieces[2][1][1:])
    assert torch.equal(keys, torch.cat([pieces[0][0], pieces[1][0], pieces[2][0]], 2)[1:])
    twin.reset()
    assert twin.get_seq_length() == 0
    assert torch.equal(twin.update(*pieces[3])[0], pieces[3][0])


def test_sliding_layers_keep_their_window():
    split = SplitModel(tiny_model("gemma3_text", 6), 2)
    kinds = [type(layer) for layer in split.upper_cache().layers]
    reserved = [type(layer) for layer in reserve(split.upper_cache(), 9).layers]
    assert any(kind.__name__ != "DynamicLayer" for kind in kinds)
    for kind, now in zip(kinds, reserved, strict=True):
        assert now is (ReservedLayer if kind.__name__ == "DynamicLayer" else kind)


def _kept(positions):
    cache = DynamicCache()
    cache.layers = [ReservedLayer(positions)]
    cache.update(torch.randn(1, 2, positions, 4), torch.randn(1, 2, positions, 4), 0)
    return Kept(cache, positions)


def test_the_packs_used_longest_ago_go_first_and_bytes_stay_bounded():
    packs = PackCache(3 * 2 * 2 * 10 * 4 * 4)  # three caches of 10 positions: keys and values, 2 heads of 4 fp32
    caches = {name: _kept(10) for name in "abcd"}
    for name in "abc":
        packs.put(name, caches[name])
    assert packs.size == packs.limit
    assert packs.get("a") is caches["a"]
    packs.put("d", caches["d"])
    assert packs.get("b") is None
    assert [packs.get(name) is caches[name] for name in "acd"] == [True] * 3
    packs.put("huge", _kept(31))
    assert packs.get("huge") is None
    assert packs.size == sum(caches[name].nbytes for name in "acd")


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("split", [0, 2, 5])
def test_a_kept_pack_gives_the_bits_of_one_just_read_and_the_tokens_of_one_step(family, split):
    halves = SplitModel(tiny_model(family, 6), split)
    reader = Reader(halves, BOS_ID)
    rows = reader.split.lower(torch.arange(3, 63)[None])[0]
    sampling = Sampling(max_new_tokens=20)
    first = reader.prefill(rows)
    queries = ([5, 9, 200, 31], [7, 7, 8], [5, 9, 200, 31])
    found = [reader.decode(reader.start_after(first, query, sampling), sampling) for query in queries]
    assert found[0].ids == found[2].ids
    for query, done in zip(queries, found, strict=True):
        alone = reader.decode(reader.start_after(reader.prefill(rows), query, sampling), sampling)
        assert done.ids == alone.ids
        assert done.pack_tokens == alone.pack_tokens == 61 + len(query)
        assert done.ids == reader.generate(rows, query, sampling).ids


def test_a_kept_pack_is_not_changed_by_the_questions_after_it():
    reader = Reader(SplitModel(tiny_model("gemma3_text", 6), 2), BOS_ID)
    kept = reader.prefill(reader.split.lower(torch.arange(3, 63)[None])[0])
    before = [(layer.keys.clone(), layer.values.clone()) for layer in kept.cache.layers]
    reader.decode(reader.start_after(kept, [4, 5, 6], Sampling()), Sampling(max_new_tokens=20))
    for layer, (keys, values) in zip(kept.cache.layers, before, strict=True):
        assert torch.equal(layer.keys, keys)
        assert torch.equal(layer.values, values)
