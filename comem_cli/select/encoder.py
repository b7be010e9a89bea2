"""A frozen sentence encoder: texts to unit vectors, for the selector `dense`.

Any directory or hub id in the layout of sentence-transformers: an encoder that Transformers' AutoModel reads, and
`modules.json` naming the pooling (mean, cls or last token) and, for other heads, what comem refuses. Without
modules.json: mean. Vectors are always normalised, so a product is a cosine. Texts longer than the encoder's input give
several windows, without overlap. Prompts named "query" and "document" (or "passage") in
`config_sentence_transformers.json` are put in front. It runs in fp32, in eval mode, without gradients.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from comem_cli.errors import ModelError
from comem_cli.model import load
from comem_cli.model.cache import file_sha256

if TYPE_CHECKING:
    import numpy as np
    import tokenizers
    import torch

BATCH = 32  # windows
POOLINGS = {
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_cls_token": "cls",
    "pooling_mode_lasttoken": "last",
}
KNOWN_MODULES = {"Transformer", "Pooling", "Normalize"}
_OTHER = "comem index STORE --dense MODEL, with a sentence-transformers directory or hub id"


@dataclass(frozen=True)
class EncoderFiles:
    """Name an encoder on disk; spec: as the user gave it, digest: 32 hex characters over all that it computes with."""

    spec: str
    model: load.ModelFiles
    pooling: str
    longest: int  # tokens of a window, special tokens included
    prompts: dict[str, str]
    digest: str


class SentenceEncoder:
    """A loaded encoder. `width`: elements of a vector."""

    def __init__(self, files: EncoderFiles, device: str = "cpu") -> None:
        from transformers import AutoModel

        from comem_cli.model.pretrained import quiet, refuse

        self.files = files
        self._device = device
        self._tokenizer: tokenizers.Tokenizer = load.tokenizer(files.model)
        self._tokenizer.enable_truncation(files.longest)
        try:
            with quiet():
                read: Any = AutoModel.from_pretrained
                model = read(
                    files.model.directory, use_safetensors=True, trust_remote_code=False, local_files_only=True
                )
        except Exception as error:
            refuse(f"load the encoder {files.spec}", error, _OTHER)
        self._model: Any = model.float().eval().requires_grad_(False).to(device)
        self.width = int(model.config.hidden_size)

    def encode(self, texts: Sequence[str], kind: str = "document") -> tuple[np.ndarray[Any, Any], list[int]]:
        """Return the windows' unit vectors, (n, width) fp32, and the position of each one's text. kind: the prompt."""
        import numpy as np

        prompt = self.files.prompts.get(kind, "")
        windows: list[list[int]] = []
        owners: list[int] = []
        for position, text in enumerate(texts):
            encoding = self._tokenizer.encode(prompt + text)
            parts = [encoding.ids, *(more.ids for more in encoding.overflowing)]
            windows += parts
            owners += [position] * len(parts)
        vectors = np.zeros((len(windows), self.width), dtype=np.float32)
        order = sorted(range(len(windows)), key=lambda number: len(windows[number]))
        for start in range(0, len(order), BATCH):
            batch = order[start : start + BATCH]
            vectors[batch] = self._vectors([windows[number] for number in batch]).cpu().numpy()
        return vectors, owners

    def _vectors(self, windows: Sequence[Sequence[int]]) -> torch.Tensor:
        import torch

        longest = max(map(len, windows))
        ids = torch.zeros(len(windows), longest, dtype=torch.long)
        mask = torch.zeros(len(windows), longest, dtype=torch.long)
        for row, window in enumerate(windows):
            ids[row, : len(window)] = torch.tensor(window)
            mask[row, : len(window)] = 1
        ids, mask = ids.to(self._device), mask.to(self._device)
        with torch.inference_mode():
            states = self._model(input_ids=ids, attention_mask=mask).last_hidden_state
            if self.files.pooling == "cls":
                pooled = states[:, 0]
            elif self.files.pooling == "last":
                pooled = states[torch.arange(len(windows)), mask.sum(1) - 1]
            else:
                pooled = (states * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)
            return torch.nn.functional.normalize(pooled, dim=-1)


def find_encoder(spec: str, *, allow_pull: bool = True) -> EncoderFiles:
    """Find an encoder and settle how it pools; loads no weights.

    Raises: ModelError (1) where it is not there, or has a head or pooling that comem does not know.
    """
    files = load.resolve(spec, allow_pull=allow_pull)
    modules = _read(files.directory / "modules.json") or []
    odd = [module["type"] for module in modules if module["type"].rpartition(".")[2] not in KNOWN_MODULES]
    if odd:
        raise ModelError(f"{spec} ends in {odd[0]}, which comem does not know", _OTHER)
    folders = [module["path"] for module in modules if module["type"].endswith(".Pooling")]
    pooling = _pooling(spec, _pooling_config(files, folders[0])) if folders else "mean"
    limits = [
        _read(files.directory / "sentence_bert_config.json", "max_seq_length"),
        _read(files.directory / "config.json", "max_position_embeddings"),
    ]
    longest = min(int(limit) for limit in [*limits, 8192] if limit)
    prompts = _read(files.directory / "config_sentence_transformers.json", "prompts") or {}
    chosen = {"query": prompts.get("query", ""), "document": prompts.get("document", prompts.get("passage", ""))}
    return EncoderFiles(spec, files, pooling, longest, chosen, _digest(files, pooling, longest, chosen))


def _pooling(spec: str, config: dict[str, Any]) -> str:
    modes = [key for key, value in config.items() if key.startswith("pooling_mode_") and value is True]
    if len(modes) != 1 or modes[0] not in POOLINGS or config.get("include_prompt") is False:
        raise ModelError(f"{spec} pools by {', '.join(modes) or 'nothing'}, which comem does not know", _OTHER)
    return POOLINGS[modes[0]]


def _pooling_config(files: load.ModelFiles, folder: str) -> dict[str, Any]:
    """Read the pooling's settings; of a hub model, fetch that one file, which loading a decoder leaves out."""
    path = files.directory / folder / "config.json"
    if not path.is_file() and files.source == "hub":
        from huggingface_hub import hf_hub_download

        from comem_cli.model.pretrained import refuse

        try:
            path = Path(hf_hub_download(files.name, f"{folder}/config.json", revision=files.revision))
        except Exception as error:
            refuse(f"download {folder}/config.json of {files.name}", error, "check the network")
    found: dict[str, Any] = _read(path) or {}
    return found


def _read(path: Path, key: str | None = None) -> Any:
    """Return what a JSON file holds, or one of its values; None where either is missing."""
    if not path.is_file():
        return None
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ModelError(f"cannot read {path}: {error}", _OTHER) from error
    return value.get(key) if key else value


def _digest(files: load.ModelFiles, *settings: object) -> str:
    names = sorted([*files.directory.glob("*.safetensors"), files.directory / "config.json", files.tokenizer_file])
    parts = [[path.name, file_sha256(path)] for path in names]
    return hashlib.blake2b(json.dumps([parts, settings]).encode(), digest_size=16).hexdigest()
