"""Repair a store from what it holds: residuals are computed again from the kept token ids.

A damaged shard is replaced: its whole chunks are copied into a new shard, the others are written again with their left
context, in the store's mode, shapes and dtype, so that on the same device the bytes equal those that were lost. One
transaction points the chunks at the new shard; then the old one goes. Token ids and rows of the catalogue cannot be
healed from inside: documents that lost theirs have to be ingested again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from comem_cli.errors import CorruptStoreError
from comem_cli.model import load
from comem_cli.model.modes import ChunkMode, ChunkWriter, WriteMode
from comem_cli.model.shapes import Pending
from comem_cli.store import format
from comem_cli.store.check import CheckIndex, CheckOptions, Report, check_store
from comem_cli.store.check_catalogue import CatalogueState
from comem_cli.store.fetch import ShardFiles
from comem_cli.store.fingerprint import chunk_key
from comem_cli.store.mend import MendingWriter
from comem_cli.store.rows import ChunkRow
from comem_cli.store.setup import WriteOptions, WriteSetup
from comem_cli.store.writer import StoreWriter

SWEPT = {"zarr-shape", "leftover-file", "leftover-shard"}  # notes: opening a writer mends them
REBUILT = {"index-missing", "index-damaged", "index-none", "index-stale"}
READ_ALL = CheckOptions(read_data=True)


@dataclass
class Repaired:
    """Count what a repair did. `differing`: chunks whose new bytes are not the lost ones (another device or library).

    moved: whole chunks that left a damaged shard. dropped: chunks of an interrupted run that were damaged.
    """

    shards: int = 0
    rewritten: int = 0
    moved: int = 0
    dropped: int = 0
    differing: int = 0
    indexed: int | None = None


class Repair:
    """Repair one store; nothing is written where nothing is damaged.

    resolve gives the model's files, and is called only if a residual has to be computed, as is on_load before the
    model is loaded. rebuild_index builds and names the BM25 index of an open writer, returning its chunks.
    """

    def __init__(
        self,
        store: Path,
        resolve: Callable[[], load.ModelFiles],
        *,
        check_index: CheckIndex,
        rebuild_index: Callable[[StoreWriter], int],
        device: str = "auto",
        on_load: Callable[[str], None] = lambda name: None,
    ) -> None:
        self._store = store
        self._resolve = resolve
        self._device = device
        self._on_load = on_load
        self._check_index = check_index
        self._rebuild_index = rebuild_index
        self._setup: WriteSetup | None = None
        self.done = Repaired()

    def run(self) -> tuple[Report, Report]:
        """Check, repair and check again, every byte; return both reports.

        Raises: NoStoreError (10), LockedError (11), FingerprintError (12) for another model, NoSpaceError (14),
        ModelError, ComemError (1). What cannot be repaired is in the second report.
        """
        before = check_store(self._store, READ_ALL, self._check_index)
        if before.state is None or not any(f.damage or f.code in REBUILT | SWEPT for f in before.findings):
            return before, before
        try:
            with MendingWriter.open(self._store) as writer:
                self._repair(writer)
        except CorruptStoreError:
            pass  # meta or roots: the second report names what keeps the store from being repaired
        return before, check_store(self._store, READ_ALL, self._check_index)

    def _repair(self, writer: MendingWriter) -> None:
        writer.rebuild_sqlite_indexes()
        self._remove_odd_metadata(writer)
        now = check_store(self._store, READ_ALL, self._check_index)  # under the lock nothing moves any more
        if now.state is None:
            return
        writer.discard_ledger(now.state)
        by_shard = now.state.by_shard()
        for number in sorted(now.state.broken_shards):
            self._replace_shard(writer, now.state, by_shard.get(number, []))
            self.done.shards += 1
        writer.drop_empty_shards()
        writer.recover()
        if any(finding.code in REBUILT for finding in now.findings):
            self._index(writer)

    def _index(self, writer: MendingWriter) -> None:
        try:
            self.done.indexed = self._rebuild_index(writer)
        except CorruptStoreError:
            self.done.indexed = None  # token ids are damaged: the second report says which documents to ingest

    def _remove_odd_metadata(self, writer: MendingWriter) -> None:
        """Unlink a zarr.json that is a link or no file at all; the writer then makes it."""
        for folder in (self._store, self._store / format.ARRAY_NAME):
            path = folder / format.METADATA_NAME
            if path.is_symlink() or (path.exists() and path.stat().st_size > 2**16):
                path.unlink()
        writer.recover()

    def _replace_shard(self, writer: MendingWriter, state: CatalogueState, chunks: list[ChunkRow]) -> None:
        """Move the chunks of a damaged shard into a new one, each copied or computed again."""
        whole, broken = self._sort(writer, chunks)
        unplaced = [chunk for chunk in broken if chunk.id not in state.cited_by]
        writer.discard_chunks(chunk.id for chunk in unplaced)
        self.done.dropped += len(unplaced)
        wanted = {chunk.id: chunk for chunk in broken if chunk.id in state.cited_by}
        moved = _Relocation(writer)
        for chunk, rows in self._read(writer, whole):
            moved.add(chunk, rows)
            self.done.moved += 1
        for chunk, rows in self._written(writer, state, wanted):
            self.done.differing += moved.add(chunk, rows) != chunk.crcs
            self.done.rewritten += 1
        moved.finish()

    def _sort(self, writer: MendingWriter, chunks: list[ChunkRow]) -> tuple[list[ChunkRow], list[ChunkRow]]:
        whole: list[ChunkRow] = []
        broken: list[ChunkRow] = []
        files = ShardFiles(self._store, writer.layout)
        try:
            for chunk in chunks:
                try:
                    files.stored(chunk)
                    whole.append(chunk)
                except CorruptStoreError:
                    broken.append(chunk)
        finally:
            files.close()
        return whole, broken

    def _read(self, writer: MendingWriter, chunks: list[ChunkRow]) -> Iterator[tuple[ChunkRow, bytes]]:
        files = ShardFiles(self._store, writer.layout)
        try:
            for chunk in chunks:
                yield chunk, bytes(files.stored(chunk))
        finally:
            files.close()

    def _written(
        self, writer: MendingWriter, state: CatalogueState, wanted: dict[int, ChunkRow]
    ) -> Iterator[tuple[ChunkRow, bytes]]:
        """Compute the residuals of `wanted` again, in the form in which they lie on disk."""
        if not wanted:
            return
        by_key = {chunk.key: chunk for chunk in wanted.values()}
        setup = self._setup = self._setup or WriteSetup(self._store, self._resolve(), WriteOptions(device=self._device))
        model: ChunkWriter | None = None
        for pending in _pending(writer, state, setup.mode, wanted):
            if model is None:
                model = self._model(setup)
            yield from ((by_key[done.key], writer.layout.encode(rows)) for done, rows in model.add(pending))
        if model is not None:
            yield from ((by_key[done.key], writer.layout.encode(rows)) for done, rows in model.flush())

    def _model(self, setup: WriteSetup) -> ChunkWriter:
        self._on_load(setup.files.name)
        return setup.make_writer()


class _Relocation:
    """Fill new shards and point chunks at them, a transaction a shard."""

    def __init__(self, writer: MendingWriter) -> None:
        self._writer = writer
        self._start()

    def add(self, chunk: ChunkRow, rows: bytes) -> bytes:
        """Put a chunk's n rows, as they lie on disk, into the new shard; return the checksums of its blocks."""
        blocks = self._builder.blocks + format.blocks_of(chunk.n_tokens)
        if blocks * format.ROWS_PER_BLOCK > self._writer.capacity:
            self.finish()
        row, crcs = self._builder.add(memoryview(rows))
        self._moved.append(replace(_with_ids(self._writer, chunk), row=row, crcs=crcs))
        return crcs

    def finish(self) -> None:
        """Commit what is there; shards without chunks go even if nothing is."""
        if self._moved:
            self._writer.relocate(self._builder, self._moved)
        self._start()

    def _start(self) -> None:
        self._builder = format.ShardBuilder(self._writer.layout, self._writer.capacity)
        self._moved: list[ChunkRow] = []


def _with_ids(writer: StoreWriter, chunk: ChunkRow) -> ChunkRow:
    """Return a chunk's whole row: its digest covers the token ids."""
    return next(writer.catalogue.rows_in(ChunkRow, "id", [chunk.id]))


def _pending(
    writer: StoreWriter, state: CatalogueState, mode: WriteMode, wanted: dict[int, ChunkRow]
) -> Iterator[Pending]:
    """Yield what the writer of the mode takes for each wanted chunk whose left context can be read."""
    left = dict(wanted)
    key = partial(chunk_key, writer.fingerprint.digest())
    for document_id in dict.fromkeys(number for chunk_id in wanted for number in state.cited_by[chunk_id]):
        for chunk_id, pending in _of_document(writer, mode, document_id, key):
            if chunk_id in left and left[chunk_id].key == pending.key:
                del left[chunk_id]
                yield pending
    if mode == ChunkMode():  # needs no context: the document around it may be damaged
        for chunk in writer.catalogue.rows_in(ChunkRow, "id", left):
            (alone,) = mode.pending([chunk.ids], key)
            if alone.key == chunk.key:
                yield alone


def _of_document(
    writer: StoreWriter, mode: WriteMode, document_id: int, key: Callable[[bytes, bytes], str]
) -> Iterable[tuple[int, Pending]]:
    try:
        held = [chunk for _, chunk in writer.document_chunks(document_id)]
    except CorruptStoreError:
        return ()
    return zip([chunk.id for chunk in held], mode.pending([chunk.ids for chunk in held], key), strict=True)
