"""Every proved family against the stock Transformers forward: partition, decode, Write, masks, adapters, files."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch

from comem_cli.errors import ModelError, UsageError
from comem_cli.measure import contracts
from comem_cli.model import lora
from comem_cli.model.distill_read import read_packs, read_parts
from comem_cli.model.families import (
    ATTENTION,
    FAMILIES,
    PROVED_FAMILIES,
    RECURRENT,
    REFUSED,
    is_recurrent,
    layer_types,
)
from comem_cli.model.flops import lower_flops
from comem_cli.model.load import identity, load, resolve
from comem_cli.model.shapes import batch_shapes
from comem_cli.model.split import SplitModel, final_norm_of, layers_of
from comem_cli.read.attention import attention_masses
from comem_cli.read.generate import Reader
from comem_cli.read.layout import Layout, ReadVariant
from tests.families import CHUNKS, EXAMPLES, EXPERTS, IDS, LAYERS, QUERY, lively_model, measure
from tests.tiny import BOS_ID, MATRIX, save_tiny, tiny_model

ROOT = Path(__file__).parents[2]
BLOCK, ORIGIN = ReadVariant(attention="block"), ReadVariant(positions="origin")
RANK = 4
# Of whose layers the FLOP formula is an estimate: recurrent ones, latent attention, heads of several sizes.
ESTIMATED = {"deepseek_v3", "gemma4_text", "lfm2", "qwen3_5_text", "qwen3_next"}


SHARED = ["sliding_attention", "full_attention"] * 2


def packed(ids: list[int]) -> bytes:
    return np.array(ids, dtype="<u4").tobytes()


WRITTEN = [packed(IDS[first:last]) for first, last in ((0, 32), (10, 25), (5, 37), (20, 29), (0, 7))]
DOCUMENT = [packed(IDS[first:last]) for first, last in ((0, 20), (20, 40), (40, 55))]


@pytest.fixture(scope="module", params=PROVED_FAMILIES)
def model(request):
    return lively_model(request.param)


def family(model) -> str:
    return model.config.model_type


def is_routed(model) -> bool:
    return any(getattr(model.config, key, None) for key in EXPERTS)


def takes_masks(model) -> bool:
    return not FAMILIES[family(model)].fixed and set(layer_types(model.config)) <= ATTENTION


def test_the_matrix_and_the_page_hold_exactly_the_proved_families():
    rows = re.findall(
        r"^\| (\w+) \| .* \| (\S+) \| (\S+) \| .*\|$", (ROOT / "docs/families.md").read_text(), re.MULTILINE
    )
    assert [row[0] for row in rows if row[0] != "family"] == list(PROVED_FAMILIES)
    assert {row[1] for row in rows if row[0] != "family"} == {"0"}
    assert set(MATRIX) == set(EXAMPLES) == set(PROVED_FAMILIES)
    assert not set(REFUSED) & set(FAMILIES)


def test_the_halves_equal_the_stock_forward_at_every_split_and_decode_with_two_caches(model):
    found = measure(model)
    assert found.partition == 0.0
    assert found.decode <= 1e-4


def test_the_lower_half_gives_the_stock_hidden_states(model):
    batch = torch.tensor([IDS])
    with torch.inference_mode():
        stock = model(batch, use_cache=False, output_hidden_states=True).hidden_states
        assert torch.equal(SplitModel(model, 0).lower(batch), model.get_input_embeddings()(batch))
        for split in range(1, LAYERS):
            assert torch.equal(SplitModel(model, split).lower(batch), stock[split])
        last = SplitModel(model, LAYERS).lower(batch)  # Transformers reports it after the final norm
        assert torch.equal(final_norm_of(model)(last), stock[LAYERS])


@torch.inference_mode()
def test_a_read_runs_the_last_layer_for_one_row_and_gives_the_stock_logits_and_keys(model):
    batch, rows = torch.tensor([IDS]), []
    stock = model(batch, use_cache=False).logits[:, -1:]
    hook = layers_of(model)[-1].register_forward_hook(lambda _, __, out: rows.append(_rows_of(out)))
    for j in range(LAYERS + 1):
        split = SplitModel(model, j)
        h, *caches = split.lower(batch), split.upper_cache(), split.upper_cache(), split.upper_cache()
        rows.clear()
        found = split.upper_last(h, caches[0])
        keeps_state = bool(RECURRENT & set(layer_types(model.config)[-1:]))
        assert rows == ([] if j == LAYERS else [len(IDS)] if keeps_state else [1])
        split.upper_keys(h, caches[1])
        split.upper(h, caches[2])
        assert (found - stock).abs().max() <= 1e-5 * stock.abs().max().clamp(min=1)
        for last, keys, whole in zip(*(cache.layers for cache in caches), strict=True):
            if hasattr(whole, "keys"):  # else it keeps a state
                assert last.get_seq_length() == keys.get_seq_length() == whole.get_seq_length() == len(IDS)
                assert torch.equal(keys.keys, whole.keys)
                assert torch.equal(keys.values, whole.values)
                assert (last.keys - whole.keys).abs().max() <= 1e-5
                assert (last.values - whole.values).abs().max() <= 1e-5
    hook.remove()


def _rows_of(out) -> int:
    return (out[0] if isinstance(out, tuple) else out).shape[1]


def test_replay_equals_stock_generate_and_the_oracle_equals_replay(model):
    assert contracts.replay_mismatches(model, BOS_ID, CHUNKS, QUERY, new_tokens=8) == 0
    assert contracts.oracle_error(model, BOS_ID, IDS, 2) == 0.0


def test_building_halves_leaves_the_model_as_it_was(model):
    before = {name: id(module) for name, module in model.named_modules()}
    numbers = [getattr(module, "layer_idx", None) for module in model.modules()]
    SplitModel(model, 3)
    assert {name: id(module) for name, module in model.named_modules()} == before
    assert [getattr(module, "layer_idx", None) for module in model.modules()] == numbers
    assert model.config.num_hidden_layers == len(layers_of(model)) == LAYERS


def test_write_in_every_mode_equals_stock_forwards(model):
    shapes = batch_shapes(32, 0, 128, routed=is_routed(model))
    bound = contracts.Tolerances.of(torch.float32, recurrent=is_recurrent(model.config)).residuals
    assert contracts.write_error(model, WRITTEN, shapes, 3) <= bound
    assert contracts.document_error(model, DOCUMENT, 3, window=128) <= bound
    assert contracts.overlap_error(model, DOCUMENT, 3) <= bound


def test_neighbours_change_no_bit_in_bf16(model):
    half = lively_model(family(model)).to(torch.bfloat16)
    shapes = batch_shapes(32, 0, 128, routed=is_routed(model))
    assert contracts.write_bits_changed(SplitModel(half, 3), WRITTEN, shapes) == 0


@torch.inference_mode()
def read(model, split: int, layout: Layout) -> torch.Tensor:
    reader = Reader(SplitModel(model, split), BOS_ID)
    rows = reader.split.lower(torch.tensor([CHUNKS]))[0]
    pack = reader.pack(rows, QUERY, reader.split.lower_cache())
    return reader.read(pack, len(QUERY), reader.split.upper_cache(), layout)[0]


@pytest.mark.parametrize("split", [0, 3])
def test_a_mask_and_positions_reach_every_layer_or_are_refused(model, split):
    """One chunk from the beginning of its document: both variants then describe the default Read."""
    alike = [Layout(variant, (len(CHUNKS),), (0,)) for variant in (BLOCK, ORIGIN)]
    apart = [Layout(BLOCK, (20, 20), (0, 0)), Layout(ORIGIN, (20, 20), (90, 0))]
    if not takes_masks(model):
        refused = alike if FAMILIES[family(model)].fixed else alike[:1]
        for layout in refused:
            with pytest.raises(ModelError, match="does not work with"):
                read(model, split, layout)
        return
    fresh = read(model, split, Layout())
    for layout in alike:
        assert (read(model, split, layout) - fresh).abs().max() <= 1e-5
    for layout in apart:
        assert (read(model, split, layout) - fresh).abs().max() > 1e-4


@torch.inference_mode()
def test_query_parts_of_distillation_equal_reads_of_their_own_or_are_refused(model):
    split = SplitModel(model, 3)
    rows, *parts = (split.lower(torch.tensor([ids]))[0] for ids in (CHUNKS, QUERY[:10], QUERY[11:18]))
    every = torch.ones(64, dtype=torch.bool)
    if not takes_masks(model):
        with pytest.raises(ModelError, match="distillation does not work with"):
            read_packs(split, [rows], [every[: len(rows)]])
        return
    _, state = read_packs(split, [rows], [every[: len(rows)]])
    found = read_parts(split, state, [torch.cat(parts)], [[len(part) for part in parts]], [every[:17]])
    alone = [split.upper(torch.cat([rows, part])[None], keep=0)[0, len(rows) :] for part in parts]
    assert (found - torch.cat(alone)).abs().max() <= 1e-5


@torch.inference_mode(False)
def test_an_adapter_changes_the_upper_layers_alone_and_merges(model):
    if family(model) == "gpt2":  # its projections are no nn.Linear
        with pytest.raises(UsageError, match="no linear layer"):
            lora.lora_config(model, 2, LAYERS, RANK, 8)
        return
    forked = lora.fork(model)
    weights = lora.inject(forked, lora.lora_config(model, 2, LAYERS, RANK, 8))
    pattern = rf"(?:^|\.){FAMILIES[family(model)].layers}\.(\d+)\."
    touched = {int(re.search(pattern, name)[1]) for name, _ in weights}
    assert touched == set(range(2, LAYERS))
    generator, batch = torch.Generator().manual_seed(0), torch.tensor([IDS])
    for _, weight in weights:
        weight.data = 0.1 * torch.randn(weight.shape, generator=generator)
    with torch.inference_mode():
        unmerged = forked(batch, use_cache=False).logits
        lora.merge_weights(forked)
        merged = forked(batch, use_cache=False).logits
        scale = merged.abs().max().clamp(min=1)
        assert (unmerged - merged).abs().max() <= 1e-5 * scale
        assert (merged - model(batch, use_cache=False).logits).abs().max() > 1e-2
        assert contracts.partition_error(forked, IDS, [2]) == 0.0
        assert torch.equal(SplitModel(forked, 2).lower(batch), SplitModel(model, 2).lower(batch))


def test_attention_is_measured_or_the_selector_is_refused(model):
    reader = Reader(SplitModel(model, 3), BOS_ID)
    rows = torch.zeros(9, model.config.hidden_size)
    if family(model) in ("bloom", "falcon", "gemma2", "gpt_oss"):  # soft caps, sinks, attention of their own
        with pytest.raises(ModelError, match="attention cannot be measured"):
            attention_masses(reader, rows, QUERY, (4, 5))
    else:
        assert all(mass > 0 for mass in attention_masses(reader, rows, QUERY, (4, 5)))


def test_a_model_on_disk_is_named_measured_and_loaded(tmp_path, model):
    files = resolve(str(save_tiny(tmp_path / "model", family(model))))
    found = identity(files)
    config = model.config
    assert (found.n_layers, found.width, found.vocabulary) == (LAYERS, config.hidden_size, config.vocab_size)
    assert found.model_type == family(model)
    assert found.routed == is_routed(model)
    assert found.window == getattr(config, "max_position_embeddings", None) or family(model) == "bloom"
    loaded = load(files, torch.device("cpu"), torch.float32)
    ids = torch.tensor([IDS])
    assert loaded.config._attn_implementation.removesuffix("_grouped") == FAMILIES[family(model)].attention
    assert torch.equal(loaded(ids).logits, tiny_model(family(model))(ids).logits)
    split = SplitModel(loaded, 2)
    cache = split.upper_cache()
    split.upper(split.lower(ids), cache)
    if found.kv_heads is None:
        assert family(model) in ("deepseek_v3", "gemma4_text", "lfm2", "qwen3_next", "qwen3_5_text")
    elif family(model) != "falcon":  # which repeats its keys for every head before it caches them
        full = [layer for layer in cache.layers if not layer.is_sliding]
        assert all(layer.keys.shape[1::2] == (found.kv_heads, found.head_dim) for layer in full)


@pytest.mark.parametrize("name", sorted(set(PROVED_FAMILIES) - ESTIMATED))
def test_matmul_parameters_of_a_layer_are_counted(tmp_path, name):
    model = tiny_model(name)
    (tmp_path / "config.json").write_text(json.dumps(model.config.to_dict(), default=str))
    layer = layers_of(model)[LAYERS - 1]
    counted = 0
    for name, weight in layer.named_parameters():
        if weight.dim() == 3:  # routed experts
            counted += weight.numel() * 2 // 4
        elif weight.dim() == 2 and not re.search(r"router|gate\.weight|bias", name):
            counted += weight.numel()
    assert lower_flops(tmp_path, 4).parameters == counted


@pytest.mark.parametrize(
    ("name", "reason"),
    [("mamba2", "it has no attention"), ("gemma3n_text", "token ids besides the residual"), ("xlnet", "")],
)
def test_other_families_are_refused_by_name_with_the_list_of_those_that_work(name, reason):
    model = tiny_model("llama", 2)
    model.config.model_type = name
    with pytest.raises(ModelError, match=f"'{name}' is not proved.*{reason}") as refused:
        SplitModel(model, 1)
    assert all(proved in refused.value.hint for proved in PROVED_FAMILIES)


@pytest.mark.parametrize(
    ("name", "settings", "reason"),
    [
        ("gemma4_text", {"hidden_size_per_layer_input": 16}, "per-layer inputs"),
        ("gemma4_text", {"num_kv_shared_layers": 2, "layer_types": SHARED}, "reuse keys"),
        ("falcon", {"alibi": True}, "ALiBi"),
        ("opt", {"word_embed_proj_dim": 32}, "another width"),
        ("llama", {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}}, "dynamic"),
    ],
)
def test_models_of_a_proved_family_that_cannot_be_split_are_refused(name, settings, reason):
    with pytest.raises(ModelError, match=f"'{name}' is not proved exact under a split: .*{reason}"):
        SplitModel(tiny_model(name, 4, **settings), 2)


def test_a_family_that_is_not_proved_is_refused_before_its_weights_are_read(tmp_path):
    directory = save_tiny(tmp_path / "model", layers=2)
    config = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps({**config, "model_type": "mamba2"}))
    (directory / "model.safetensors").write_bytes(b"")
    with pytest.raises(ModelError, match="'mamba2' is not proved"):
        load(resolve(str(directory)), torch.device("cpu"), torch.float32)


def test_a_document_past_learned_positions_is_refused():
    split = SplitModel(lively_model("gpt2", max_position_embeddings=32), 2)
    positions = torch.arange(30, 34)[None]
    with pytest.raises(ModelError, match="more than 32 tokens"):
        split.lower(torch.tensor([IDS[:4]]), split.lower_cache(), positions=positions)
