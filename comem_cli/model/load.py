"""Find a model, tell what it is, and load its tokenizer and its weights.

`resolve` turns `--model` into files on disk, `identity` into what the fingerprint of a store holds, `tokenizer` and
`load` into objects. Only `load` (and the conversion of a GGUF or of slow tokenizer files) imports torch. Weights are
read from safetensors only, and code that comes with a model is never run.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from comem_cli.errors import ModelError
from comem_cli.model import embedded
from comem_cli.model.cache import Progress, build_once, cache_directory, file_sha256, no_progress
from comem_cli.model.families import ATTENTION, FAMILIES, require_proved, stated
from comem_cli.model.tokenizer import read_tokenizer

if TYPE_CHECKING:
    import tokenizers
    import torch
    from transformers import PreTrainedModel

Source = Literal["embedded", "directory", "gguf", "hub"]
BosSource = Literal["tokenizer", "config", "none"]

_WEIGHTS, _INDEX = "model.safetensors", "model.safetensors.index.json"
_SLOW_TOKENIZER_FILES = ("tokenizer.model", "vocab.json", "merges.txt", "vocab.txt")
_HUB_ID = re.compile(r"[\w.-]+(/[\w.-]+)?", re.ASCII)
_HUB_PATTERNS = ["*.json", "*.safetensors", "*.jinja", *_SLOW_TOKENIZER_FILES]
_HUB_NOT_NEEDED = ["*/*", "consolidated*"]  # other formats, and second copies of the weights
_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts")
_UNEQUAL = ("global_head_dim", "kv_lora_rank", "per_layer_config")  # keys and values differ in size
_OTHER_MODEL = "pass --model with a Hugging Face hub id or the path of a model directory"
# Keys of config.json that change no number: where it came from, what to return, how wide to store and compute.
_VOLATILE = frozenset(
    {
        "_attn_implementation",
        "_attn_implementation_autoset",
        "_from_model_config",
        "_model_name_or_path",
        "_name_or_path",
        "dtype",
        "name_or_path",
        "output_attentions",
        "output_hidden_states",
        "return_dict",
        "torch_dtype",
        "transformers_version",
        "use_cache",
    }
)


@dataclass(frozen=True)
class ModelFiles:
    """Name the files of a model on disk.

    revision: the hub's commit, or the sha256 of the GGUF that was converted; None for a plain directory.
    tokenizer_file: `tokenizer.json`; in the user's cache when the model itself holds slow tokenizer files only.
    """

    name: str
    directory: Path
    source: Source
    revision: str | None
    tokenizer_file: Path


@dataclass(frozen=True)
class ModelIdentity:
    """Say what a model is: three sha256 in hex (weights, config, tokenizer), special ids and sizes.

    n_layers: decoder layers L. width: d, elements of a residual. window: the longest input, in tokens.
    routed: whether tokens are routed to experts (sparse MoE). vocabulary: rows of the embedding. bos_id: the sink
    token; None with bos_source "none". kv_heads, head_dim: of one layer's KV cache; None where config.json leaves
    them open and where layers differ in them (latent attention, recurrent layers, larger heads in some).
    """

    name: str
    weights: str
    config: str
    tokenizer: str
    bos_id: int | None
    bos_source: BosSource
    eos_ids: tuple[int, ...]
    n_layers: int
    width: int
    window: int
    vocabulary: int
    model_type: str
    routed: bool = False
    kv_heads: int | None = None
    head_dim: int | None = None


def resolve(spec: str | None, *, allow_pull: bool = True, progress: Progress | None = None) -> ModelFiles:
    """Find the files of a model: None for the embedded one, a directory, a *.gguf file, or a hub id.

    allow_pull: False forbids what takes long, a download or a conversion. Raises ModelError when the model is not
    there, cannot be fetched, or lacks config.json, safetensors or a tokenizer.
    """
    progress = progress or no_progress
    if spec is None:
        if not allow_pull and not embedded.embedded_directory().is_dir():
            raise ModelError(f"the embedded model {embedded.NAME} is not here yet", "run: comem models pull")
        return _files(embedded.NAME, embedded.pull(progress), "embedded", embedded.GGUF_SHA256)
    path = Path(spec).expanduser()
    if path.is_dir():
        return _files(path.resolve().name, path, "directory", None)
    if path.suffix.lower() == ".gguf":
        return _from_gguf(path, allow_pull, progress)
    if path.exists() or not _HUB_ID.fullmatch(spec) or spec.startswith("."):
        raise ModelError(f"no model directory and no GGUF file at {spec}", _OTHER_MODEL)
    directory = _from_hub(spec, allow_pull, progress)
    return _files(spec, directory, "hub", directory.name)


def identity(files: ModelFiles) -> ModelIdentity:
    """Tell what a model is from its files; gigabytes are hashed on the first call only.

    Raises ModelError when config.json does not describe a text-only model of one stack of layers.
    """
    config = _read_config(files.directory)
    bos_id, bos_source = _bos(files, config)
    kv_heads, head_dim = _kv_sizes(config)
    return ModelIdentity(
        name=files.name,
        weights=_weights_sha256(files.directory),
        config=_config_sha256(config),
        tokenizer=file_sha256(files.tokenizer_file),
        bos_id=bos_id,
        bos_source=bos_source,
        eos_ids=_eos_ids(files.directory, config),
        n_layers=_size(config, "num_hidden_layers"),
        width=_size(config, "hidden_size"),
        window=_window(config),
        vocabulary=_size(config, "vocab_size"),
        model_type=str(config["model_type"]),
        routed=any(config.get(key) for key in _EXPERTS),
        kv_heads=kv_heads,
        head_dim=head_dim,
    )


def tokenizer(files: ModelFiles) -> tokenizers.Tokenizer:
    """Load the tokenizer; call `encode(..., add_special_tokens=False)` on it.

    Truncation and padding are off, and special tokens written in a text are encoded as text. One file gives one object
    as long as it does not change.
    """
    path = files.tokenizer_file
    try:
        return read_tokenizer(path, path.stat().st_mtime_ns)
    except Exception as error:  # the library raises Exception itself
        raise ModelError(f"cannot read {path}: {error}", _OTHER_MODEL) from error


def load(files: ModelFiles, device: torch.device, dtype: torch.dtype) -> PreTrainedModel:
    """Load the weights: eval mode, no gradients, SDPA attention, on `device` in `dtype`.

    A model that does not fit a GPU is spread over all of them, and over main memory and disk where it must
    (accelerate's device_map). Raises ModelError for a family that is not proved, when the files are damaged or
    incomplete, and when they do not fit into memory.
    """
    from comem_cli.model.device import fits
    from comem_cli.model.pretrained import read_model, refuse

    require_proved(_read_config(files.directory)["model_type"])
    try:
        if not fits(_weight_bytes(files.directory, dtype), device):
            return read_model(files.directory, dtype, device_map="auto", offload_folder=cache_directory() / "offload")
        model: Any = read_model(files.directory, dtype)
        placed: PreTrainedModel = model.to(device)
        return placed
    except Exception as error:
        refuse(f"load {files.name}", error, "check the files, or pass --model, --device or --dtype with another value")


def _weight_bytes(directory: Path, dtype: torch.dtype) -> float:
    import torch

    config = _read_config(directory)
    stored = str(config.get("dtype") or config.get("torch_dtype") or "float32")
    width = getattr(torch, stored.removeprefix("torch."), torch.float32).itemsize
    return sum(shard.stat().st_size for shard in _shards(directory)) / width * dtype.itemsize


def _files(name: str, directory: Path, source: Source, revision: str | None) -> ModelFiles:
    """Check that a directory holds a whole model, and find its tokenizer."""
    absent = _missing(directory)
    if absent:
        raise ModelError(f"the model in {directory} has no {' and no '.join(absent)}", _OTHER_MODEL)
    if (directory / "adapter_config.json").exists():
        raise ModelError(f"{directory} holds an adapter besides the model", "move adapter_config.json out of it")
    return ModelFiles(name, directory, source, revision, _tokenizer_file(name, directory))


def _missing(directory: Path) -> list[str]:
    absent = [] if (directory / "config.json").is_file() else ["config.json"]
    if not (directory / "tokenizer.json").is_file() and not _slow_tokenizer(directory):
        absent.append("tokenizer.json")
    if not (directory / _WEIGHTS).is_file() and not (directory / _INDEX).is_file():
        absent.append(_WEIGHTS)
    return absent


def _slow_tokenizer(directory: Path) -> list[Path]:
    return [directory / name for name in _SLOW_TOKENIZER_FILES if (directory / name).is_file()]


def _tokenizer_file(name: str, directory: Path) -> Path:
    """Return tokenizer.json; where there are slow files only, convert them into the user's cache."""
    own = directory / "tokenizer.json"
    if own.is_file():
        return own
    sources = [*_slow_tokenizer(directory), directory / "tokenizer_config.json", directory / "config.json"]
    lines = [f"{path.name} {file_sha256(path)}\n" for path in sources if path.is_file()]
    key = hashlib.sha256("".join(lines).encode()).hexdigest()[:32]

    def build(part: Path) -> None:
        from transformers import AutoTokenizer

        from comem_cli.model.pretrained import quiet, refuse

        try:
            with quiet():
                slow = AutoTokenizer.from_pretrained(directory, local_files_only=True, trust_remote_code=False)
            slow.backend_tokenizer.save(str(part / "tokenizer.json"))
        except Exception as error:
            refuse(f"convert the tokenizer of {name}", error, "pass --model with a model that has a tokenizer.json")

    return build_once(cache_directory() / "tokenizers" / key, build, lambda: None) / "tokenizer.json"


def _from_gguf(path: Path, allow_pull: bool, progress: Progress) -> ModelFiles:
    if not path.is_file():
        raise ModelError(f"no GGUF file at {path}", "pass --model with the path of one that exists")
    if not allow_pull and not embedded.converted_directory(path).is_dir():
        raise ModelError(f"{path.name} is not converted yet", f"run: comem models pull {path}")
    return _files(path.stem, embedded.convert_gguf(path, progress), "gguf", file_sha256(path))


def _from_hub(name: str, allow_pull: bool, progress: Progress) -> Path:
    """Return the snapshot of a hub model: the cached one, else a download of its safetensors and small files."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    wanted: dict[str, Any] = {"allow_patterns": _HUB_PATTERNS, "ignore_patterns": _HUB_NOT_NEEDED}
    try:
        cached = Path(snapshot_download(name, local_files_only=True, **wanted))
        if not _missing(cached):
            return cached
    except (LocalEntryNotFoundError, ValueError) as error:
        if isinstance(error, ValueError):
            raise ModelError(f"'{name}' is neither a path nor a hub id", _OTHER_MODEL) from error
    if not allow_pull:
        raise ModelError(f"model {name} is not downloaded yet", f"run: comem models pull {name}")
    progress("download", 0, 0)
    try:
        with _no_hub_bars():
            return Path(snapshot_download(name, **wanted))
    except Exception as error:
        from comem_cli.model.pretrained import refuse

        refuse(f"download {name}", error, "check the id and the network, or pass --model with a model directory")


@contextlib.contextmanager
def _no_hub_bars() -> Iterator[None]:
    from huggingface_hub import utils

    bars: Any = utils  # which does not declare what it exports
    if bars.are_progress_bars_disabled():
        yield
        return
    bars.disable_progress_bars()
    try:
        yield
    finally:
        bars.enable_progress_bars()


def _read_config(directory: Path) -> dict[str, Any]:
    config = _read_json(directory / "config.json")
    family = config.get("model_type")
    if not isinstance(family, str):
        raise ModelError(f"{directory / 'config.json'} states no model_type", _OTHER_MODEL)
    if isinstance(config.get("text_config"), dict):
        raise ModelError(f"'{family}' is a multimodal model; comem runs text-only ones", _OTHER_MODEL)
    if config.get("transformers_weights"):
        raise ModelError(f"{directory / 'config.json'} names weights of its own", f"name them {_WEIGHTS}")
    return config


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ModelError(f"{path} is not JSON: {error}", "download the model again") from error
    if not isinstance(content, dict):
        raise ModelError(f"{path} holds no JSON object", "download the model again")
    return content


def _size(config: dict[str, Any], key: str) -> int:
    value = _whole(stated(config, key))
    if value is None:
        raise ModelError(f"config.json of '{config['model_type']}' states no {key}", _OTHER_MODEL)
    return value


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def _window(config: dict[str, Any]) -> int:
    """Return the longest input, where config.json leaves it out that of the family."""
    family = FAMILIES.get(str(config["model_type"]))
    if family and family.window and stated(config, "max_position_embeddings") is None:
        return family.window
    return _size(config, "max_position_embeddings")


def _kv_sizes(config: dict[str, Any]) -> tuple[int | None, int | None]:
    """Return key/value heads and head size: stated, else all heads and width / heads as Transformers defaults them."""
    if any(config.get(key) for key in _UNEQUAL) or not set(config.get("layer_types") or ()) <= ATTENTION:
        return None, None
    heads = _whole(stated(config, "num_attention_heads"))
    kv_heads = _whole(stated(config, "num_key_value_heads"))
    if config.get("multi_query") and not config.get("new_decoder_architecture"):  # of falcon
        kv_heads = 1
    head_dim = _whole(config.get("head_dim")) or (_size(config, "hidden_size") // heads if heads else None)
    return kv_heads or heads, head_dim


def _weights_sha256(directory: Path) -> str:
    """Hash the shards that Transformers would load: sha256 over `name sha256-of-bytes` lines, by name."""
    lines = [f"{shard.name} {file_sha256(shard)}\n" for shard in _shards(directory)]
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def _shards(directory: Path) -> list[Path]:
    if (directory / _WEIGHTS).is_file():
        return [directory / _WEIGHTS]
    named = _read_json(directory / _INDEX).get("weight_map")
    names = sorted({str(name) for name in named.values()}) if isinstance(named, dict) else []
    absent = [name for name in names if Path(name).name != name or not (directory / name).is_file()]
    if absent or not names:
        what = f"has no {absent[0]}" if absent else "names no shard in its index"
        raise ModelError(f"the model in {directory} {what}", "download the model again")
    return [directory / name for name in names]


def _config_sha256(config: dict[str, Any]) -> str:
    """Hash config.json without the keys that change no number, at every depth; RoPE stays in."""
    canonical = json.dumps(_lasting(config), sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(canonical.encode()).hexdigest()


def _lasting(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _lasting(inner) for key, inner in value.items() if key not in _VOLATILE}
    return [_lasting(inner) for inner in value] if isinstance(value, list) else value


def _bos(files: ModelFiles, config: dict[str, Any]) -> tuple[int | None, BosSource]:
    """Find the sink's id: the tokenizer's own BOS, else the one that config.json states, else none."""
    for name in ("tokenizer_config.json", "special_tokens_map.json"):
        path = files.directory / name
        stated = _read_json(path).get("bos_token") if path.is_file() else None
        token = stated.get("content") if isinstance(stated, dict) else stated
        if isinstance(token, str):
            bos_id = tokenizer(files).token_to_id(token)
            if bos_id is not None:
                return int(bos_id), "tokenizer"
    ids = _ids(config.get("bos_token_id"))
    return (ids[0], "config") if ids else (None, "none")


def _eos_ids(directory: Path, config: dict[str, Any]) -> tuple[int, ...]:
    """Collect the ids that end generation, as `generate` does: generation_config.json first, else config.json."""
    path = directory / "generation_config.json"
    stated = _ids(_read_json(path).get("eos_token_id")) if path.is_file() else ()
    return stated or _ids(config.get("eos_token_id"))


def _ids(value: Any) -> tuple[int, ...]:
    """Read one id or a list of ids; a negative id or null stands for none."""
    found = value if isinstance(value, list) else [value]
    return tuple(dict.fromkeys(i for i in found if isinstance(i, int) and not isinstance(i, bool) and i >= 0))
