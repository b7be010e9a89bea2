"""The one writer of a store.

    write shard.tmp -> fsync -> rename -> fsync directories -> one SQLite transaction -> zarr.json grows

The transaction is the sole commit point. A process killed anywhere leaves the last generation or the next one; the
next writer sweeps what no commit owns, and `stored` tells which chunks need not be computed again. A document becomes
visible, replacing its old version, in the commit at which all its chunks are durable. What was not committed when the
writer closes is dropped.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Self

from comem_cli.errors import FingerprintError, NoStoreError
from comem_cli.store import catalogue as catalogues
from comem_cli.store import create, durable, edits, format, shards
from comem_cli.store.document import chunk_ids, document_chunks
from comem_cli.store.edits import NewDocument, Placement, Waiting
from comem_cli.store.fingerprint import Fingerprint
from comem_cli.store.lock import WriterLock, undone_on_error
from comem_cli.store.row_layout import RowLayout
from comem_cli.store.rows import ChunkRow, DocumentRow, LedgerRow, MetaRow, PlacementRow, RootRow, ShardRow

COMPUTE_DTYPE = "compute_dtype"  # the recorded fact that a resumed Write must share


class StoreWriter:
    """Hold the writer lock and change the store; built by `create_or_open` and `open`, used as a context manager."""

    def __init__(self, path: Path, lock: WriterLock, catalogue: catalogues.Catalogue) -> None:
        facts = catalogue.meta()
        self.path = path
        self.fingerprint = Fingerprint.from_dict(json.loads(facts["fingerprint"]))
        self.recorded: dict[str, str] = json.loads(facts["recorded"])
        self.width = int(facts["width"])
        self.layout = RowLayout.of(self.fingerprint, self.width)
        self.capacity = int(facts["capacity"])
        self._lock = lock
        self._catalogue = catalogue
        self._facts = facts
        self._next_chunk = int(facts["next_chunk"])
        self._next_document = int(facts["next_document"])
        self._waiting: dict[tuple[int, bytes], Waiting] = {}
        self._removed: set[int] = set()
        self._roots = {root.path: root for root in catalogue.rows(RootRow)}
        self._new_roots: list[RootRow] = []
        self._io_ms = 0.0
        self._clear_buffer()

    @classmethod
    def create_or_open(cls, path: Path, fingerprint: Fingerprint, width: int, recorded: Mapping[str, str]) -> Self:
        """Take the lock of the store at `path`, creating it where there is none, and sweep what a killed writer left.

        `width` is d, the values of a residual row. `recorded` are facts of this machine (at least "compute_dtype");
        a store keeps those of its creation.

        Raises: LockedError (11), FingerprintError (12) for another fingerprint, width or, with residuals, compute
        dtype, UsageError (2) for a directory that holds something else, CorruptStoreError (13), NoSpaceError (14).
        """
        create.refuse_foreign(path)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            durable.raise_os_error(error, path.parent.parent, 4096)
        durable.make_dir(path)
        lock = WriterLock(path)
        with undone_on_error(lock.release):
            facts = create.first_facts(fingerprint, width, recorded)
            catalogue = catalogues.open_writable(path) or catalogues.create(path, facts)
            with undone_on_error(catalogue.close):
                create.adopt_if_empty(catalogue, facts)
                writer = cls(path, lock, catalogue)
                writer._require(fingerprint, width, recorded)
                writer.recover()
        return writer

    @classmethod
    def open(cls, path: Path, holder: str | None = None) -> Self:
        """Take the lock of a store that exists, whatever its fingerprint, and sweep what a killed writer left.

        `holder` is what a second writer is told, by default the command line.

        Raises: NoStoreError (10), LockedError (11), CorruptStoreError (13), NoSpaceError (14).
        """
        missing = NoStoreError(f"no store at {path}", f"comem ingest PATH --store {path}")
        if not (path / catalogues.CATALOGUE_NAME).is_file() and catalogues.open_writable(path) is None:
            raise missing  # before the lock, whose file would litter a folder that is no store
        lock = WriterLock(path, holder)
        with undone_on_error(lock.release):
            catalogue = catalogues.open_writable(path)
            if catalogue is None:
                raise missing
            with undone_on_error(catalogue.close):
                writer = cls(path, lock, catalogue)
                writer.recover()
        return writer

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Drop what was not committed and free the lock."""
        self._catalogue.close()
        self._lock.release()

    @property
    def generation(self) -> int:
        """Return the number of the last commit."""
        return int(self._facts["generation"])

    @property
    def catalogue(self) -> catalogues.Catalogue:
        """Return the open catalogue, to read from: what changes it goes through this class."""
        return self._catalogue

    @property
    def content(self) -> str:
        """Return the digest of the live chunks as of the last commit, for `set_index`."""
        return self._facts["content"]

    def documents(self) -> Iterator[DocumentRow]:
        """Stream the committed documents.

        Raises: CorruptStoreError (13).
        """
        return self._catalogue.rows(DocumentRow)

    def roots(self) -> dict[int, str]:
        """Return the absolute path of each source root, by id, those of the next commit included."""
        return {root.id: root.name for root in self._roots.values()}

    @property
    def index_is_fresh(self) -> bool:
        """Tell whether the index that the catalogue names matches the live chunks."""
        return bool(self._facts["index_name"]) and self._facts["index_content"] == self.content

    def stored(self, keys: Iterable[str]) -> set[str]:
        """Return those of `keys` whose chunks are durable or buffered: they need not be computed again."""
        wanted = set(keys)
        return set(self.chunk_ids(wanted)) | (wanted & self._chunks.keys())

    def add_root(self, path: Path) -> int:
        """Return the id of a source root (an absolute path), new with the next commit or known already."""
        raw = os.fsencode(path)
        if raw not in self._roots:
            number = max((root.id for root in self._roots.values()), default=-1) + 1
            self._roots[raw] = RootRow(number, raw)
            self._new_roots.append(self._roots[raw])
        return self._roots[raw].id

    def fits(self, n_tokens: int) -> bool:
        """Tell whether a chunk still fits into the open shard; if not, `add` commits first."""
        return self._rows + format.blocks_of(n_tokens) * format.ROWS_PER_BLOCK <= self.capacity

    def add(self, key: str, ids: bytes, residual: bytes | bytearray | memoryview | None) -> None:
        """Buffer a chunk for the next commit; a key that is stored already is skipped.

        ids: (n,) uint32 little-endian. residual: its n rows as `layout` has them on disk, None exactly at split 0. The
        bytes are copied. A full shard is committed first.

        Raises: NoSpaceError (14), CorruptStoreError (13), ComemError (1).
        """
        n_tokens = len(ids) // 4
        if len(ids) % 4 or not 0 < n_tokens <= self.fingerprint.chunk:
            raise ValueError(f"a chunk holds 1 to {self.fingerprint.chunk} tokens, not {len(ids) / 4:g}")
        if (residual is None) != (self.fingerprint.split == 0):
            raise ValueError("residuals belong to split > 0, and only to it")
        if self.stored([key]):
            return
        if not self.fits(n_tokens):
            self.commit()
        shard, row, crcs = None, None, b""
        if residual is not None:
            rows = memoryview(residual).cast("B")
            if len(rows) != n_tokens * self.layout.row_bytes:
                raise ValueError(f"{len(rows)} bytes are not {n_tokens} {self.layout.dtype} rows of width {self.width}")
            shard = int(self._facts["next_shard"])
            row, crcs = self._builder.add(rows)
        self._chunks[key] = ChunkRow(self._next_chunk, key, shard, row, n_tokens, crcs, ids)
        self._next_chunk += 1
        self._rows += format.blocks_of(n_tokens) * format.ROWS_PER_BLOCK

    def put_document(
        self,
        root_id: int,
        path: str | bytes,
        size: int,
        mtime_ns: int,
        sha256: str,
        encoding: str,
        kind: str,
        placements: Sequence[Placement],
    ) -> None:
        """Place a document's chunks, in order. `path` is relative to the root, POSIX; `size` in bytes.

        It becomes visible, replacing the document of the same root and path, in the commit at which all its chunks
        are durable.
        """
        row = DocumentRow(self._next_document, root_id, os.fsencode(path), size, mtime_ns, sha256, encoding, kind)
        self._next_document += 1
        ids = self.chunk_ids(place.key for place in placements)
        self._waiting[root_id, row.path] = Waiting(NewDocument(row, tuple(placements)), ids)

    def remove_documents(self, ids: Iterable[int]) -> None:
        """Take documents out of the store with the next commit; their chunks stay until `drop_unplaced`."""
        self._removed.update(ids)

    def commit(self, ledger: LedgerRow | None = None) -> int:
        """Make everything buffered durable and return the generation; with nothing buffered, nothing happens.

        `ledger` is stored in the same transaction, its `io_ms` grown by the time that this writer's commits
        took since the last ledger row (that of the transaction itself goes to the next row).

        Raises: NoSpaceError (14), CorruptStoreError (13), ComemError (1); the store then stays at the last commit.
        """
        ready = [key for key, waiting in self._waiting.items() if not waiting.missing(self._chunks)]
        batch = edits.Batch(
            roots=self._new_roots,
            chunks=list(self._chunks.values()),
            documents=[self._waiting[key].document for key in ready],
            removed=self._removed,
            ledger=[ledger] if ledger else [],
        )
        if not batch:
            return self.generation
        start = time.perf_counter()
        self._write_shard(batch)
        if ledger:
            written = (time.perf_counter() - start) * 1e3
            batch.ledger = [replace(ledger, io_ms=ledger.io_ms + self._io_ms + written)]
            self._io_ms, start = 0.0, time.perf_counter()
        self._write_catalogue(batch, ready)
        self._settle(ready)
        self._write_array_document()
        self._io_ms += (time.perf_counter() - start) * 1e3
        return self.generation

    def drop_unplaced(self) -> int:
        """Commit, then delete chunks and roots that no document needs; call it at the end of a finished ingest.

        Shards with no chunk left are unlinked (those that an open snapshot reads: by a later writer). Their numbers
        are never used again. Returns how many chunks went.

        Raises: as `commit`; ValueError while a document still waits for chunks.
        """
        self.commit()
        if self._waiting:
            names = ", ".join(repr(path) for _, path in list(self._waiting)[:3])
            raise ValueError(f"documents wait for chunks that were never added: {names}")
        with self._generation() as facts:
            dropped, emptied, roots = edits.drop_unplaced(self._catalogue)
            if not dropped and not roots:
                facts["generation"] = self._facts["generation"]
        self._roots = {root.path: root for root in self._catalogue.rows(RootRow)}
        if emptied:
            self.recover()
        self._catalogue.checkpoint()
        return dropped

    def relocate(self, builder: format.ShardBuilder, chunks: Sequence[ChunkRow]) -> None:
        """Let durable chunks lie in a new shard, in one transaction; shards that then hold none go.

        builder: the shard; its `add` gave each of `chunks` its `row` and `crcs`. Their `shard` is set here.

        Raises: NoSpaceError (14), CorruptStoreError (13), ComemError (1); the chunks then stay where they were.
        ValueError while chunks wait for a commit, since these have the shard's number already.
        """
        if self._chunks:
            raise ValueError("commit before chunks are relocated")
        number = int(self._facts["next_shard"])
        shard = ShardRow(number, builder.blocks, shards.write_shard(self.path, number, builder))
        with self._generation() as facts:
            edits.relocate(self._catalogue, shard, chunks)
            facts["next_shard"] = str(number + 1)
        self._clear_buffer()
        self.recover()

    def document_chunks(self, document_id: int) -> list[tuple[PlacementRow, ChunkRow]]:
        """Return a committed document's chunks in order, each with its place; raises CorruptStoreError (13)."""
        return document_chunks(self._catalogue, document_id)

    def chunk_ids(self, keys: Iterable[str]) -> dict[str, int]:
        """Map those of `keys` that are durable to the ids of their chunks."""
        return chunk_ids(self._catalogue, keys)

    def swap(
        self,
        fingerprint: Fingerprint,
        recorded: Mapping[str, str],
        documents: Iterable[Sequence[PlacementRow]],
        content: str,
    ) -> None:
        """Turn the store over to other chunks of the same documents, in one transaction.

        documents: the new placements of every document, of chunks that are durable. content: the digest of those
        chunks, and the name of the index that was built for them.

        Raises: NoSpaceError (14), CorruptStoreError (13), ComemError (1); the store then stays as it was.
        """
        with self._generation() as facts:
            edits.replace_placements(self._catalogue, documents)
            facts["fingerprint"] = json.dumps(fingerprint.to_dict(), sort_keys=True)
            facts["recorded"] = json.dumps(dict(recorded), sort_keys=True)
            facts["content"] = facts["index_name"] = facts["index_content"] = content
        self.fingerprint, self.recorded = fingerprint, dict(recorded)

    def set_index(self, name: str, content: str) -> None:
        """Name the index that matches the live chunks of digest `content`, as a commit of its own.

        Raises: NoSpaceError (14), CorruptStoreError (13), ComemError (1).
        """
        with self._generation() as facts:
            facts["index_name"], facts["index_content"] = name, content

    def _require(self, fingerprint: Fingerprint, width: int, recorded: Mapping[str, str]) -> None:
        self.fingerprint.require_same(fingerprint)
        if width != self.width:
            raise FingerprintError(
                f"the store was written with width {self.width}, not {width}", "use the model of the store"
            )
        mine, theirs = self.recorded.get(COMPUTE_DTYPE), recorded.get(COMPUTE_DTYPE)
        if fingerprint.split and mine != theirs:
            raise FingerprintError(
                f"the store was written with {COMPUTE_DTYPE} {mine}, not {theirs}",
                f"run the same command again with --dtype {mine}",
            )

    def recover(self) -> None:
        """Bring the files in step with the catalogue: sweep orphans, complete the layout, set the array's shape.

        Raises: NoSpaceError (14), CorruptStoreError (13), ComemError (1).
        """
        shards.sweep(self.path, self._live_shards(), int(self._facts["next_shard"]))
        shards.make_folders(self.path, self.fingerprint.format_version, bool(self.fingerprint.split))
        self._write_array_document()

    def _live_shards(self) -> list[int]:
        return [row.id for row in self._catalogue.rows(ShardRow)]

    def _write_array_document(self) -> None:
        if self.fingerprint.split:
            shards.write_array_document(self.path, self.layout, self.capacity, self._live_shards())

    def _write_shard(self, batch: edits.Batch) -> None:
        if self._builder.blocks:
            number = int(self._facts["next_shard"])
            size = shards.write_shard(self.path, number, self._builder)
            batch.shard = ShardRow(number, self._builder.blocks, size)

    def _write_catalogue(self, batch: edits.Batch, ready: Iterable[tuple[int, bytes]]) -> None:
        ids = {key: chunk.id for key, chunk in self._chunks.items()}
        for key in ready:
            ids.update(self._waiting[key].ids)
        with self._generation() as facts:
            content = edits.apply(self._catalogue, batch, ids, int(facts["content"], 16))
            facts["content"] = f"{content:032x}"
            facts["next_chunk"], facts["next_document"] = str(self._next_chunk), str(self._next_document)
            if batch.shard:
                facts["next_shard"] = str(batch.shard.id + 1)

    @contextmanager
    def _generation(self) -> Iterator[dict[str, str]]:
        """Run one transaction; the block may change the facts it gets, which then hold from the next generation on."""
        facts = dict(self._facts, generation=str(self.generation + 1))
        with self._catalogue.transaction():
            yield facts
            for key in facts:
                if facts[key] != self._facts[key]:
                    self._catalogue.insert(MetaRow(key, facts[key]))
        self._facts = facts

    def _settle(self, ready: Iterable[tuple[int, bytes]]) -> None:
        """Forget what is durable now, and tell the waiting documents which of their chunks are."""
        for key in ready:
            del self._waiting[key]
        for waiting in self._waiting.values():
            keys = {place.key for place in waiting.document.placements}
            waiting.ids.update((key, self._chunks[key].id) for key in keys & self._chunks.keys())
        self._removed = set()
        self._new_roots = []
        self._clear_buffer()

    def _clear_buffer(self) -> None:
        self._chunks: dict[str, ChunkRow] = {}
        self._builder = format.ShardBuilder(self.layout, self.capacity)
        self._rows = 0
