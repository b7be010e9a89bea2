"""Give back the space of dropped chunks: move what lives in sparse shards into new ones, then unlink the old ones.

A shard is immutable, so the rows of a dropped chunk stay in it until its live chunks have moved. Each new shard is one
transaction, and the shards that it empties are unlinked after that: a process killed anywhere leaves every chunk where
the catalogue says. At most one shard is in memory, and at most one is on disk twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from comem_cli.errors import CorruptStoreError
from comem_cli.store import durable, format
from comem_cli.store.catalogue import Catalogue
from comem_cli.store.fetch import ShardFiles
from comem_cli.store.reader import StoreReader
from comem_cli.store.rows import ChunkRow, ShardRow
from comem_cli.store.writer import StoreWriter

CATALOGUE_ROOM = 2**20  # bytes that a transaction may add to the -wal file


@dataclass(frozen=True)
class ShardUse:
    """How many blocks of a shard hold chunks of the catalogue: `live` of `blocks`; `bytes` of its file."""

    shard: int
    blocks: int
    live: int
    bytes: int


@dataclass(frozen=True)
class Moved:
    """What a compaction did: chunks moved, the shards they came from, bytes of residual files before less after."""

    chunks: int
    shards: int
    freed_bytes: int


def shard_use(catalogue: Catalogue) -> list[ShardUse]:
    """Return how full each shard is, by number; chunks that no document places count as live.

    Raises: CorruptStoreError (13).
    """
    sql = (
        "SELECT shard.id, shard.blocks, shard.bytes, "
        f"COALESCE(SUM((n_tokens + {format.ROWS_PER_BLOCK - 1}) / {format.ROWS_PER_BLOCK}), 0) "
        "FROM shard LEFT JOIN chunk ON chunk.shard = shard.id GROUP BY shard.id ORDER BY shard.id"
    )
    return [ShardUse(number, blocks, live, size) for number, blocks, size, live in catalogue.execute(sql)]


def with_dead_rows(catalogue: Catalogue) -> list[ShardUse]:
    """Return the shards that hold a row of no chunk, those with the least to move first."""
    return sorted((use for use in shard_use(catalogue) if use.live < use.blocks), key=lambda use: use.live)


def compact_sparse(writer: StoreWriter) -> Moved:
    """Compact the shards that are more dead than alive; call it at the end of a finished ingest.

    Copying such a shard frees more than it writes. Where the disk has no room for that, nothing is moved.

    Raises: as `compact`.
    """
    sparse = [use for use in with_dead_rows(writer.catalogue) if use.live * 2 < use.blocks]
    if durable.free_bytes(writer.path) < room_to_compact(writer, sparse):
        return Moved(0, 0, 0)
    return compact(writer, sparse)


def compact(writer: StoreWriter, uses: Sequence[ShardUse]) -> Moved:
    """Move the chunks of some shards into as few new ones as hold them; an old shard goes when its last chunk went.

    Nothing may be buffered in the writer. Shards that an open snapshot reads are unlinked by a later writer.

    Raises: CorruptStoreError (13) for a chunk that cannot be read, NoSpaceError (14), ComemError (1). What was moved
    before that stays moved, and every other chunk where it was.
    """
    before = sum(use.bytes for use in shard_use(writer.catalogue))
    moved, builder, waiting = 0, _builder(writer), list[ChunkRow]()
    files = ShardFiles(writer.path, writer.layout)
    try:
        for chunk in _chunks_of(writer.catalogue, [use.shard for use in uses]):
            needed = format.blocks_of(chunk.n_tokens) * format.ROWS_PER_BLOCK
            if builder.blocks * format.ROWS_PER_BLOCK + needed > writer.capacity:
                writer.relocate(builder, waiting)
                builder, waiting = _builder(writer), []
            waiting.append(_copied(chunk, files, builder))
            moved += 1
    finally:
        files.close()
    if waiting:
        writer.relocate(builder, waiting)
    after = sum(use.bytes for use in shard_use(writer.catalogue))
    return Moved(moved, len(uses), before - after)


def room_to_compact(writer: StoreWriter, uses: Iterable[ShardUse]) -> int:
    """Return the bytes that must be free to compact some shards: the largest new shard, and its transaction."""
    blocks = min(sum(use.live for use in uses), writer.capacity // format.ROWS_PER_BLOCK)
    return format.shard_file_bytes(writer.layout, blocks, writer.capacity) + CATALOGUE_ROOM if blocks else 0


def expected_bytes(reader: StoreReader) -> dict[str, int]:
    """Return what must lie on disk beside catalogue, index and lock: bytes by path relative to the store, no more.

    Shards of dropped chunks that an open snapshot reads come on top until it ends.

    Raises: CorruptStoreError (13).
    """
    found = {format.METADATA_NAME: len(format.group_document(reader.fingerprint.format_version))}
    if reader.fingerprint.split:
        shards = list(reader.catalogue.rows(ShardRow))
        count = max((shard.id for shard in shards), default=-1) + 1
        document = format.array_document(reader.layout, reader.capacity, count)
        found[f"{format.ARRAY_NAME}/{format.METADATA_NAME}"] = len(document)
        for shard in shards:
            path = format.shard_path(Path(), shard.id)
            found[path.as_posix()] = format.shard_file_bytes(reader.layout, shard.blocks, reader.capacity)
    return found


def _builder(writer: StoreWriter) -> format.ShardBuilder:
    return format.ShardBuilder(writer.layout, writer.capacity)


def _chunks_of(catalogue: Catalogue, shards: Iterable[int]) -> Iterator[ChunkRow]:
    """Yield the chunks of each shard by row; a list a shard, since the rows change while they are moved."""
    for shard in shards:
        yield from list(catalogue.rows(ChunkRow, "WHERE shard = ? ORDER BY row", (shard,)))


def _copied(chunk: ChunkRow, files: ShardFiles, builder: format.ShardBuilder) -> ChunkRow:
    """Copy a chunk's verified rows into the builder; return its row there."""
    rows = files.stored(chunk)
    first, crcs = builder.add(memoryview(rows))
    if crcs != chunk.crcs:
        raise CorruptStoreError(f"chunk {chunk.key} changed while it was moved", "run the same command again")
    return replace(chunk, row=first, crcs=crcs)
