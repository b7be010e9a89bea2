"""Run an ingest from paths to a committed store: settle the settings, plan, load the model only if a chunk needs it.

Settings that the user does not give come from the store where it exists, else from the model: split round(L/3), chunks
of 512 tokens, no left context.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from comem_cli.errors import NoStoreError, UsageError
from comem_cli.model import load
from comem_cli.store.fingerprint import Fingerprint
from comem_cli.store.identify import fingerprint_for
from comem_cli.store.ingest import Event, Ingest, Summary
from comem_cli.store.plan import Plan, make_plan
from comem_cli.store.reader import StoreReader
from comem_cli.store.writer import COMPUTE_DTYPE, StoreWriter

if TYPE_CHECKING:
    import torch

    from comem_cli.model.write import BatchWriter

CHUNK = 512  # tokens
LIBRARIES = ("torch", "transformers", "tokenizers")


@dataclass(frozen=True)
class WriteOptions:
    """Hold what the user asked for; None means: as the store has it, else the default."""

    split: int | None = None
    chunk: int | None = None
    overlap: int | None = None
    device: str = "auto"
    dtype: str = "auto"
    yes: bool = False


@dataclass(frozen=True)
class _Existing:
    fingerprint: Fingerprint
    recorded: dict[str, str]


class IngestRun:
    """Hold everything an ingest needs before any file is read: model identity, fingerprint, device.

    Raises ModelError, UsageError (2) for a split or chunk size out of range, FingerprintError (12).
    """

    def __init__(self, store: Path, files: load.ModelFiles, options: WriteOptions) -> None:
        self.store = store
        self.files = files
        self.identity = load.identity(files)
        self._options = options
        self._existing = _peek(store)
        old = self._existing.fingerprint if self._existing else None
        split = _given(options.split, old.split if old else None, round(self.identity.n_layers / 3))
        chunk = _given(options.chunk, old.chunk if old else None, CHUNK)
        overlap = _given(options.overlap, old.overlap if old else None, 0)
        self._check_ranges(split, chunk, overlap)
        self._picked: tuple[torch.device, torch.dtype] | None = None
        mode = "overlap" if overlap else "chunk"
        same_shapes = old is not None and (old.split > 0, old.chunk, old.overlap) == (split > 0, chunk, overlap)
        shapes = old.shapes if old is not None and same_shapes else self._shapes(split, chunk, overlap)
        self.fingerprint = fingerprint_for(
            self.identity, split=split, chunk=chunk, overlap=overlap, mode=mode, shapes=shapes
        )
        if old is not None:
            old.require_same(self.fingerprint)

    def plan(self, paths: Sequence[Path]) -> Plan:
        """Say what an ingest of `paths` would do; nothing is written."""
        try:
            with StoreReader(self.store) as reader:
                return make_plan(paths, reader.documents(), reader.roots(), yes=True)
        except NoStoreError:
            return make_plan(paths, [], {})

    @contextmanager
    def open(self) -> Iterator[StoreWriter]:
        """Take the store's writer lock, creating the store where there is none."""
        recorded = self._existing.recorded if self._existing else self._record()
        if self._options.dtype != "auto" and self.fingerprint.split:
            recorded = {**recorded, COMPUTE_DTYPE: self._options.dtype}
        with StoreWriter.create_or_open(self.store, self.fingerprint, self.identity.width, recorded) as writer:
            yield writer

    def ingest(
        self,
        writer: StoreWriter,
        paths: Sequence[Path],
        *,
        on_plan: Callable[[Plan], None],
        on_event: Event,
        on_bytes: Callable[[int], None],
        on_load: Callable[[], None],
    ) -> Summary:
        """Bring the store in step with `paths`. on_load is called before the model is loaded, if it is at all."""
        plan = make_plan(paths, writer.documents(), writer.roots(), yes=self._options.yes)
        on_plan(plan)

        def make_batches() -> BatchWriter:
            on_load()
            return self._batches()

        residuals = self.fingerprint.split > 0
        job = Ingest(
            writer,
            load.tokenizer(self.files),
            make_batches if residuals else None,
            on_event=on_event,
            on_bytes=on_bytes,
            device=lambda: str(self._pick()[0]),
        )
        return job.run(plan)

    def _batches(self) -> BatchWriter:
        from comem_cli.model.split import SplitModel
        from comem_cli.model.write import BatchWriter, shapes_from_json

        model = load.load(self.files, *self._pick())
        return BatchWriter(SplitModel(model, self.fingerprint.split), shapes_from_json(self.fingerprint.shapes))

    def _pick(self) -> tuple[torch.device, torch.dtype]:
        """Choose device and dtype once; an existing store keeps its dtype."""
        if self._picked is None:
            from comem_cli.model.device import pick

            stored = self._existing.recorded.get(COMPUTE_DTYPE, "auto") if self._existing else "auto"
            wanted = self._options.dtype if self._options.dtype != "auto" else stored
            self._picked = pick(self._options.device, "auto" if wanted == "none" else wanted)
        return self._picked

    def _shapes(self, split: int, chunk: int, overlap: int) -> str:
        if split == 0:
            return "[]"
        from comem_cli.model.write import TOKENS_PER_BATCH, batch_shapes, shapes_to_json

        tokens = TOKENS_PER_BATCH[self._pick()[0].type]
        return shapes_to_json(batch_shapes(chunk, overlap, tokens, routed=self.identity.routed))

    def _record(self) -> dict[str, str]:
        """Collect the facts that are recorded beside the fingerprint."""
        facts: dict[str, Any] = {"model": self.identity.name, COMPUTE_DTYPE: "none", "device": "none"}
        if self.fingerprint.split:
            from comem_cli.model.device import DTYPES

            device, dtype = self._pick()
            names = {f"torch.{long}": short for short, long in DTYPES.items()}
            facts |= {COMPUTE_DTYPE: names[str(dtype)], "device": str(device), "attention": "sdpa"}
        return facts | {name: version(name) for name in LIBRARIES}

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


def _peek(store: Path) -> _Existing | None:
    try:
        with StoreReader(store) as reader:
            return _Existing(reader.fingerprint, reader.recorded)
    except NoStoreError:
        return None
