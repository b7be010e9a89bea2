"""What the arms work on: the loaded model, and chunks of the handbook in examples/."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from comem_cli.model import load
from comem_cli.model.device import pick

if TYPE_CHECKING:
    from transformers import PreTrainedModel

HANDBOOK = Path(__file__).parents[2] / "examples" / "handbook"
CHUNK = 512
QUESTION = "\n\nQuestion: At what oxygen level does the monitor in the basement corridor sound?\nAnswer:"


@dataclass(frozen=True)
class Material:
    """Load the model once; model None means the embedded one."""

    spec: str | None = None
    device: str = "auto"
    dtype: str = "auto"

    @cached_property
    def files(self) -> load.ModelFiles:
        """Find the model's files."""
        return load.resolve(self.spec)

    @cached_property
    def identity(self) -> load.ModelIdentity:
        """Return sizes and special ids."""
        return load.identity(self.files)

    @cached_property
    def model(self) -> PreTrainedModel:
        """Load the weights."""
        return load.load(self.files, *pick(self.device, self.dtype))

    def ids(self, tokens: int) -> list[int]:
        """Return token ids of the handbook, repeated as often as it takes."""
        text = "\n".join(path.read_text() for path in sorted(HANDBOOK.rglob("*.md")))
        ids: list[int] = load.tokenizer(self.files).encode(text, add_special_tokens=False).ids
        return (ids * (tokens // len(ids) + 1))[:tokens]

    def query(self) -> list[int]:
        """Return the ids of a question of ordinary length."""
        ids: list[int] = load.tokenizer(self.files).encode(QUESTION, add_special_tokens=False).ids
        return ids

    def chunks(self, count: int) -> list[bytes]:
        """Return chunks as the store keeps them: uint32 LE."""
        flat = torch.tensor(self.ids(count * CHUNK), dtype=torch.int32).view(count, CHUNK)
        return [row.numpy().astype("<u4").tobytes() for row in flat]
