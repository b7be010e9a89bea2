"""Reserved KV buffers against Transformers' growing ones."""

import copy

import pytest
import torch
from transformers import DynamicCache

from comem_cli.model.split import SplitModel
from comem_cli.read.cache import ReservedLayer, reserve
from tests.tiny import tiny_model

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
