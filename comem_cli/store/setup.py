"""Settle everything that a Write needs before any file is read: model, mode, fingerprint, device and dtype.

Settings that the user does not give come from the store where it exists, else from the model and its adapters: the
deepest split that reads near replay, chunks of 512 tokens, mode chunk, bf16 residuals.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from comem_cli.errors import FingerprintError, NoStoreError, UsageError
from comem_cli.model import load
from comem_cli.model.adapter import Interface, default_split
from comem_cli.model.families import require_proved
from comem_cli.model.modes import ChunkWriter, make_mode
from comem_cli.model.shapes import TOKENS_PER_BATCH, shapes_from_json, shapes_to_json
from comem_cli.store.fingerprint import Fingerprint
from comem_cli.store.identify import fingerprint_for
from comem_cli.store.reader import StoreReader
from comem_cli.store.row_layout import BF16, DTYPES, INT8, NARROWEST, WIDEST
from comem_cli.store.write_adapter import NONE, adapter_for_write, merged
from comem_cli.store.writer import COMPUTE_DTYPE

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel

CHUNK = 512  # tokens
LIBRARIES = ("torch", "transformers", "tokenizers")
KV_SIZES = ("n_layers", "kv_heads", "head_dim")  # of the model: what a full KV cache would take
RESIDUAL_FIELDS = {"format_version", "residual_dtype", "quantiser"}  # one option settles them
MODE_FIELDS = {"mode", "overlap", "shapes"}  # of the fingerprint: what a rewrite may change


@dataclass(frozen=True)
class WriteOptions:
    """Hold what the user asked for; None means: as the store has it, else the default."""

    split: int | None = None
    chunk: int | None = None
    overlap: int | None = None
    device: str = "auto"
    dtype: str = "auto"
    yes: bool = False
    mode: str | None = None
    write_adapter: str | None = None
    residual_dtype: str | None = None  # "bf16" | "int8"


@dataclass(frozen=True)
class Stored:
    """Hold what an existing store says about itself; one that lost all its documents may take other settings."""

    fingerprint: Fingerprint
    recorded: dict[str, str]
    emptied: bool = False


class WriteSetup:
    """Hold the settings of one Write.

    Raises ModelError, UsageError (2) for a value out of range, FingerprintError (12) where the store was written
    otherwise; with `rewrite`, its mode may differ.
    """

    def __init__(self, store: Path, files: load.ModelFiles, options: WriteOptions, *, rewrite: bool = False) -> None:
        self.store = store
        self.files = files
        self.identity = load.identity(files)
        self.stored = _peek(store)
        self._options = options
        self._picked: tuple[torch.device, torch.dtype] | None = None
        old = self.stored.fingerprint if self.stored else None
        chunk = _given(options.chunk, old.chunk if old else None, CHUNK)
        name, overlap = _mode(options, old)
        split = options.split if options.split is not None else old.split if old else None
        if split is None:
            split = default_split(self.identity, chunk=chunk, mode=name, overlap=overlap)
        self._check_ranges(split, chunk, overlap)
        if split == 0 and name != "chunk":
            raise UsageError(
                "split 0 keeps token ids only: there is no residual that left context could change",
                "leave out --mode and --overlap, or pass --split above 0",
            )
        self.mode = make_mode(name, overlap, self.identity.window)
        like = (split > 0, chunk, overlap, name)
        same = old is not None and (old.split > 0, old.chunk, old.overlap, old.mode) == like
        shapes = old.shapes if old is not None and same else self._shapes(split, chunk)
        self.fingerprint = fingerprint_for(
            self.identity,
            split=split,
            chunk=chunk,
            overlap=overlap,
            mode=name,
            shapes=shapes,
            residual_dtype=self._residual_dtype(split, old),
        )
        interface = Interface.of(self.identity, split=split, chunk=chunk, mode=name, overlap=overlap)
        wrote = old.write_adapter if old else NONE
        self.write_adapter = adapter_for_write(options.write_adapter, wrote, interface)
        if self.write_adapter is not None:
            self.fingerprint = replace(self.fingerprint, write_adapter=self.write_adapter.digest)
        if self.stored and not self.stored.emptied:
            self._require(self.stored.fingerprint, rewrite)

    def make_writer(self) -> ChunkWriter:
        """Load the model and make the writer of the mode."""
        return self.writer_of(load.load(self.files, *self.pick()))

    def writer_of(self, model: PreTrainedModel) -> ChunkWriter:
        """Make the writer of the mode for a loaded model."""
        from comem_cli.model.split import SplitModel

        writes = model if self.write_adapter is None else merged(model, self.write_adapter)
        split = SplitModel(writes, self.fingerprint.split)
        return self.mode.writer(split, shapes_from_json(self.fingerprint.shapes))

    def pick(self) -> tuple[torch.device, torch.dtype]:
        """Choose device and dtype once; an existing store keeps its dtype."""
        if self._picked is None:
            from comem_cli.model.device import pick

            stored = self.stored.recorded.get(COMPUTE_DTYPE, "auto") if self.stored else "auto"
            wanted = self._options.dtype if self._options.dtype != "auto" else stored
            self._picked = pick(self._options.device, "auto" if wanted == "none" else wanted)
        return self._picked

    def device(self) -> str:
        """Name the device."""
        return str(self.pick()[0])

    def record(self) -> dict[str, str]:
        """Collect the facts that are recorded beside the fingerprint."""
        facts: dict[str, Any] = {"model": self.identity.name, COMPUTE_DTYPE: "none", "device": "none"}
        sizes = {name: getattr(self.identity, name) for name in KV_SIZES}
        facts |= {name: str(size) for name, size in sizes.items() if size is not None}
        if self.fingerprint.split:
            from comem_cli.model.device import DTYPES as COMPUTE_DTYPES

            device, dtype = self.pick()
            names = {f"torch.{long}": short for short, long in COMPUTE_DTYPES.items()}
            attention = require_proved(self.identity.model_type).attention
            facts |= {COMPUTE_DTYPE: names[str(dtype)], "device": str(device), "attention": attention}
        return facts | {name: version(name) for name in LIBRARIES}

    def _residual_dtype(self, split: int, old: Fingerprint | None) -> str:
        if self._options.residual_dtype is None:
            return old.residual_dtype if old is not None else BF16
        wanted = DTYPES[self._options.residual_dtype]
        if wanted == INT8 and split == 0:
            raise UsageError(
                "split 0 keeps token ids only: there is no residual to quantise",
                "leave out --residual-dtype, or pass --split above 0",
            )
        if wanted == INT8 and not NARROWEST <= self.identity.width <= WIDEST:
            raise UsageError(
                f"int8 residuals need a width of {NARROWEST} to {WIDEST:,}; the model's is {self.identity.width:,}",
                "pass --residual-dtype bf16",
            )
        return wanted

    def _shapes(self, split: int, chunk: int) -> str:
        if split == 0:
            return "[]"
        tokens = TOKENS_PER_BATCH[self.pick()[0].type]
        return shapes_to_json(self.mode.shapes(chunk, tokens, routed=self.identity.routed))

    def _require(self, old: Fingerprint, rewrite: bool) -> None:
        found = {name for name, _, _ in old.differences(self.fingerprint)}
        if found and found <= MODE_FIELDS:
            if rewrite:
                return
            option = f"--overlap {self.mode.overlap}" if self.mode.overlap else f"--mode {self.mode.name}"
            raise FingerprintError(
                f"the store was written with mode {old.mode} (overlap {old.overlap}), not {self.mode.name} "
                f"(overlap {self.mode.overlap})",
                f"comem overlap-write {self.store} {option}, or write another store with --store DIR",
            )
        if found and found <= RESIDUAL_FIELDS:
            raise FingerprintError(
                f"the store was written with residual_dtype {old.residual_dtype} (quantiser {old.quantiser}), "
                f"not {self.fingerprint.residual_dtype} (quantiser {self.fingerprint.quantiser})",
                "leave out --residual-dtype, or write another store with --store DIR",
            )
        old.require_same(self.fingerprint)

    def _check_ranges(self, split: int, chunk: int, overlap: int) -> None:
        layers, window = self.identity.n_layers, self.identity.window
        if not 0 <= split <= layers:
            raise UsageError(f"split {split} is outside 0..{layers}", f"pass --split between 0 and {layers}")
        if not 1 <= chunk <= window:
            raise UsageError(f"chunk {chunk} is outside 1..{window} tokens", "pass --chunk 512")
        if not 0 <= overlap <= window - chunk:
            raise UsageError(f"overlap {overlap} is outside 0..{window - chunk} tokens", "pass --overlap 32")


def _given(asked: int | None, stored: int | None, default: int) -> int:
    if asked is not None:
        return asked
    return default if stored is None else stored


def _mode(options: WriteOptions, old: Fingerprint | None) -> tuple[str, int]:
    """Settle mode and overlap: an overlap above 0 implies mode overlap, an overlap of 0 mode chunk."""
    overlap = options.overlap or 0
    if options.mode is not None:
        return options.mode, overlap
    if options.overlap is not None:
        return "overlap" if overlap else "chunk", overlap
    return (old.mode, old.overlap) if old else ("chunk", 0)


def _peek(store: Path) -> Stored | None:
    try:
        with StoreReader(store) as reader:
            counts = reader.counts()
            empty = not (counts.documents or counts.chunks or counts.unplaced_chunks)
            if empty and reader.catalogue.meta()["next_chunk"] == "0":
                return None  # its first ingest failed before anything was written
            return Stored(reader.fingerprint, reader.recorded, empty)
    except NoStoreError:
        return None
