"""Several query parts read after one pack: the logits, and the gradients, of forwards of their own."""

import pytest
import torch

from comem_cli.errors import ModelError
from comem_cli.model import lora
from comem_cli.model.distill_read import place_parts, read_packs, read_parts, say
from comem_cli.model.split import SplitModel
from tests.tiny import FAMILIES, tiny_model

SPLIT, LAYERS = 1, 4
PACKS = (60, 41)  # tokens; longer than the sliding window of 16
PARTS = ((20, 7, 33), (5, 25))


def ids(seed, count):
    return torch.randint(3, 500, (count,), generator=torch.Generator().manual_seed(seed))


PACK_IDS = [ids(n, size) for n, size in enumerate(PACKS)]
PART_IDS = [[ids(10 * n + at + 2, size) for at, size in enumerate(sizes)] for n, sizes in enumerate(PARTS)]


@pytest.fixture(scope="module", params=sorted(FAMILIES))
def split(request):
    return SplitModel(tiny_model(request.param, LAYERS), SPLIT)


def rows(split, tokens):
    with torch.no_grad():
        return split.lower(tokens[None])[0]


def together(split):
    """Return logits of packs and of parts, pack by pack, from the two joint forwards."""
    whole = [torch.ones(size, dtype=torch.bool) for size in PACKS]
    seen, state = read_packs(split, [rows(split, one) for one in PACK_IDS], whole)
    own = [torch.cat([rows(split, one) for one in parts]) for parts in PART_IDS]
    keep = [torch.ones(len(one), dtype=torch.bool) for one in own]
    return seen, read_parts(split, state, own, PARTS, keep)


def alone(split):
    """Return the same from one causal forward for each part."""
    seen, said = [], []
    for pack, parts in zip(PACK_IDS, PART_IDS, strict=True):
        for part in parts:
            logits = split.upper(torch.cat([rows(split, pack), rows(split, part)])[None], keep=0)[0]
            said.append(logits[len(pack) :])
        seen.append(logits[: len(pack)])
    return torch.cat(seen), torch.cat(said)


@torch.no_grad()
def test_logits_of_each_part_are_those_of_a_forward_of_its_own(split):
    for ours, wanted in zip(together(split), alone(split), strict=True):
        assert ours.shape == wanted.shape
        assert (ours - wanted).abs().max() <= 1e-5


def test_gradients_are_those_of_forwards_of_their_own(split):
    forked = lora.fork(split.model)
    weights = lora.inject(forked, lora.lora_config(forked, SPLIT, LAYERS, 2, 4), seed=1)
    for number, (_, weight) in enumerate(weights):
        weight.data.normal_(std=0.05, generator=torch.Generator().manual_seed(number))
    student = SplitModel(forked, SPLIT)
    found = []
    for read in (together, alone):
        for _, weight in weights:
            weight.grad = None
        read(student)[1].float().log_softmax(-1)[:, 7].sum().backward()
        found.append({name: weight.grad.clone() for name, weight in weights if weight.grad is not None})
    ours, wanted = found
    assert ours.keys() == wanted.keys()
    for name, gradient in wanted.items():
        assert torch.allclose(ours[name], gradient, rtol=1e-3, atol=1e-4 * float(gradient.abs().max() + 1)), name


@torch.no_grad()
def test_greedy_answers_are_those_of_recomputing_everything(split):
    _, state = read_packs(
        split, [rows(split, one) for one in PACK_IDS], [torch.ones(n, dtype=torch.bool) for n in PACKS]
    )
    before = [layer.keys.clone() for layer in state.cache.layers]
    teacher = SplitModel(split.model, 0)
    _, full = read_packs(
        teacher, [rows(teacher, one) for one in PACK_IDS], [torch.ones(n, dtype=torch.bool) for n in PACKS]
    )
    prompt = PART_IDS[1][0].tolist()
    told = say(teacher, full, 1, prompt, 5)
    text = [*PACK_IDS[1].tolist(), *prompt]
    for token in told:
        assert token == int(split.model(torch.tensor([text])).logits[0, -1].argmax())
        text.append(token)
    assert all(torch.equal(a, layer.keys) for a, layer in zip(before, state.cache.layers, strict=True))


def test_positions_and_masks_by_hand():
    positions, mask = place_parts([3, 2], [[2, 1], [1]], tiny_model("llama", 1).config)
    assert positions.tolist() == [[3, 4, 3], [2, 2, 3]]  # the rest of the second row is padding
    assert mask[0, 0].int().tolist() == [[1, 1, 1, 1, 0, 0], [1, 1, 1, 1, 1, 0], [1, 1, 1, 0, 0, 1]]
    assert mask[1, 0, 0].int().tolist() == [1, 1, 0, 1, 0, 0]
    assert bool(mask.any(-1).all())
    near = place_parts([3], [[2, 1]], tiny_model("gemma3_text", 1, sliding_window=2).config)[1]
    assert near["sliding_attention"][0, 0].int().tolist() == [
        [0, 0, 1, 1, 0, 0],
        [0, 0, 0, 1, 1, 0],
        [0, 0, 1, 0, 0, 1],
    ]
    assert near["full_attention"].shape == (1, 1, 3, 6)


def test_other_layers_are_refused():
    config = tiny_model("llama", 1).config
    config.layer_types = ["linear_attention"]
    with pytest.raises(ModelError, match="linear_attention"):
        place_parts([3], [[2]], config)
