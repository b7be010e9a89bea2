"""Check the catalogue of a snapshot: SQLite's own check, every row's digest, references, the content digest.

What is found is kept in memory by id and key, without token ids: a few hundred bytes a chunk. Nothing is written.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeVar

from comem_cli.errors import CorruptStoreError
from comem_cli.model.modes import make_mode
from comem_cli.store import format
from comem_cli.store.edits import CONTENT_MODULUS, content_term
from comem_cli.store.findings import Finding
from comem_cli.store.fingerprint import chunk_key
from comem_cli.store.reader import StoreReader
from comem_cli.store.rows import ChunkRow, DocumentRow, LedgerRow, PlacementRow, RootRow, Row, ShardRow

R = TypeVar("R", bound=Row)
_ONLY_AN_INDEX = re.compile(r"row \d+ missing from index|wrong # of entries in index|non-unique entry in index")
_MOST_MESSAGES = 20


@dataclass
class CatalogueState:
    """Hold the sound rows of a catalogue, and what was found. Token ids are left out of `chunks`."""

    findings: list[Finding] = field(default_factory=list)
    roots: dict[int, RootRow] = field(default_factory=dict)
    documents: dict[int, DocumentRow] = field(default_factory=dict)
    shards: dict[int, ShardRow] = field(default_factory=dict)
    chunks: dict[int, ChunkRow] = field(default_factory=dict)
    places: dict[int, list[tuple[int, int]]] = field(default_factory=dict)  # document id: (number, chunk id)
    cited_by: dict[int, list[int]] = field(default_factory=dict)  # chunk id: document ids
    believed: dict[int, str] = field(default_factory=dict)  # what a damaged row of a document says its path is
    damaged: set[int] = field(default_factory=set)  # documents that have to be ingested again
    flawed: dict[str, list[tuple[Any, ...]]] = field(default_factory=dict)  # table: columns of its damaged rows
    broken_shards: set[int] = field(default_factory=set)  # to be replaced, as far as anything was read
    rows: int = 0

    def path(self, document_id: int) -> str:
        """Return the absolute path of a document, as far as the catalogue tells."""
        row = self.documents.get(document_id)
        root = self.roots.get(row.root_id) if row else None
        if row and root:
            return os.path.join(root.name, row.name)
        return self.believed.get(document_id, f"document {document_id}")

    def paths(self, chunk_id: int) -> tuple[str, ...]:
        """Return the absolute paths of the documents that place a chunk."""
        return tuple(self.path(number) for number in dict.fromkeys(self.cited_by.get(chunk_id, ())))

    def by_shard(self) -> dict[int, list[ChunkRow]]:
        """Group the chunks by shard, in order of their rows."""
        found: dict[int, list[ChunkRow]] = {}
        for chunk in sorted(self.chunks.values(), key=lambda chunk: chunk.row or 0):
            if chunk.shard is not None:
                found.setdefault(chunk.shard, []).append(chunk)
        return found

    def add(self, code: str, what: str, detail: str, documents: list[int] | None = None) -> None:
        """Note a finding; `documents` have to be ingested again."""
        documents = list(dict.fromkeys(documents or []))
        self.damaged.update(documents)
        paths = (self.path(number) for number in documents)
        self.findings.append(Finding(code, what, detail, tuple(path for path in paths if path.startswith("/"))))


def check_catalogue(reader: StoreReader, *, keys: bool, whole: bool) -> CatalogueState:
    """Check every row of the reader's snapshot.

    keys: also compute the key of each chunk from its ids and left context. whole: let SQLite check its indexes too.
    """
    state = scan_catalogue(reader)
    _sqlite(reader, state, whole)
    if keys:
        _keys(reader, state)
    unplaced = sum(chunk_id not in state.cited_by for chunk_id in state.chunks)
    if unplaced:
        state.add("leftover-chunks", f"{unplaced} chunks", "of an interrupted ingest or rewrite")
    return state


def scan_catalogue(reader: StoreReader) -> CatalogueState:
    """Check every row's digest, references and the content digest, without SQLite's own check."""
    state = CatalogueState()
    content = _scan(reader, state)
    _references(reader, state)
    if not state.findings and f"{content:032x}" != reader.content:
        state.add("catalogue-content", "content digest", "chunks or placements were lost", list(state.documents))
    return state


def _sqlite(reader: StoreReader, state: CatalogueState, whole: bool) -> None:
    pragma = "integrity_check" if whole else "quick_check"
    try:
        messages = [str(row[0]) for row in reader.catalogue.execute(f"PRAGMA {pragma}({_MOST_MESSAGES})").fetchall()]
    except CorruptStoreError as error:
        messages = [error.message]
    except Exception as error:  # fetchall meets what execute did not
        messages = [reader.catalogue.translate(error).message]
    for message in messages:
        if message != "ok":
            code = "catalogue-index" if _ONLY_AN_INDEX.search(message) else "catalogue-unreadable"
            state.add(code, "catalog.sqlite", message.splitlines()[-1])


def _scan(reader: StoreReader, state: CatalogueState) -> int:
    """Read every row against its digest; return the content digest of the live chunks."""
    state.roots = {row.id: row for row in _sound(reader, state, RootRow, "catalogue-root")}
    for _ in _sound(reader, state, LedgerRow, "catalogue-ledger"):
        pass
    state.shards = {row.id: row for row in _sound(reader, state, ShardRow, "catalogue-shard")}
    state.documents = {row.id: row for row in _sound(reader, state, DocumentRow, "catalogue-document")}
    for place in _sound(reader, state, PlacementRow, "catalogue-placement"):
        state.places.setdefault(place.document_id, []).append((place.number, place.chunk_id))
        state.cited_by.setdefault(place.chunk_id, []).append(place.document_id)
    content = 0
    for chunk in _sound(reader, state, ChunkRow, "catalogue-chunk"):
        if chunk.id in state.cited_by:
            content += content_term(chunk)
        state.chunks[chunk.id] = replace(chunk, ids=b"")
    return content % CONTENT_MODULUS


def _sound(reader: StoreReader, state: CatalogueState, kind: type[R], code: str) -> Iterator[R]:
    """Yield the sound rows of a table and note the others."""
    try:
        for values, flaw in reader.catalogue.scan(kind):
            state.rows += 1
            if flaw is None:
                yield kind(*values)
            else:
                _note_row(state, kind, code, values, flaw)
    except CorruptStoreError as error:
        state.add("catalogue-unreadable", f"table {kind.table}", error.message)


def _note_row(state: CatalogueState, kind: type[Row], code: str, values: tuple[Any, ...], flaw: str) -> None:
    state.flawed.setdefault(kind.table, []).append(values)
    what = f"{kind.table} {values[0]!r}"
    documents: list[int] = []
    if kind is DocumentRow:
        documents = [values[0]]
        root = state.roots.get(values[1])
        if root and isinstance(values[2], bytes) and b"\0" not in values[2]:
            state.believed[values[0]] = os.path.join(root.name, os.fsdecode(values[2]))
        what = f"document {state.path(values[0])}"
    elif kind is PlacementRow:
        known = values[0] in state.documents
        documents = [values[0]] if known else list(state.documents)  # whose it was is lost: it may be any
        what = f"placement {values[1]!r} of {state.path(values[0])}"
    elif kind is ChunkRow:
        documents = state.cited_by.get(values[0], [])
        what = f"chunk {values[1]!r}"
    state.add(code, what, flaw, documents)


def _references(reader: StoreReader, state: CatalogueState) -> None:
    for document in state.documents.values():
        if document.root_id not in state.roots:
            detail = f"refers to root {document.root_id}, which is not there"
            state.add("catalogue-document", document.name, detail, [document.id])
        numbers = sorted(number for number, _ in state.places.get(document.id, ()))
        if numbers != list(range(len(numbers))) or not numbers:
            detail = "its placements are not complete"
            state.add("catalogue-placement", state.path(document.id), detail, [document.id])
    for document_id, places in state.places.items():
        lost = [chunk_id for _, chunk_id in places if chunk_id not in state.chunks]
        if document_id not in state.documents and document_id not in state.damaged:
            detail = "is not there, but chunks are placed in it"
            state.add("catalogue-document", f"document {document_id}", detail, [document_id])
        elif lost and document_id not in state.damaged:
            what = state.path(document_id)
            state.add("catalogue-placement", what, f"places chunk {lost[0]}, which is not there", [document_id])
    split, most = reader.fingerprint.split, reader.fingerprint.chunk
    for chunk in state.chunks.values():
        if chunk.n_tokens > most or (chunk.shard is None) != (split == 0):
            detail = f"{chunk.n_tokens} tokens in shard {chunk.shard} do not go with the store's settings"
            state.add("catalogue-chunk", f"chunk {chunk.key}", detail, state.cited_by.get(chunk.id))
    for number, chunks in state.by_shard().items():
        _places_in_shard(state, number, chunks)


def _places_in_shard(state: CatalogueState, number: int, chunks: list[ChunkRow]) -> None:
    shard = state.shards.get(number)
    end = 0
    for chunk in chunks:
        assert chunk.row is not None
        start, end = end, chunk.row + format.blocks_of(chunk.n_tokens) * format.ROWS_PER_BLOCK
        if shard is None:
            detail = f"lies in shard {number}, whose row is damaged or lost"
        elif start > chunk.row or end > shard.blocks * format.ROWS_PER_BLOCK:
            detail = f"rows {chunk.row:,} to {end:,} of shard {number} are not its own"
        else:
            continue
        state.broken_shards.add(number)
        state.findings.append(Finding("chunk-place", f"chunk {chunk.key}", detail, state.paths(chunk.id)))


def _keys(reader: StoreReader, state: CatalogueState) -> None:
    """Compare each key with what the ids and the left context give."""
    written = reader.fingerprint
    mode = make_mode(written.mode, written.overlap, written.chunk)  # the window shapes no key
    key = partial(chunk_key, written.digest())
    for document_id in [number for number in state.documents if number not in state.damaged]:
        try:
            held = reader.document_chunks(document_id)
        except CorruptStoreError as error:
            state.add("catalogue-unreadable", state.path(document_id), error.message)
            continue
        pending = mode.pending([chunk.ids for chunk in held], key)
        for chunk, wanted in zip(held, pending, strict=True):
            if chunk.key != wanted.key:
                detail = "its key is not that of its token ids and left context"
                state.add("catalogue-chunk", f"chunk {chunk.key}", detail, [document_id])
