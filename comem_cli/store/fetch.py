"""The hot read: residual rows from shard files into one reused buffer, every checksum verified.

Each `preadv` of about 1 MiB separates the 32-row blocks from their 4-byte checksums: rows land in the caller's buffer,
padding rows and checksums in scratch memory, and nothing is copied twice. Checksums must agree with the data and with
the catalogue, so that a shard file swapped for another valid one is refused too.
"""

from __future__ import annotations

import os
import struct
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path

import google_crc32c
import numpy as np

from comem_cli.errors import ComemError, CorruptStoreError, from_os_error
from comem_cli.store import format
from comem_cli.store.rows import ChunkRow

MAX_OPEN_SHARDS = 64
_READ_BYTES = 2**20  # rows read at once: the checksum then finds them in the processor's cache
_MAX_BLOCKS = 500  # two buffers a block, and one of padding, stay below IOV_MAX (1,024)


class ShardFiles:
    """Read chunks of one store; keeps at most 64 shard files open."""

    def __init__(self, store: Path, width: int) -> None:
        self._store = store
        self._width = width
        self._fds: OrderedDict[int, int] = OrderedDict()

    def close(self) -> None:
        """Close every shard file."""
        while self._fds:
            os.close(self._fds.popitem()[1])

    def read(self, chunks: Sequence[ChunkRow], out: memoryview) -> None:
        """Read the rows of `chunks` one after another into `out`: (sum of n_tokens, d) bf16 as writable bytes.

        Raises: CorruptStoreError (13) naming chunk key and file, for a checksum that does not match, a short read or
        a missing shard.
        """
        row_bytes = self._width * format.ITEM_BYTES
        start = 0
        for chunk in chunks:
            end = start + chunk.n_tokens * row_bytes
            self._read_chunk(chunk, out[start:end])
            start = end

    def _read_chunk(self, chunk: ChunkRow, rows: memoryview) -> None:
        assert chunk.row is not None
        size = format.block_bytes(self._width)
        first_block = chunk.row // format.ROWS_PER_BLOCK
        blocks = format.blocks_of(chunk.n_tokens)
        per_read = min(_MAX_BLOCKS, max(1, _READ_BYTES // size))
        fd = self._open(chunk)
        for start in range(0, blocks, per_read):
            stop = min(start + per_read, blocks)
            part = rows[start * size : stop * size]
            padding = bytearray((stop - start) * size - len(part))
            crcs = bytearray((stop - start) * format.CRC_BYTES)
            offset = (first_block + start) * (size + format.CRC_BYTES)
            short = self._read_into(chunk, fd, _buffers(part, padding, crcs, size), offset)
            if short:
                raise self._corrupt(chunk, f"is short by {short:,} bytes")
            wanted = chunk.crcs[start * format.CRC_BYTES : stop * format.CRC_BYTES]
            if crcs != wanted or _checksums(part, padding, size) != wanted:
                raise self._corrupt(chunk, "does not match its checksum")

    def _open(self, chunk: ChunkRow) -> int:
        assert chunk.shard is not None
        if chunk.shard in self._fds:
            self._fds.move_to_end(chunk.shard)
            return self._fds[chunk.shard]
        try:
            fd = format.open_shard(self._store, chunk.shard)
        except (FileNotFoundError, NotADirectoryError) as error:
            raise self._corrupt(chunk, "is missing") from error
        except format.NoShardFile as error:
            raise self._corrupt(chunk, str(error)) from error
        except OSError as error:
            raise from_os_error(error) from error
        self._fds[chunk.shard] = fd
        if len(self._fds) > MAX_OPEN_SHARDS:
            os.close(self._fds.popitem(last=False)[1])
        return fd

    def _read_into(self, chunk: ChunkRow, fd: int, views: list[memoryview], offset: int) -> int:
        try:
            return _read_into(fd, views, offset)
        except OSError as error:  # EIO: the disk itself lost them
            raise self._corrupt(chunk, f"cannot be read: {error.strerror}") from error

    def _corrupt(self, chunk: ChunkRow, what: str) -> ComemError:
        assert chunk.shard is not None
        path = format.shard_path(self._store, chunk.shard)
        return CorruptStoreError(f"chunk {chunk.key}: {path} {what}", f"comem check {self._store} --repair")


def _buffers(rows: memoryview, padding: bytearray, crcs: bytearray, size: int) -> list[memoryview]:
    """Interleave blocks of `rows` with their checksums as they lie in the file, `padding` completing the last block."""
    checksums = memoryview(crcs)
    buffers: list[memoryview] = []
    for block in range(len(crcs) // format.CRC_BYTES):
        buffers.append(rows[block * size : (block + 1) * size])
        buffers.append(checksums[block * format.CRC_BYTES : (block + 1) * format.CRC_BYTES])
    if padding:
        buffers.insert(-1, memoryview(padding))
    return buffers


def _read_into(fd: int, views: list[memoryview], offset: int) -> int:
    """Fill `views` in order from `offset`; returns the bytes that the end of the file left unfilled."""
    missing = sum(map(len, views))
    while missing:
        got = os.preadv(fd, views, offset)
        missing -= got
        if not missing or not got:
            break
        offset += got
        views = _rest(views, got)
    return missing


def _rest(views: list[memoryview], done: int) -> list[memoryview]:
    """Return what of `views` remains after their first `done` bytes."""
    for number, view in enumerate(views):
        if done < len(view):
            return [view[done:], *views[number + 1 :]]
        done -= len(view)
    return []


def _checksums(rows: memoryview, padding: bytearray, size: int) -> bytes:
    """Compute the CRC-32C of each block of `size` bytes, the last one completed by `padding`, as in the catalogue."""
    # google_crc32c refuses a writable memoryview but takes a NumPy array of the same memory, without a copy.
    data = np.frombuffer(rows, np.uint8)
    whole = len(data) // size * size
    crcs = list(map(google_crc32c.value, data[:whole].reshape(-1, size)))
    if padding:
        crcs.append(google_crc32c.extend(google_crc32c.value(data[whole:]), bytes(padding)))
    return struct.pack(f"<{len(crcs)}I", *crcs)
