"""Run an ingest from paths to a committed store: settle the settings, plan, load the model only if a chunk needs it."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from comem_cli.errors import CorruptStoreError, NoStoreError
from comem_cli.model import load
from comem_cli.model.modes import ChunkWriter
from comem_cli.store.check_catalogue import CatalogueState, scan_catalogue
from comem_cli.store.ingest import Ingest, Summary
from comem_cli.store.mend import MendingWriter
from comem_cli.store.plan import Plan, below, make_plan
from comem_cli.store.reader import StoreReader
from comem_cli.store.setup import WriteOptions, WriteSetup
from comem_cli.store.write_queue import Event
from comem_cli.store.writer import COMPUTE_DTYPE


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
    def open(self) -> Iterator[MendingWriter]:
        """Take the store's writer lock, creating the store where there is none."""
        stored = self._setup.stored
        same = stored and (not stored.emptied or stored.fingerprint == self.fingerprint)
        recorded = stored.recorded if stored and same else self._setup.record()
        if self._options.dtype != "auto" and self.fingerprint.split:
            recorded = {**recorded, COMPUTE_DTYPE: self._options.dtype}
        with MendingWriter.create_or_open(self.store, self.fingerprint, self.identity.width, recorded) as writer:
            yield writer

    def ingest(
        self,
        writer: MendingWriter,
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
            state = scan_catalogue(reader)
        if state.damaged or state.flawed:
            self._require_covered(state, paths)
            writer.discard(state)
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

    def _require_covered(self, state: CatalogueState, paths: Sequence[Path]) -> None:
        """Refuse to go on where damaged documents would vanish, because `paths` do not name their files.

        Raises: CorruptStoreError (13).
        """
        scopes = [os.fsencode(os.path.realpath(path)) for path in paths]
        lost = [path for finding in state.findings for path in finding.paths if not below(os.fsencode(path), scopes)]
        if lost:
            names = sorted({*lost, *map(str, paths)})
            raise CorruptStoreError(
                f"{self.store}: the catalogue lost {len(set(lost))} documents outside these paths, first {lost[0]}",
                f"ingest them too: comem ingest {shlex.join(names)} --store {shlex.quote(str(self.store))}",
            )
