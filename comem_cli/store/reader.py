"""Read one generation of a store.

A reader takes no writer lock and writes nothing but SQLite's -wal and -shm. It sees one snapshot for its whole life:
later commits do not change its answers, and a shared lease keeps the shards of its snapshot on disk. `stats` needs
neither numpy nor zarr: the residual path is imported on the first `fetch`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, TypeVar

from comem_cli.errors import CorruptStoreError, NoStoreError
from comem_cli.store import catalogue as catalogues
from comem_cli.store import format
from comem_cli.store.document import chunk_ids, document_chunks
from comem_cli.store.edits import CONTENT_MODULUS, PLACED, content_term
from comem_cli.store.fingerprint import Fingerprint
from comem_cli.store.lock import ReaderLease
from comem_cli.store.row_layout import BF16_BYTES, RowLayout
from comem_cli.store.rows import ChunkRow, DocumentRow, LedgerRow, PlacementRow, RootRow, ShardRow

if TYPE_CHECKING:
    from comem_cli.store.fetch import ShardFiles

INDEX_DIR = "index"
KEPT_CHUNKS = 1024  # verified chunk rows in memory, about 2 KiB each
T = TypeVar("T")


@dataclass(frozen=True)
class Counts:
    """What a store holds. Chunks and tokens are the live ones (placed by a document), each counted once."""

    documents: int
    chunks: int
    tokens: int
    placements: int
    unplaced_chunks: int
    shards: int
    residual_bytes: int
    catalogue_bytes: int
    index_bytes: int


@dataclass(frozen=True)
class Sums:
    """Totals that relate a store to its sources. Unplaced chunks count in the last two."""

    source_bytes: int  # of the files, as they were read
    placed_tokens: int  # a chunk that stands in n places counts n times
    stored_tokens: int
    rows: int  # of all residual blocks, padding included


@dataclass(frozen=True)
class Place:
    """Where a chunk stands: the `number`-th chunk of a document, with its byte and line span."""

    root: str
    path: str  # relative to root, POSIX; undecodable bytes as surrogates
    number: int
    document_id: int
    byte_start: int
    byte_end: int
    line_first: int
    line_last: int

    @property
    def order(self) -> tuple[bytes, bytes, int]:
        """Return the sort key of document order: root and relative path as bytes, then the chunk number."""
        return os.fsencode(self.root), os.fsencode(self.path), self.number


class StoreReader:
    """Open the store at `path` for reading, as a context manager.

    Raises: NoStoreError (10), FingerprintError (12) for a newer format, CorruptStoreError (13), ComemError (1).
    """

    def __init__(self, path: Path) -> None:
        if not path.is_dir():
            raise NoStoreError(f"no store at {path}", f"comem ingest PATH --store {path}")
        self.path = path
        self._lease = ReaderLease(path)  # before the snapshot, so that no shard of it can be unlinked
        self._files: ShardFiles | None = None
        self._read: dict[int, ChunkRow] = {}  # verified rows: selection reads the same ones just before `fetch`
        try:
            self._catalogue = catalogues.open_readable(path)
            self._facts = self._catalogue.meta()
        except BaseException:
            self._lease.release()
            raise
        self.store_id = self._facts["store_id"]
        self.generation = int(self._facts["generation"])
        self.content = self._facts["content"]  # digest of the live chunks
        self.width = int(self._facts["width"])
        self.fingerprint = Fingerprint.from_dict(json.loads(self._facts["fingerprint"]))
        self.recorded: dict[str, str] = json.loads(self._facts["recorded"])
        self.layout = RowLayout.of(self.fingerprint, self.width)

    @property
    def catalogue(self) -> catalogues.Catalogue:
        """Return the snapshot's catalogue, for `check`."""
        return self._catalogue

    @property
    def capacity(self) -> int:
        """Return the rows of a shard."""
        return int(self._facts["capacity"])

    def __enter__(self) -> StoreReader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the snapshot."""
        if self._files:
            self._files.close()
        self._catalogue.close()
        self._lease.release()

    def counts(self) -> Counts:
        """Count documents, chunks, tokens and bytes (aggregates; `check` is what verifies every row)."""
        ask = self._catalogue.integers
        (documents,) = ask("SELECT COUNT(*) FROM document")
        (placements,) = ask("SELECT COUNT(*) FROM placement")
        (all_chunks,) = ask("SELECT COUNT(*) FROM chunk")
        chunks, tokens = ask(f"SELECT COUNT(*), SUM(n_tokens) FROM chunk INDEXED BY chunk_size WHERE {PLACED}")
        shards, residual_bytes = ask("SELECT COUNT(*), SUM(bytes) FROM shard")
        files = (self.path / f"{catalogues.CATALOGUE_NAME}{end}" for end in ("", "-wal"))  # -shm is memory
        catalogue = sum(file.stat().st_size for file in files if file.exists())
        index = sum(file.stat().st_size for file in (self.path / INDEX_DIR).rglob("*") if file.is_file())
        return Counts(
            documents, chunks, tokens, placements, all_chunks - chunks, shards, residual_bytes, catalogue, index
        )

    def sums(self) -> Sums:
        """Sum up source bytes, tokens and residual rows."""
        ask = self._catalogue.integers
        (source_bytes,) = ask("SELECT SUM(size) FROM document")
        places = "(SELECT COUNT(*) FROM placement WHERE chunk_id = chunk.id)"
        (placed,) = ask(f"SELECT SUM(n_tokens * {places}) FROM chunk INDEXED BY chunk_size")
        (stored,) = ask("SELECT SUM(n_tokens) FROM chunk INDEXED BY chunk_size")
        (blocks,) = ask("SELECT SUM(blocks) FROM shard")
        return Sums(source_bytes, placed, stored, blocks * format.ROWS_PER_BLOCK)

    def index(self) -> tuple[str | None, bool]:
        """Return the name of the index, if there is one, and whether it matches the live chunks."""
        name = self._facts["index_name"]
        return name or None, bool(name) and self._facts["index_content"] == self.content

    def require_shards(self) -> None:
        """Look that every committed shard is there in its full size.

        Raises: CorruptStoreError (13) naming the first that is not.
        """
        for shard in self._catalogue.rows(ShardRow):
            path = format.shard_path(self.path, shard.id)
            if not path.is_file() or path.stat().st_size != shard.bytes:
                raise CorruptStoreError(
                    f"{path} is missing or not {shard.bytes:,} bytes long",
                    f"comem check {self.path} --repair",
                )

    def documents(self) -> Iterator[DocumentRow]:
        """Stream the documents, ordered by root id and path bytes."""
        return self._catalogue.rows(DocumentRow, "ORDER BY root_id, path")

    def roots(self) -> dict[int, str]:
        """Return the absolute path of each source root, by id."""
        return {root.id: root.name for root in self._catalogue.rows(RootRow)}

    def ledger(self) -> list[LedgerRow]:
        """Return what was measured while writing, oldest first."""
        return list(self._catalogue.rows(LedgerRow, "ORDER BY rowid"))

    def chunk_ids_in_order(self) -> list[int]:
        """Return the id of every live chunk in document order, each at the smallest of its places."""
        roots = {root.id: root for root in self._catalogue.rows(RootRow)}
        keys = {row.id: (self._named(roots, row.root_id).path, row.path) for row in self._catalogue.rows(DocumentRow)}
        rank = {document_id: place for place, document_id in enumerate(sorted(keys, key=keys.__getitem__))}
        placements = sorted(
            (self._named(rank, row.document_id), row.number, row.chunk_id) for row in self._catalogue.rows(PlacementRow)
        )
        return list(dict.fromkeys(chunk_id for _, _, chunk_id in placements))

    def iter_chunks(self) -> Iterator[ChunkRow]:
        """Stream the live chunks with their token ids, by id, in constant memory.

        Raises: CorruptStoreError (13) for a damaged row, and at the end if rows were lost.
        """
        content = 0
        for chunk in self._catalogue.rows(ChunkRow, f"WHERE {PLACED} ORDER BY id"):
            content += content_term(chunk)
            yield chunk
        if f"{content % CONTENT_MODULUS:032x}" != self.content:
            raise self._catalogue.corrupt("the catalogue lost chunks or placements")

    def chunks(self, chunk_ids: Sequence[int]) -> list[ChunkRow]:
        """Return the rows of `chunk_ids`, in that order.

        Raises: CorruptStoreError (13) for an id that the store does not have.
        """
        unread = [chunk_id for chunk_id in chunk_ids if chunk_id not in self._read]
        if len(self._read) + len(unread) > KEPT_CHUNKS:
            self._read.clear()
            unread = list(chunk_ids)
        self._read.update((row.id, row) for row in self._catalogue.rows_in(ChunkRow, "id", unread))
        absent = [chunk_id for chunk_id in unread if chunk_id not in self._read]
        if absent:
            raise self._catalogue.corrupt(f"no chunk {absent[0]} in the catalogue")
        return [self._read[chunk_id] for chunk_id in chunk_ids]

    def document_chunks(self, document_id: int) -> list[ChunkRow]:
        """Return a document's chunks in order; raises CorruptStoreError (13)."""
        return [chunk for _, chunk in document_chunks(self._catalogue, document_id)]

    def stored(self, keys: Iterable[str]) -> set[str]:
        """Return those of `keys` whose chunks are in the store, placed or not."""
        return set(chunk_ids(self._catalogue, keys))

    def token_ids(self, chunk_id: int) -> bytes:
        """Return a chunk's token ids, (n,) uint32 little-endian."""
        return self.chunks([chunk_id])[0].ids

    def ids_before(self, chunk_id: int) -> bytes:
        """Return the token ids of the chunk before this one, at its smallest place; none at a document's start."""
        place = self.places([chunk_id])[chunk_id][0]
        at = (place.document_id, place.number - 1)
        before = self._catalogue.rows(PlacementRow, "WHERE document_id = ? AND number = ?", at)
        return b"".join(self.token_ids(row.chunk_id) for row in before)

    def places(self, chunk_ids: Iterable[int]) -> dict[int, tuple[Place, ...]]:
        """Return every place of each chunk, smallest first; the chunks come in document order of that one."""
        placements = list(self._catalogue.rows_in(PlacementRow, "chunk_id", chunk_ids))
        wanted = {row.document_id for row in placements}
        documents = {row.id: row for row in self._catalogue.rows_in(DocumentRow, "id", wanted)}
        roots = {root.id: root for root in self._catalogue.rows(RootRow)}
        found: dict[int, list[Place]] = {}
        for row in placements:
            document = self._named(documents, row.document_id)
            root = self._named(roots, document.root_id)
            span = (row.byte_start, row.byte_end, row.line_first, row.line_last)
            place = Place(root.name, document.name, row.number, document.id, *span)
            found.setdefault(row.chunk_id, []).append(place)
        ordered = {chunk_id: tuple(sorted(some, key=lambda place: place.order)) for chunk_id, some in found.items()}
        return dict(sorted(ordered.items(), key=lambda item: item[1][0].order))

    def _named(self, rows: Mapping[int, T], number: int) -> T:
        """Return what a row refers to by its id; a reference to nothing is damage."""
        if number not in rows:
            raise self._catalogue.corrupt(f"a catalogue row refers to {number}, which is not there")
        return rows[number]

    def fetch(self, chunk_ids: Sequence[int], out: memoryview) -> list[int]:
        """Read residuals into `out`, chunk after chunk in the given order, every checksum verified.

        out: (at least the sum of tokens, d) bf16 as writable contiguous memory; reuse it, fresh memory is slow.
        Returns the tokens (rows) of each chunk.

        Raises: CorruptStoreError (13) naming chunk key and file.
        """
        return self.fetch_rows(self.chunks(chunk_ids), out)

    def fetch_rows(self, chunks: Sequence[ChunkRow], out: memoryview) -> list[int]:
        """Read the residuals of chunks whose rows of the catalogue are at hand, as `fetch` does.

        Touches no SQLite connection, so another thread may run it; one at a time.
        """
        view = out.cast("B")
        needed = sum(chunk.n_tokens for chunk in chunks) * self.width * BF16_BYTES
        if len(view) < needed:
            raise ValueError(f"the buffer holds {len(view):,} bytes, the chunks {needed:,}")
        self._shard_files().read_residuals(chunks, view)
        return [chunk.n_tokens for chunk in chunks]

    def stored_rows(self, chunk_id: int) -> bytes:
        """Return a chunk's rows as they lie on disk, every checksum verified; raises as `fetch`."""
        (chunk,) = self.chunks([chunk_id])
        return bytes(self._shard_files().stored(chunk))

    def _shard_files(self) -> ShardFiles:
        from comem_cli.store.fetch import ShardFiles  # numpy

        if not self.fingerprint.split:
            raise ValueError("a store of split 0 has no residuals")
        if self._files is None:
            self._files = ShardFiles(self.path, self.layout)
        return self._files
