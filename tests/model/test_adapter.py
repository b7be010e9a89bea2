"""Adapter directories: what peft reads from them, what they are refused for, where they are found."""

import json
import shutil
from dataclasses import asdict
from types import SimpleNamespace

import pytest
import torch
from peft import PeftModel

from comem_cli.errors import FingerprintError, ModelError, UsageError
from comem_cli.model import adapter as adapters
from comem_cli.model import lora
from comem_cli.model.adapter import Interface, choose_adapter, read_adapter, record_of
from comem_cli.model.split import SplitModel
from tests.tiny import FAMILIES, tiny_model

SPLIT, LAYERS = 1, 3
HERE = Interface("aa", "bb", SPLIT, 48, "chunk", 0)
IDS = torch.randint(3, 500, (1, 30), generator=torch.Generator().manual_seed(0))


def write_adapter(folder, model, interface=HERE, seed=3):
    """Write an adapter with random weights in both factors; return the fork that carries it."""
    folder.mkdir(parents=True)
    forked = lora.fork(model)
    config = lora.lora_config(model, SPLIT, LAYERS, 4, 8)
    generator = torch.Generator().manual_seed(seed)
    for _, weight in lora.inject(forked, config):
        weight.data.normal_(std=0.1, generator=generator)
    lora.save_weights(folder, forked, config, "tiny")
    (folder / adapters.RECORD).write_text(json.dumps(record_of("suffix", interface, 4, 8)))
    return forked


@pytest.fixture(scope="module", params=sorted(FAMILIES))
def model(request):
    return tiny_model(request.param, LAYERS)


@pytest.fixture(scope="module")
def llama():
    return tiny_model("llama", LAYERS)


@torch.no_grad()
def read(model):
    split = SplitModel(model, SPLIT)
    return split.upper(split.lower(IDS), keep=0)


@torch.no_grad()
def test_peft_loads_it_on_the_stock_model_with_our_logits(model, tmp_path):
    stock = model(IDS).logits
    ours = read(write_adapter(tmp_path / "a", model))
    assert (ours - stock).abs().max() > 1e-3
    assert torch.equal(model(IDS).logits, stock)  # the original is as it was
    theirs = PeftModel.from_pretrained(lora.fork(model), str(tmp_path / "a"))
    assert torch.equal(theirs(IDS).logits, ours)


@torch.no_grad()
@pytest.mark.parametrize("in_place", [False, True])
def test_a_merged_adapter_reads_as_an_unmerged_one(model, tmp_path, in_place):
    wanted = read(write_adapter(tmp_path / "a", model))
    stock = model(IDS).logits
    target = lora.fork(model)
    if in_place:  # the weights of a fork are those of the original
        target.load_state_dict({k: v.clone() for k, v in model.state_dict().items()}, assign=True)
    merged = lora.adapted(target, read_adapter(tmp_path / "a"), in_place=in_place)
    assert (read(merged) - wanted).abs().max() <= 1e-5
    assert not any(".lora_" in name for name, _ in merged.named_parameters())
    assert torch.equal(model(IDS).logits, stock)
    assert torch.equal(target(IDS).logits, stock) is not in_place


@torch.no_grad()
def test_the_lower_half_is_the_stock_one(model, tmp_path):
    forked = write_adapter(tmp_path / "a", model)
    assert torch.equal(SplitModel(forked, SPLIT).lower(IDS), SplitModel(model, SPLIT).lower(IDS))


def test_keys_name_layers_of_the_full_model(llama, tmp_path):
    from safetensors.torch import load_file

    write_adapter(tmp_path / "a", llama)
    keys = load_file(str(tmp_path / "a" / adapters.WEIGHTS)).keys()
    assert len(keys) == 7 * 2 * (LAYERS - SPLIT)
    assert "base_model.model.model.layers.1.self_attn.q_proj.lora_A.weight" in keys
    assert not any(".layers.0." in key for key in keys)


def test_the_same_adapter_is_the_same_bytes(llama, tmp_path):
    for name in "ab":
        write_adapter(tmp_path / name, llama)
    for name in (adapters.CONFIG, adapters.WEIGHTS):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


def test_a_new_adapter_changes_nothing(llama):
    forked = lora.fork(llama)
    lora.inject(forked, lora.lora_config(llama, SPLIT, LAYERS, 4, 8), seed=1)
    with torch.no_grad():
        assert torch.equal(read(forked), read(llama))


def test_a_seed_gives_the_same_first_weights_and_leaves_the_generator(llama):
    drawn = []
    for seed in (1, 1, 2):
        torch.manual_seed(5)
        forked = lora.fork(llama)
        drawn.append(lora.inject(forked, lora.lora_config(llama, SPLIT, LAYERS, 4, 8), seed)[0][1])
        assert torch.initial_seed() == 5
        after = torch.rand(1)
        torch.manual_seed(5)
        assert torch.equal(after, torch.rand(1))
    assert torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[0], drawn[2])


def test_a_wrong_one_is_refused_by_field_with_both_values(llama, tmp_path):
    write_adapter(tmp_path / "a", llama)
    with pytest.raises(FingerprintError) as refused:
        choose_adapter(str(tmp_path / "a"), "suffix", Interface("aa", "cc", 4, 48, "overlap", 32))
    for text in ("config bb, not cc", "split 1, not 4", "mode chunk, not overlap", "overlap 0, not 32"):
        assert text in refused.value.message
    assert "weights" not in refused.value.message
    with pytest.raises(FingerprintError, match="kind suffix, not write"):
        choose_adapter(str(tmp_path / "a"), "write", HERE)


def test_the_one_that_fits_is_found_in_the_cache(llama, tmp_path, monkeypatch):
    monkeypatch.setenv("COMEM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(adapters, "SHIPPED", tmp_path / "shipped")
    assert choose_adapter(None, "suffix", HERE) is None
    write_adapter(tmp_path / "cache" / "adapters" / "other", llama, Interface("aa", "bb", 3, 48, "chunk", 0))
    write_adapter(tmp_path / "cache" / "adapters" / "this", llama)
    (tmp_path / "cache" / "adapters" / "broken").mkdir()
    (tmp_path / "cache" / "adapters" / "broken" / adapters.RECORD).write_text("{")
    found = choose_adapter(None, "suffix", HERE)
    assert found is not None and found.name == "this"
    assert choose_adapter("none", "suffix", HERE) is None
    shutil.copytree(found.directory, tmp_path / "shipped" / "first")
    shipped = choose_adapter(None, "suffix", HERE)
    assert shipped is not None and shipped.name == "first"  # what comes with comem is looked at first
    assert shipped.digest == found.digest


def test_the_default_split_is_the_deepest_with_an_adapter_near_replay(llama, tmp_path, monkeypatch):
    monkeypatch.setenv("COMEM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(adapters, "SHIPPED", tmp_path / "shipped")
    model = SimpleNamespace(weights="aa", config="bb", n_layers=30)

    def default(chunk=48):
        return adapters.default_split(model, chunk=chunk, mode="chunk", overlap=0)

    def add(name, split, *packs, answers=(), **changed):
        interface = Interface(**{**asdict(HERE), "split": split, **changed})
        write_adapter(tmp_path / "shipped" / name, llama, interface)
        record = tmp_path / "shipped" / name / adapters.RECORD
        measured = {
            str(number): {
                "lm_tax": tax,
                **{"recited": recited, "recited_by_teacher": 0.8},
                **{"facts_copied": facts, "facts_copied_by_teacher": 0.4},
            }
            for number, (tax, recited, facts) in enumerate(packs)
        }
        record.write_text(
            json.dumps(json.loads(record.read_text()) | {"metrics": {"after": {"packs": measured}}, "answers": answers})
        )

    assert default() == 5  # a sixth of the layers
    add("not-measured", 20)
    add("poor", 19, (1.0, 0.9, 0.9), (1.041, 0.9, 0.9))
    add("recites-less", 18, (1.0, 0.75, 0.4))
    add("copies-less", 18, (1.0, 0.8, 0.37))
    add("other-model", 17, (1.0, 1.0, 1.0), weights="cc")
    assert default() == 5
    add("answers-worse", 18, (1.0, 1.0, 1.0), answers=[{"replay": 0.8, "adapted": 0.75}])
    assert default() == 5
    add("near", 12, (1.04, 0.761, 0.381), (0.9, 1.0, 1.0))
    add("nearer", 9, (1.0, 1.0, 1.0))
    assert default() == 12
    assert default(chunk=64) == 5
    model.n_layers = 4
    assert default(chunk=64) == 1


@pytest.mark.parametrize("damage", ["absent", "not json", "other format", "field missing"])
def test_what_is_no_adapter_is_refused(llama, tmp_path, damage):
    write_adapter(tmp_path / "a", llama)
    record = tmp_path / "a" / adapters.RECORD
    content = json.loads(record.read_text())
    if damage == "absent":
        record.unlink()
    elif damage == "not json":
        record.write_text("{")
    elif damage == "other format":
        record.write_text(json.dumps(content | {"format": 99}))
    else:
        del content["interface"]["split"]
        record.write_text(json.dumps(content))
    with pytest.raises(UsageError):
        read_adapter(tmp_path / "a")


def test_weights_of_another_shape_or_layer_are_refused(llama, tmp_path):
    write_adapter(tmp_path / "a", llama)
    with pytest.raises(ModelError, match=r"layers\.2"):  # missing in the smaller model
        lora.adapted(tiny_model("llama", LAYERS - 1), read_adapter(tmp_path / "a"))
    (tmp_path / "a" / adapters.WEIGHTS).write_bytes(b"short")
    with pytest.raises(ModelError, match="cannot read"):
        lora.adapted(llama, read_adapter(tmp_path / "a"))


def test_nothing_to_adapt_is_refused(llama):
    with pytest.raises(UsageError):
        lora.lora_config(llama, LAYERS, LAYERS, 4, 8)
    with pytest.raises(UsageError):
        lora.lora_config(llama, 0, LAYERS, 0, 8)
