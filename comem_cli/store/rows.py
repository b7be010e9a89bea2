"""Typed rows of the catalogue and the digest that each of them carries.

Each class is one table, its fields the columns in order. A row's digest is blake2b-8 over the table's name and every
column, each with a type tag and a length, so that no two rows share an encoding. Paths are raw bytes (they need not be
UTF-8); token ids are uint32 little-endian.
"""

from __future__ import annotations

import hashlib
import os
import struct
from collections.abc import Iterable
from dataclasses import dataclass, fields
from functools import cache
from typing import ClassVar

Value = int | float | str | bytes | None


def row_digest(table: str, values: Iterable[Value]) -> bytes:
    """Return the 8-byte digest of a row: see stores/README.md for the encoding."""
    parts: list[bytes] = []
    for value in (table, *values):
        tag, raw = _encode(value)
        parts += tag, len(raw).to_bytes(8, "little"), raw
    return hashlib.blake2b(b"".join(parts), digest_size=8).digest()


def _encode(value: Value) -> tuple[bytes, bytes]:
    if isinstance(value, bytes):
        return b"b", value
    if isinstance(value, int):
        return b"i", value.to_bytes(8, "little", signed=True)
    if isinstance(value, str):
        return b"t", value.encode(errors="surrogateescape")  # a damaged row may hold what is no UTF-8
    if isinstance(value, float):
        return b"f", struct.pack("<d", value)
    return b"n", b""


@dataclass(frozen=True)
class Row:
    """A row of the table that a subclass names."""

    table: ClassVar[str]

    @classmethod
    @cache
    def columns(cls) -> tuple[str, ...]:
        """Return the names of the columns, without the digest."""
        return tuple(field.name for field in fields(cls))

    def values(self) -> tuple[Value, ...]:
        """Return the columns' values, without the digest."""
        return tuple(vars(self).values())

    def digest(self) -> bytes:
        """Return the digest that the row must carry."""
        return row_digest(self.table, self.values())


@dataclass(frozen=True)
class MetaRow(Row):
    """One named fact of the store."""

    table: ClassVar[str] = "meta"
    key: str
    value: str


@dataclass(frozen=True)
class RootRow(Row):
    """A directory or file that was given to ingest, as an absolute path."""

    table: ClassVar[str] = "root"
    id: int
    path: bytes

    @property
    def name(self) -> str:
        """Return the path as a string (undecodable bytes as surrogates)."""
        return os.fsdecode(self.path)


@dataclass(frozen=True)
class DocumentRow(Row):
    """A source file; `path` is relative to its root, POSIX."""

    table: ClassVar[str] = "document"
    id: int
    root_id: int
    path: bytes
    size: int  # bytes of the file
    mtime_ns: int
    sha256: str
    encoding: str
    kind: str

    @property
    def name(self) -> str:
        """Return the path as a string (undecodable bytes as surrogates)."""
        return os.fsdecode(self.path)


@dataclass(frozen=True)
class ShardRow(Row):
    """A committed shard file."""

    table: ClassVar[str] = "shard"
    id: int
    blocks: int
    bytes: int


@dataclass(frozen=True)
class ChunkRow(Row):
    """A chunk of tokens; `shard` and `row` (within the shard) are None where no residual is kept (split 0)."""

    table: ClassVar[str] = "chunk"
    id: int
    key: str
    shard: int | None
    row: int | None
    n_tokens: int
    crcs: bytes  # CRC-32C of each 32-row block, uint32 little-endian
    ids: bytes  # n_tokens token ids, uint32 little-endian


@dataclass(frozen=True)
class PlacementRow(Row):
    """A place of a chunk: the `number`-th chunk of a document, with its byte and line span there."""

    table: ClassVar[str] = "placement"
    document_id: int
    number: int
    chunk_id: int
    byte_start: int
    byte_end: int
    line_first: int
    line_last: int


@dataclass(frozen=True)
class LedgerRow(Row):
    """What a piece of Write cost.

    wall_ms: from reading the sources to rows in the writer's buffer, `forward_ms` a part of it; loading the model and
    `io_ms`, the commits, come on top. The writer adds its commits to `io_ms` itself.
    """

    table: ClassVar[str] = "ledger"
    at: float  # Unix time, s
    kind: str
    chunks: int
    tokens: int
    wall_ms: float
    forward_ms: float
    io_ms: float
    device: str
    dtype: str
    detail: str = "{}"  # JSON


ROW_TYPES: tuple[type[Row], ...] = (MetaRow, RootRow, DocumentRow, ShardRow, ChunkRow, PlacementRow, LedgerRow)

# "chunk_size" covers what `counts` needs: a scan of the table itself would read every token id.
SCHEMA = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL, digest BLOB NOT NULL);
CREATE TABLE root (id INTEGER PRIMARY KEY, path BLOB NOT NULL UNIQUE, digest BLOB NOT NULL);
CREATE TABLE document (id INTEGER PRIMARY KEY, root_id INTEGER NOT NULL REFERENCES root(id), path BLOB NOT NULL,
  size INTEGER NOT NULL, mtime_ns INTEGER NOT NULL, sha256 TEXT NOT NULL, encoding TEXT NOT NULL, kind TEXT NOT NULL,
  digest BLOB NOT NULL, UNIQUE (root_id, path));
CREATE TABLE shard (id INTEGER PRIMARY KEY, blocks INTEGER NOT NULL, bytes INTEGER NOT NULL, digest BLOB NOT NULL);
CREATE TABLE chunk (id INTEGER PRIMARY KEY, key TEXT NOT NULL UNIQUE, shard INTEGER REFERENCES shard(id), row INTEGER,
  n_tokens INTEGER NOT NULL, crcs BLOB NOT NULL, ids BLOB NOT NULL, digest BLOB NOT NULL);
CREATE INDEX chunk_shard ON chunk (shard);
CREATE INDEX chunk_size ON chunk (n_tokens);
CREATE TABLE placement (document_id INTEGER NOT NULL REFERENCES document(id) ON DELETE CASCADE,
  number INTEGER NOT NULL, chunk_id INTEGER NOT NULL REFERENCES chunk(id), byte_start INTEGER NOT NULL,
  byte_end INTEGER NOT NULL, line_first INTEGER NOT NULL, line_last INTEGER NOT NULL, digest BLOB NOT NULL,
  PRIMARY KEY (document_id, number)) WITHOUT ROWID;
CREATE INDEX placement_chunk ON placement (chunk_id);
CREATE TABLE ledger (at REAL NOT NULL, kind TEXT NOT NULL, chunks INTEGER NOT NULL, tokens INTEGER NOT NULL,
  wall_ms REAL NOT NULL, forward_ms REAL NOT NULL, io_ms REAL NOT NULL, device TEXT NOT NULL, dtype TEXT NOT NULL,
  detail TEXT NOT NULL, digest BLOB NOT NULL);
"""
