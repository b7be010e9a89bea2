"""The adapters of an arm: checked against what the arm reads and writes, merged once a model, named by their weights.

A suffix adapter must be of the arm's model, split, chunk, mode and overlap, as `ask` demands it. With replay it need be
of the model only: there is no interface that it could miss. A Write adapter changes what the arm's chunks become.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from comem_cli.evaluate.arms import Arm
from comem_cli.model.adapter import Adapter, Interface, read_adapter
from comem_cli.model.load import ModelIdentity

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@dataclass(frozen=True)
class ArmAdapters:
    """Hold the adapter of Read, layers [j:L), and that of Write, layers [0:j)."""

    suffix: Adapter | None = None
    write: Adapter | None = None

    def digests(self) -> list[str]:
        """Name kind and weights (sha256) of those that are there."""
        return [f"{one.kind}:{one.digest}" for one in (self.suffix, self.write) if one is not None]


NO_ADAPTERS = ArmAdapters()


def adapters_of(arm: Arm, identity: ModelIdentity, chunk: int) -> ArmAdapters:
    """Read the adapters that an arm names; chunk: tokens.

    Raises: UsageError (2) for what is no adapter, FingerprintError (12) naming each field in which one does not fit.
    """
    here = Interface.of(identity, split=arm.split, chunk=chunk, mode=arm.mode, overlap=arm.overlap)
    suffix = _read(arm.adapter)
    if suffix is not None:
        model_only = replace(suffix.interface, weights=here.weights, config=here.config)
        suffix.require("suffix", here if arm.split else model_only)
    write = _read(arm.write_adapter)
    if write is not None:
        write.require("write", here)
    return ArmAdapters(suffix, write)


def _read(directory: Path | None) -> Adapter | None:
    return None if directory is None else read_adapter(directory.expanduser())


class Forks:
    """Merge adapters into forks of one loaded model, each once; arms with the same weights share a fork."""

    def __init__(self, model: PreTrainedModel) -> None:
        self.stock = model
        self._merged: dict[str, PreTrainedModel] = {}

    def of(self, adapter: Adapter | None) -> PreTrainedModel:
        """Return the model that carries an adapter, the stock one for None; raises ModelError where it does not fit."""
        if adapter is None:
            return self.stock
        if adapter.digest not in self._merged:
            from comem_cli.model.lora import adapted  # brings peft, which arms without an adapter need not

            self._merged[adapter.digest] = adapted(self.stock, adapter)
        return self._merged[adapter.digest]
