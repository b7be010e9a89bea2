from __future__ import annotations

import dataclasses
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from comem_cli.errors import ModelError
from comem_cli.model import load as loading
from comem_cli.model.attention import NAME
from comem_cli.model.load import ModelFiles, identity, load, resolve, tokenizer
from tests.tiny import BOS_ID, EOS_ID, VOCABULARY, WIDTH, save_tiny, tiny_model, tiny_tokenizer

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("COMEM_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny(tmp_path_factory.mktemp("saved") / "tiny")


@pytest.fixture
def model(saved: Path, tmp_path: Path) -> Path:
    """Give a copy of the saved model that a test may damage."""
    return Path(shutil.copytree(saved, tmp_path / "tiny"))


def edit(path: Path, **changes: Any) -> None:
    """Change keys of a JSON file; None removes a key."""
    content = {**json.loads(path.read_text()), **changes}
    path.write_text(json.dumps({key: value for key, value in content.items() if value is not None}))


def refused(spec: str | None, **options: Any) -> ModelError:
    with pytest.raises(ModelError) as caught:
        resolve(spec, **options)
    assert "\n" not in caught.value.message
    assert caught.value.hint
    return caught.value


# --- resolve


def test_a_directory_is_a_model(model: Path) -> None:
    files = resolve(str(model))
    assert files == ModelFiles("tiny", model, "directory", None, model / "tokenizer.json")


@pytest.mark.parametrize("missing", ["config.json", "tokenizer.json", "model.safetensors"])
def test_a_directory_that_lacks_a_part_is_refused_by_its_name(model: Path, missing: str) -> None:
    (model / missing).unlink()
    assert missing in refused(str(model)).message


def test_pickled_weights_are_no_weights(model: Path) -> None:
    torch.save(load_file(model / "model.safetensors"), model / "pytorch_model.bin")
    (model / "model.safetensors").unlink()
    assert "model.safetensors" in refused(str(model)).message


def test_an_adapter_beside_the_weights_is_refused(model: Path) -> None:
    # Transformers would load it, and the hash of the weights would not cover it.
    (model / "adapter_config.json").write_text("{}")
    assert "adapter" in refused(str(model)).message


@pytest.mark.parametrize("spec", ["./nothing", "/nothing/at/all", "a/b/c", "not a model", ".", ""])
def test_what_is_neither_a_path_nor_a_hub_id_is_refused(spec: str, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    assert "--model" in refused(spec).hint


def test_a_gguf_that_is_not_there_is_refused(tmp_path: Path) -> None:
    assert "x.gguf" in refused(str(tmp_path / "x.gguf")).message


def test_without_leave_to_pull_the_hint_names_the_command() -> None:
    assert refused(None, allow_pull=False).hint == "run: comem models pull"


def test_slow_tokenizer_files_are_converted_into_the_cache(model: Path, own_cache: Path) -> None:
    fast = json.loads((model / "tokenizer.json").read_text())["model"]
    (model / "tokenizer.json").unlink()
    (model / "vocab.json").write_text(json.dumps(fast["vocab"]))
    (model / "merges.txt").write_text("\n".join(" ".join(pair) for pair in fast["merges"]))
    edit(model / "tokenizer_config.json", tokenizer_class="GPT2Tokenizer", backend=None)
    before = sorted(p.name for p in model.iterdir())
    files = resolve(str(model))
    assert files.tokenizer_file.is_relative_to(own_cache)
    assert sorted(p.name for p in model.iterdir()) == before
    text = "The harbour keeps a ledger."
    assert tokenizer(files).encode(text).ids == tiny_tokenizer().encode(text).ids
    assert resolve(str(model)) == files


# --- the hub


def hub_environment(saved: Path, root: Path) -> dict[str, str]:
    """Lay a model out as the hub's own cache does, and forbid the network."""
    commit = "0123456789abcdef0123456789abcdef01234567"
    repository = root / "hub" / "models--someone--tiny"
    shutil.copytree(saved, repository / "snapshots" / commit)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(commit)
    return {**os.environ, "HF_HUB_CACHE": str(root / "hub"), "HF_HUB_OFFLINE": "1", "COMEM_CACHE": str(root / "cache")}


LIGHT = """
import sys
from comem_cli.model.load import identity, resolve, tokenizer
files = resolve(sys.argv[1])
print(files.name, files.source, files.revision, identity(files).bos_id, tokenizer(files).get_vocab_size())
assert not {"torch", "transformers", "numpy"} & set(sys.modules)
"""


@pytest.mark.parametrize("source", ["directory", "hub"])
def test_finding_a_model_and_its_tokenizer_imports_no_torch(saved: Path, tmp_path: Path, source: str) -> None:
    environment = hub_environment(saved, tmp_path)
    spec = str(saved) if source == "directory" else "someone/tiny"
    done = subprocess.run([sys.executable, "-c", LIGHT, spec], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    name, found, revision, bos, size = done.stdout.split()
    assert (name, found) == (Path(spec).name if source == "directory" else spec, source)
    assert revision == ("None" if source == "directory" else "0123456789abcdef0123456789abcdef01234567")
    assert (int(bos), int(size)) == (BOS_ID, VOCABULARY)


def test_a_hub_model_that_cannot_be_had_offline_is_one_line(saved: Path, tmp_path: Path) -> None:
    program = (
        "from comem_cli.errors import ModelError\nfrom comem_cli.model.load import resolve\n"
        "try:\n    resolve('someone/else')\nexcept ModelError as e:\n    print(e.message); print(e.hint)"
    )
    environment = hub_environment(saved, tmp_path)
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True)
    message, hint = done.stdout.splitlines()
    assert message.startswith("cannot download someone/else: ")
    assert "--model" in hint
    assert done.stderr == ""


# --- identity


def test_identity_tells_sizes_and_special_ids(model: Path) -> None:
    found = identity(resolve(str(model)))
    assert (found.n_layers, found.width, found.window, found.vocabulary) == (6, WIDTH, 512, VOCABULARY)
    assert (found.bos_id, found.bos_source, found.eos_ids) == (BOS_ID, "tokenizer", (EOS_ID,))
    assert (found.name, found.model_type) == ("tiny", "llama")
    assert all(len(digest) == 64 for digest in (found.weights, found.config, found.tokenizer))


def test_identity_is_the_same_for_a_copy_and_for_a_second_call(saved: Path, model: Path) -> None:
    first = identity(resolve(str(saved)))
    assert identity(resolve(str(model))) == first
    assert identity(resolve(str(saved))) == first


def test_the_second_identity_reads_no_weights(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = resolve(str(model))
    first = identity(files)
    from comem_cli.model import cache

    monkeypatch.setattr(cache.hashlib, "file_digest", lambda *_: pytest.fail("hashed again"))
    assert identity(files) == first


def changed(before: Any, after: Any) -> set[str]:
    return {f.name for f in dataclasses.fields(before) if getattr(before, f.name) != getattr(after, f.name)}


def test_one_weight_changed_changes_the_weights_alone(model: Path) -> None:
    before = identity(resolve(str(model)))
    weights = load_file(model / "model.safetensors")
    weights["model.norm.weight"][3] += 1
    save_file(weights, model / "model.safetensors", metadata={"format": "pt"})
    assert changed(before, identity(resolve(str(model)))) == {"weights"}


def test_every_shard_counts(tmp_path: Path) -> None:
    directory = save_tiny(tmp_path / "sharded")
    tiny_model().save_pretrained(directory, max_shard_size="200KB")
    (directory / "model.safetensors").unlink(missing_ok=True)
    shards = sorted(directory.glob("model-*.safetensors"))
    assert len(shards) > 1
    files = resolve(str(directory))
    before = identity(files)
    for shard in shards:
        whole = shard.read_bytes()
        shard.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
        assert changed(before, identity(files)) == {"weights"}
        shard.write_bytes(whole)
    ids = torch.arange(3, 40)[None]
    assert torch.equal(load(files, CPU, torch.float32)(ids).logits, tiny_model()(ids).logits)
    shards[-1].unlink()
    with pytest.raises(ModelError, match=shards[-1].name):
        identity(files)


def test_a_shard_outside_the_directory_is_refused(model: Path) -> None:
    shutil.move(model / "model.safetensors", model.parent / "outside.safetensors")
    (model / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": "../outside.safetensors"}}))
    with pytest.raises(ModelError, match="outside"):
        identity(resolve(str(model)))


@pytest.mark.parametrize(
    ("change", "fields"),
    [
        ({"rope_parameters": {"rope_theta": 5e5, "rope_type": "default"}}, {"config"}),
        ({"rms_norm_eps": 1e-4}, {"config"}),
        ({"hidden_act": "gelu"}, {"config"}),
        ({"max_position_embeddings": 1024}, {"config", "window"}),
        ({"transformers_version": "4.0.0"}, set()),
        ({"_name_or_path": "elsewhere"}, set()),
        ({"dtype": None, "torch_dtype": "float16"}, set()),
        ({"use_cache": False}, set()),
    ],
)
def test_config_counts_where_it_changes_numbers(model: Path, change: dict[str, Any], fields: set[str]) -> None:
    before = identity(resolve(str(model)))
    edit(model / "config.json", **change)
    assert changed(before, identity(resolve(str(model)))) == fields


def test_the_order_of_keys_in_config_does_not_count(model: Path) -> None:
    before = identity(resolve(str(model)))
    content = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps(dict(reversed(content.items())), indent=7))
    assert identity(resolve(str(model))) == before


@pytest.mark.parametrize(
    ("tokens", "config", "expected"),
    [
        ({"bos_token": "<bos>"}, {"bos_token_id": 7}, (BOS_ID, "tokenizer")),
        ({"bos_token": {"content": "<bos>", "lstrip": False}}, {"bos_token_id": 7}, (BOS_ID, "tokenizer")),
        ({"bos_token": None}, {"bos_token_id": 7}, (7, "config")),
        ({"bos_token": None}, {"bos_token_id": [9, 7]}, (9, "config")),
        ({"bos_token": "<unknown>"}, {"bos_token_id": 7}, (7, "config")),
        ({"bos_token": None}, {"bos_token_id": None}, (None, "none")),
        ({"bos_token": None}, {"bos_token_id": -1}, (None, "none")),
        ({"bos_token": None}, {"bos_token_id": 0}, (0, "config")),
    ],
)
def test_bos_comes_from_the_tokenizer_then_the_config(model: Path, tokens: Any, config: Any, expected: Any) -> None:
    edit(model / "tokenizer_config.json", **tokens)
    edit(model / "config.json", **config)
    found = identity(resolve(str(model)))
    assert (found.bos_id, found.bos_source) == expected


@pytest.mark.parametrize(
    ("generation", "config", "expected"),
    [
        ({"eos_token_id": [5, 6, 5]}, {}, (5, 6)),
        ({"eos_token_id": 8}, {}, (8,)),
        ({"eos_token_id": None}, {"eos_token_id": [4]}, (4,)),
        ({"eos_token_id": None}, {"eos_token_id": None}, ()),
    ],
)
def test_eos_comes_from_the_generation_config_then_the_config(
    model: Path, generation: Any, config: Any, expected: tuple[int, ...]
) -> None:
    edit(model / "generation_config.json", **generation)
    edit(model / "config.json", **config)
    assert identity(resolve(str(model))).eos_ids == expected
    if generation["eos_token_id"] is None:
        (model / "generation_config.json").unlink()
        assert identity(resolve(str(model))).eos_ids == expected


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"text_config": {"hidden_size": 64}}, "multimodal"),
        ({"num_hidden_layers": None}, "num_hidden_layers"),
        ({"hidden_size": "64"}, "hidden_size"),
        ({"model_type": None}, "model_type"),
        ({"transformers_weights": "other.safetensors"}, "weights"),
    ],
)
def test_a_config_that_comem_cannot_use_is_refused(model: Path, change: dict[str, Any], said: str) -> None:
    edit(model / "config.json", **change)
    with pytest.raises(ModelError, match=said):
        identity(resolve(str(model)))


@pytest.mark.parametrize("content", ["", "[]", "{", "\x00"])
def test_a_config_that_is_no_json_object_is_refused(model: Path, content: str) -> None:
    (model / "config.json").write_text(content)
    with pytest.raises(ModelError, match=r"config\.json"):
        identity(resolve(str(model)))


# --- tokenizer


def test_truncation_and_padding_of_the_file_are_off(model: Path) -> None:
    limited = tiny_tokenizer()
    limited.enable_truncation(4)
    limited.enable_padding(length=64)
    limited.save(str(model / "tokenizer.json"))
    text = "The harbour master keeps a ledger."
    found = tokenizer(resolve(str(model))).encode(text, add_special_tokens=False).ids
    assert found == tiny_tokenizer().encode(text).ids
    assert 4 < len(found) < 64


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=100, deadline=None)
@given(text=st.text(st.characters(exclude_categories=["Cs"]), max_size=60))
def test_the_tokenizer_agrees_with_transformers_and_gives_text_back(saved: Path, text: str) -> None:
    from transformers import PreTrainedTokenizerFast

    ours = tokenizer(resolve(str(saved)))
    ids = ours.encode(text, add_special_tokens=False).ids
    theirs = PreTrainedTokenizerFast(tokenizer_file=str(saved / "tokenizer.json"))
    assert ids == theirs(text, add_special_tokens=False).input_ids
    assert ours.decode(ids, skip_special_tokens=False) == text


def test_a_special_token_written_in_a_text_is_text(saved: Path) -> None:
    words = tokenizer(resolve(str(saved)))
    ids = words.encode("a <eos> b", add_special_tokens=False).ids
    assert EOS_ID not in ids
    assert words.decode(ids, skip_special_tokens=False) == "a <eos> b"


def test_a_damaged_tokenizer_is_refused(model: Path) -> None:
    (model / "tokenizer.json").write_text("{}")
    with pytest.raises(ModelError, match=r"tokenizer\.json"):
        tokenizer(resolve(str(model)))


# --- load


@pytest.mark.parametrize("family", ["llama", "gemma3_text", "qwen3_moe"])
def test_a_loaded_model_computes_what_the_saved_one_did(tmp_path: Path, family: str) -> None:
    files = resolve(str(save_tiny(tmp_path / family, family)))
    loaded = load(files, CPU, torch.float32)
    ids = torch.arange(3, 60)[None]
    assert torch.equal(loaded(ids).logits, tiny_model(family)(ids).logits)


def test_a_loaded_model_is_frozen_in_eval_mode_with_the_dtype_asked_for(saved: Path) -> None:
    loaded = load(resolve(str(saved)), CPU, torch.bfloat16)
    assert not loaded.training
    assert not any(p.requires_grad for p in loaded.parameters())
    assert {p.dtype for p in loaded.parameters()} == {torch.bfloat16}
    assert loaded.config._attn_implementation == NAME  # SDPA, in groups while an answer is decoded


def test_loading_is_quiet_and_leaves_the_settings_of_transformers(
    saved: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    from transformers.utils import logging as theirs

    before = (theirs.get_verbosity(), theirs.is_progress_bar_enabled())
    load(resolve(str(saved)), CPU, torch.float32)
    assert (theirs.get_verbosity(), theirs.is_progress_bar_enabled()) == before
    assert capfd.readouterr() == ("", "")


def unload(model: Path) -> ModelError:
    with pytest.raises(ModelError) as caught:
        load(resolve(str(model)), CPU, torch.float32)
    assert "\n" not in caught.value.message
    assert caught.value.hint
    return caught.value


def test_a_missing_weight_is_refused_not_made_up(model: Path) -> None:
    weights = load_file(model / "model.safetensors")
    del weights["model.layers.3.mlp.up_proj.weight"]
    save_file(weights, model / "model.safetensors", metadata={"format": "pt"})
    assert "model.layers.3.mlp.up_proj.weight" in unload(model).message


def test_weights_of_another_shape_are_refused(model: Path, capfd: pytest.CaptureFixture[str]) -> None:
    edit(model / "config.json", intermediate_size=128)
    unload(model)
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("keep", [0, 7, 1000, -1])
def test_truncated_weights_are_refused(model: Path, keep: int) -> None:
    whole = (model / "model.safetensors").read_bytes()
    (model / "model.safetensors").write_bytes(whole[:keep])
    assert unload(model).message.startswith("cannot load tiny: ")


def test_code_that_comes_with_a_model_never_runs(model: Path, tmp_path: Path) -> None:
    (model / "modeling_x.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    edit(
        model / "config.json",
        model_type="x",
        auto_map={"AutoConfig": "modeling_x.C", "AutoModelForCausalLM": "modeling_x.M"},
    )
    unload(model)
    assert not (tmp_path / "ran").exists()


def test_patterns_for_the_hub_take_no_pickle() -> None:
    assert not any("bin" in pattern or "pt" in pattern for pattern in loading._HUB_PATTERNS)
