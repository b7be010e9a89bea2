"""What one commit does to the catalogue, inside its transaction.

The content digest names the set of live chunks (those that a document places): the sum of blake2b-16 over (id, key) of
each, modulo 2^128. A sum does not depend on order and is kept up to date by what a commit changes. An index is fresh
where it was built for the same digest.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from comem_cli.store.catalogue import Catalogue
from comem_cli.store.rows import ChunkRow, DocumentRow, LedgerRow, PlacementRow, RootRow, Row, ShardRow

CONTENT_MODULUS = 2**128
PLACED = "EXISTS (SELECT 1 FROM placement WHERE chunk_id = chunk.id)"  # true of a live chunk


@dataclass(frozen=True)
class Placement:
    """A chunk of a document being written, with its byte and line span in the source."""

    key: str
    byte_start: int
    byte_end: int
    line_first: int
    line_last: int


@dataclass(frozen=True)
class NewDocument:
    """A document that waits until all its chunks are durable. `row.id` is new."""

    row: DocumentRow
    placements: Sequence[Placement]


@dataclass
class Waiting:
    """A document that is not visible yet, and the ids of those of its chunks that are durable."""

    document: NewDocument
    ids: dict[str, int]

    def missing(self, buffered: Mapping[str, ChunkRow]) -> list[str]:
        """Return the keys of the chunks that are neither durable nor `buffered`."""
        keys = (place.key for place in self.document.placements)
        return [key for key in keys if key not in self.ids and key not in buffered]


@dataclass
class Batch:
    """Everything that one transaction makes durable."""

    roots: list[RootRow] = field(default_factory=list)
    shard: ShardRow | None = None
    chunks: list[ChunkRow] = field(default_factory=list)
    documents: list[NewDocument] = field(default_factory=list)
    removed: set[int] = field(default_factory=set)
    ledger: list[LedgerRow] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.roots or self.shard or self.chunks or self.documents or self.removed or self.ledger)


def apply(catalogue: Catalogue, batch: Batch, ids: Mapping[str, int], content: int) -> int:
    """Write a batch; `ids` maps the key of every placed chunk to its id. Returns the new content digest.

    A document replaces the one of the same root and path. Needs an open transaction.
    """
    _insert(catalogue, batch.roots)
    _insert(catalogue, [batch.shard] if batch.shard else [])
    _insert(catalogue, batch.chunks)
    gone = batch.removed.union(_replaced(catalogue, batch.documents))
    placed = {ids[place.key] for document in batch.documents for place in document.placements}
    touched = placed.union(row.chunk_id for row in catalogue.rows_in(PlacementRow, "document_id", gone))
    before = live_content(catalogue, touched)
    catalogue.delete_in("document", "id", gone)  # its placements go with it
    for document in batch.documents:
        catalogue.insert(document.row)
        _insert(catalogue, _placement_rows(document, ids))
    _insert(catalogue, batch.ledger)
    return (content - before + live_content(catalogue, touched)) % CONTENT_MODULUS


def live_content(catalogue: Catalogue, chunk_ids: Iterable[int]) -> int:
    """Return the content digest of those of `chunk_ids` that a document places."""
    live = catalogue.rows_in(ChunkRow, "id", chunk_ids, f"AND {PLACED}")
    return sum(map(content_term, live)) % CONTENT_MODULUS


def content_term(chunk: ChunkRow) -> int:
    """Return a live chunk's part of the content digest."""
    return content_part(chunk.id, chunk.key)


def content_part(chunk_id: int, key: str) -> int:
    """Return what a chunk of this id and key adds to the content digest."""
    digest = hashlib.blake2b(chunk_id.to_bytes(8, "little") + bytes.fromhex(key), digest_size=16)
    return int.from_bytes(digest.digest(), "little")


def replace_placements(catalogue: Catalogue, documents: Iterable[Sequence[PlacementRow]]) -> None:
    """Let each of `documents` place other chunks: its placements, in order. Needs an open transaction."""
    for placements in documents:
        catalogue.delete_in("placement", "document_id", {row.document_id for row in placements})
        _insert(catalogue, placements)


def drop_unplaced(catalogue: Catalogue) -> tuple[int, list[int], int]:
    """Delete the chunks that no document places, the shards that then hold none, and roots without documents.

    Returns how many chunks went, the shards, and how many roots. Needs an open transaction.
    """
    chunks = catalogue.execute(f"DELETE FROM chunk WHERE NOT {PLACED}").rowcount
    roots = catalogue.execute("DELETE FROM root WHERE id NOT IN (SELECT root_id FROM document)").rowcount
    return chunks, _drop_empty_shards(catalogue), roots


def relocate(catalogue: Catalogue, shard: ShardRow, chunks: Iterable[ChunkRow]) -> list[int]:
    """Add a shard, let `chunks` lie there at their `row`, and delete the shards that then hold none.

    Returns the shards that went. Needs an open transaction.
    """
    catalogue.insert(shard)
    for chunk in chunks:
        moved = replace(chunk, shard=shard.id)
        catalogue.execute(
            "UPDATE chunk SET shard = ?, row = ?, crcs = ?, digest = ? WHERE id = ?",
            (moved.shard, moved.row, moved.crcs, moved.digest(), moved.id),
        )
    return _drop_empty_shards(catalogue)


def _drop_empty_shards(catalogue: Catalogue) -> list[int]:
    empty = "WHERE id NOT IN (SELECT shard FROM chunk WHERE shard IS NOT NULL)"
    shards = [row.id for row in catalogue.rows(ShardRow, empty)]
    catalogue.delete_in("shard", "id", shards)
    return shards


def _replaced(catalogue: Catalogue, documents: Iterable[NewDocument]) -> set[int]:
    """Return the ids of the documents that have the same root and path as a new one."""
    found: set[int] = set()
    for new in documents:
        rows = catalogue.rows(DocumentRow, "WHERE root_id = ? AND path = ?", (new.row.root_id, new.row.path))
        found.update(row.id for row in rows)
    return found


def _placement_rows(document: NewDocument, ids: Mapping[str, int]) -> list[PlacementRow]:
    return [
        PlacementRow(document.row.id, number, ids[p.key], p.byte_start, p.byte_end, p.line_first, p.line_last)
        for number, p in enumerate(document.placements)
    ]


def _insert(catalogue: Catalogue, rows: Iterable[Row]) -> None:
    for row in rows:
        catalogue.insert(row)
