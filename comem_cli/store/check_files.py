"""Check the files of a store against its catalogue: shards block by block, zarr.json, and what does not belong there.

Shards are streamed, about 1 MiB at once. Nothing is written.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import google_crc32c

from comem_cli.errors import CorruptStoreError
from comem_cli.store import format
from comem_cli.store.catalogue import CATALOGUE_NAME
from comem_cli.store.check_catalogue import CatalogueState
from comem_cli.store.durable import TMP_SUFFIX
from comem_cli.store.fetch import ShardFiles
from comem_cli.store.findings import Finding
from comem_cli.store.lock import LOCK_NAME
from comem_cli.store.pending import PENDING_NAME
from comem_cli.store.reader import INDEX_DIR, StoreReader
from comem_cli.store.rows import ChunkRow, ShardRow

_READ_BYTES = 2**20
_MOST_METADATA = 2**16  # bytes of a zarr.json that is looked into
_SIDES = ("", "-wal", "-shm", "-journal")
_OURS = {*(CATALOGUE_NAME + side for side in _SIDES), format.METADATA_NAME, format.ARRAY_NAME, INDEX_DIR, LOCK_NAME}


def check_shard(reader: StoreReader, state: CatalogueState, shard: ShardRow, chunks: list[ChunkRow], deep: bool) -> int:
    """Check one shard file and return the bytes read; `chunks`: those that lie in it, in order of their rows.

    Presence, exact size and the shard's index always; with `deep` every block against its own checksum and the
    catalogue's.
    """
    before = len(state.findings)
    try:
        return _check_shard(reader, state, shard, chunks, deep)
    finally:
        if len(state.findings) > before:
            state.broken_shards.add(shard.id)


def _check_shard(
    reader: StoreReader, state: CatalogueState, shard: ShardRow, chunks: list[ChunkRow], deep: bool
) -> int:
    name = f"{format.ARRAY_NAME}/c/{shard.id}/0"
    holds = f"{len(chunks)} chunks lie in it"
    paths = tuple(dict.fromkeys(path for chunk in chunks for path in state.paths(chunk.id)))
    expected = format.shard_file_bytes(reader.layout, shard.blocks, reader.capacity)
    if shard.bytes != expected or shard.blocks * format.ROWS_PER_BLOCK > reader.capacity:
        detail = f"{shard.blocks} blocks do not take {shard.bytes:,} bytes"
        state.findings.append(Finding("catalogue-shard", f"shard {shard.id}", detail, paths))
        return 0
    try:
        fd = format.open_shard(reader.path, shard.id)
    except OSError as error:
        reason = error.strerror or str(error)
        state.findings.append(Finding("shard-missing", name, f"{reason.lower()}; {holds}", paths))
        return 0
    try:
        size = os.fstat(fd).st_size
        if size != expected:
            detail = f"{size:,} bytes instead of {expected:,}; {holds}"
            state.findings.append(Finding("shard-size", name, detail, paths))
            return 0
        index = format.shard_index(reader.layout, shard.blocks, reader.capacity)
        if os.pread(fd, len(index), size - len(index)) != index:
            state.findings.append(Finding("shard-damaged", name, "its index of blocks is damaged", paths))
        if not deep:
            return len(index)
        _check_blocks(reader, state, name, fd, shard.blocks, chunks)
        return size
    except OSError as error:
        state.findings.append(Finding("shard-damaged", name, f"cannot be read: {error.strerror}", paths))
        return 0
    finally:
        os.close(fd)


def _check_blocks(
    reader: StoreReader, state: CatalogueState, name: str, fd: int, blocks: int, chunks: list[ChunkRow]
) -> None:
    owners: dict[int, tuple[ChunkRow, bytes]] = {}
    for chunk in chunks:
        assert chunk.row is not None
        for number in range(format.blocks_of(chunk.n_tokens)):
            crc = chunk.crcs[4 * number : 4 * number + 4]
            owners[chunk.row // format.ROWS_PER_BLOCK + number] = chunk, crc
    broken: dict[int, ChunkRow] = {}
    dead = 0
    for number, data, crc in _blocks(fd, format.block_bytes(reader.layout), blocks):
        sound = google_crc32c.value(data).to_bytes(4, "little") == crc
        if number in owners:
            chunk, wanted = owners[number]
            if not sound or crc != wanted:
                broken[chunk.id] = chunk
        elif not sound:
            dead += 1
    for chunk in broken.values():
        detail = f"its residual in {name} does not match its checksum"
        state.findings.append(Finding("residual-damaged", f"chunk {chunk.key}", detail, state.paths(chunk.id)))
    if dead:
        detail = f"{dead} blocks of no chunk do not match their checksums"
        state.findings.append(Finding("shard-damaged", name, detail))


def _blocks(fd: int, size: int, count: int) -> Iterator[tuple[int, bytes, bytes]]:
    """Yield (number, data, checksum) of each block."""
    step = size + format.CRC_BYTES
    at_once = max(1, _READ_BYTES // step)
    for first in range(0, count, at_once):
        data = os.pread(fd, min(at_once, count - first) * step, first * step)
        for number in range(min(at_once, count - first)):
            block = data[number * step : (number + 1) * step]
            yield first + number, block[:size], block[size:]


def check_sample(reader: StoreReader, state: CatalogueState, chunks: list[ChunkRow]) -> int:
    """Read these chunks' residuals against their checksums; return the bytes read."""
    files = ShardFiles(reader.path, reader.layout)
    done = 0
    try:
        for chunk in chunks:
            rows = bytearray(chunk.n_tokens * reader.layout.row_bytes)
            try:
                files.read([chunk], memoryview(rows))
            except CorruptStoreError as error:
                paths = state.paths(chunk.id)
                state.findings.append(Finding("residual-damaged", f"chunk {chunk.key}", error.message, paths))
            done += len(rows)
    finally:
        files.close()
    return done


def check_metadata(reader: StoreReader, shards: int) -> Iterator[Finding]:
    """Check both zarr.json; `shards`: how many the array's shape must cover."""
    name = format.METADATA_NAME
    if _bytes_of(reader.path / name) != format.group_document(reader.fingerprint.format_version):
        yield Finding("zarr-metadata", name, "missing, or not what comem writes")
    if not reader.fingerprint.split:
        return
    name = f"{format.ARRAY_NAME}/{format.METADATA_NAME}"
    found = _bytes_of(reader.path / name)
    if found == format.array_document(reader.layout, reader.capacity, shards):
        return
    other = _shards_in(found, reader.capacity)
    if other is not None and found == format.array_document(reader.layout, reader.capacity, other):
        yield Finding("zarr-shape", name, f"its shape covers {other} shards instead of {shards}")
    else:
        yield Finding("zarr-metadata", name, "missing, or not what comem writes")


def _bytes_of(path: Path) -> bytes | None:
    """Return what a metadata file holds; None for what is missing, a link, or too large to be one."""
    try:
        if path.is_symlink() or not path.is_file() or path.stat().st_size > _MOST_METADATA:
            return None
        return path.read_bytes()
    except OSError:
        return None


def _shards_in(document: bytes | None, capacity: int) -> int | None:
    try:
        rows = json.loads(document or b"")["shape"][0]
        return int(rows) // capacity
    except (ValueError, TypeError, KeyError, IndexError, RecursionError, OverflowError):
        return None


def check_strangers(reader: StoreReader, live: set[int]) -> Iterator[Finding]:
    """Name what the catalogue does not account for: leftovers that the next writer removes, and other files.

    What lies in the index's folder is looked at by the index's own check.
    """
    for path in _entries(reader.path):
        if path.name == PENDING_NAME:
            yield Finding("forget-pending", path.name, "a forget is not finished: what it forgets may still be here")
        elif path.name not in _OURS:
            yield leftover(path.name, "leftover-file") if path.name.endswith(TMP_SUFFIX) else stranger(path.name)
    array = reader.path / format.ARRAY_NAME
    for path in _entries(array):
        name = f"{format.ARRAY_NAME}/{path.name}"
        if path.name not in (format.METADATA_NAME, "c"):
            yield leftover(name, "leftover-file") if name.endswith(TMP_SUFFIX) else stranger(name)
    names = {str(number) for number in live}
    for path in _entries(array / "c"):
        name = f"{format.ARRAY_NAME}/c/{path.name}"
        if path.name in names:
            yield from (stranger(f"{name}/{inner.name}") for inner in _entries(path) if inner.name != "0")
        else:
            yield leftover(name, "leftover-shard") if path.is_dir() else stranger(name)


def _entries(folder: Path) -> list[Path]:
    return sorted(folder.iterdir()) if folder.is_dir() else []


def leftover(name: str, code: str) -> Finding:
    """Note what the next writer removes."""
    return Finding(code, name, "left by a writer that was stopped, or kept for a reader")


def stranger(name: str) -> Finding:
    """Note a file that comem did not put there."""
    return Finding("stranger", name, "not a file of the store")
