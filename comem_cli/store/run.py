"""Run an ingest from paths to a committed store: settle the settings, plan, load the model only if a chunk needs it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from comem_cli.errors import NoStoreError
from comem_cli.model import load
from comem_cli.model.modes import ChunkWriter
from comem_cli.store.ingest import Ingest, Summary
from comem_cli.store.plan import Plan, make_plan
from comem_cli.store.reader import StoreReader
from comem_cli.store.setup import WriteOptions, WriteSetup
from comem_cli.store.write_queue import Event
from comem_cli.store.writer import COMPUTE_DTYPE, StoreWriter


class IngestRun:
    """Hold everything an ingest needs before any file is read. Raises what `WriteSetup` raises."""

    def __init__(self, store: Path, files: load.ModelFiles, options: WriteOptions) -> None:
        self.store = store
        self.files = files
        self._options = options
        self._setup = WriteSetup(store, files, options)
        self.identity = self._setup.identity
        self.fingerprint = self._setup.fingerprint

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
        stored = self._setup.stored
        recorded = stored.recorded if stored else self._setup.record()
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
        with StoreReader(self.store) as reader:
            reader.require_shards()  # else "unchanged" would be said of documents whose residuals are gone
        plan = make_plan(paths, writer.documents(), writer.roots(), yes=self._options.yes)
        on_plan(plan)

        def make_writer() -> ChunkWriter:
            on_load()
            return self._setup.make_writer()

        job = Ingest(
            writer,
            load.tokenizer(self.files),
            self._setup.mode,
            make_writer if self.fingerprint.split else None,
            on_event=on_event,
            on_bytes=on_bytes,
            device=self._setup.device,
        )
        return job.run(plan)
