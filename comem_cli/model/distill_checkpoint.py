"""Checkpoints of a distillation: whole or not there, so that a run killed at any moment goes on from the last one.

OUT/run.json says which run this is. OUT/checkpoints/step-N holds the LoRA weights and both AdamW moments
(`state.safetensors`, fp32) and what was measured so far (`state.json`). A checkpoint is written aside, flushed and
renamed; the older ones are removed after that. Nothing is pickled.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from comem_cli.errors import LockedError
from comem_cli.model.distill_options import require_same_run

if TYPE_CHECKING:
    import torch

_RUN, _TENSORS, _FACTS = "run.json", "state.safetensors", "state.json"


@dataclass(frozen=True)
class Checkpoint:
    """Hold the state after `step` steps: tensors by name, fp32 on the CPU, and JSON facts."""

    step: int
    tensors: dict[str, torch.Tensor]
    facts: dict[str, Any]


class RunFolder:
    """Hold one run's directory."""

    def __init__(self, out: Path) -> None:
        self.out = out
        self._folder = out / "checkpoints"

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep others out; raises LockedError (11) where another process trains into this directory."""
        self.out.mkdir(parents=True, exist_ok=True)
        with (self.out / ".lock").open("w") as file:  # closing it, or dying, frees the lock
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise LockedError(
                    f"another comem trains into {self.out}", "wait for it, or pass another --out"
                ) from error
            yield

    def claim(self, run: dict[str, Any]) -> None:
        """Write down which run this is; raises FingerprintError (12) where the directory holds another one."""
        path = self.out / _RUN
        if path.is_file():
            require_same_run(json.loads(path.read_bytes()), run, self.out)
            return
        write_whole(path, json.dumps(run, indent=1, sort_keys=True).encode())

    def save(self, checkpoint: Checkpoint) -> None:
        """Write a checkpoint and remove the older ones."""
        from safetensors.torch import save_file

        name = f"step-{checkpoint.step:07}"
        part = self._folder / f".{name}.part"
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir(parents=True)
        save_file(checkpoint.tensors, str(part / _TENSORS))
        _sync(part / _TENSORS)
        write_whole(part / _FACTS, json.dumps(checkpoint.facts).encode())
        target = self._folder / name
        if target.exists():
            shutil.rmtree(target)
        part.rename(target)
        _sync(self._folder)
        for old in self._steps():
            if old != target:
                shutil.rmtree(old)

    def latest(self) -> Checkpoint | None:
        """Read the newest checkpoint; None where there is none."""
        from safetensors.torch import load_file

        found = self._steps()
        if not found:
            return None
        newest = found[-1]
        return Checkpoint(
            int(newest.name.removeprefix("step-")),
            load_file(str(newest / _TENSORS)),
            json.loads((newest / _FACTS).read_bytes()),
        )

    def clear(self) -> None:
        """Remove the checkpoints of a run that is done."""
        shutil.rmtree(self._folder, ignore_errors=True)

    def _steps(self) -> list[Path]:
        return sorted(self._folder.glob("step-*"))


def write_whole(path: Path, content: bytes) -> None:
    """Write a file whole or not at all."""
    aside = path.with_name(f".{path.name}.part")
    aside.write_bytes(content)
    _sync(aside)
    aside.replace(path)
    _sync(path.parent)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
