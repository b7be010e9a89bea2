"""The hot read: residual rows from shard files into one reused buffer, every checksum verified.

Each `preadv` of about 1 MiB separates the 32-row blocks from their 4-byte checksums: rows land in the caller's buffer,
padding rows and checksums in scratch memory, and nothing is copied twice. Int8 records land in one reused buffer and
are turned into bf16 from there, about 1 MiB at once. Checksums must agree with the data and with the catalogue, so that
a shard file swapped for another valid one is refused too.
"""

from __future__ import annotations

import os
import struct
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from pathlib import Path

import google_crc32c
import numpy as np

from comem_cli.errors import ComemError, CorruptStoreError, from_os_error
from comem_cli.store import format
from comem_cli.store.row_layout import BF16_BYTES, RowLayout
from comem_cli.store.rows import ChunkRow

MAX_OPEN_SHARDS = 64
_READ_BYTES = 2**20  # rows read at once: the checksum then finds them in the processor's cache
_MAX_BLOCKS = 500  # two buffers a block, and one of padding, stay below IOV_MAX (1,024)


class ShardFiles:
    """Read chunks of one store; keeps at most 64 shard files open."""

    def __init__(self, store: Path, layout: RowLayout) -> None:
        self._store = store
        self._layout = layout
        self._records = bytearray()  # of int8 rows, before they are turned
        self._fds: OrderedDict[int, int] = OrderedDict()

    def close(self) -> None:
        """Close every shard file."""
        while self._fds:
            os.close(self._fds.popitem()[1])

    def stored(self, chunk: ChunkRow) -> bytearray:
        """Return a chunk's rows as they lie on disk; raises as `read`."""
        rows = bytearray(chunk.n_tokens * self._layout.row_bytes)
        self.read([chunk], memoryview(rows))
        return rows

    def read(self, chunks: Sequence[ChunkRow], out: memoryview) -> None:
        """Read the rows of `chunks` one after another into `out`, writable bytes, as they lie on disk.

        Raises: CorruptStoreError (13) naming chunk key and file, for a checksum that does not match, a short read or
        a missing shard.
        """
        row_bytes, at = self._layout.row_bytes, 0
        for chunk in chunks:
            for first, stop in self._parts(chunk):
                end = at + (stop - first) * row_bytes
                self._read_part(chunk, first, out[at:end])
                at = end

    def read_residuals(self, chunks: Sequence[ChunkRow], out: memoryview) -> None:
        """Read the residuals of `chunks` into `out`: (sum of n_tokens, d) bf16 as writable bytes; int8 is turned back.

        Raises: as `read`.
        """
        if not self._layout.quantised:
            self.read(chunks, out)
            return
        from comem_cli.store.int8 import dequantise  # torch

        row_bytes, at = self._layout.row_bytes, 0
        for chunk in chunks:
            for first, stop in self._parts(chunk):
                records = self._room((stop - first) * row_bytes)
                self._read_part(chunk, first, records)
                end = at + (stop - first) * self._layout.width * BF16_BYTES
                dequantise(records, out[at:end], self._layout)
                at = end

    def _room(self, size: int) -> memoryview:
        if len(self._records) < size:
            self._records = bytearray(size)
        return memoryview(self._records)[:size]

    def _parts(self, chunk: ChunkRow) -> Iterator[tuple[int, int]]:
        """Yield the rows of a chunk that are read at once: from, to, whole blocks but for the last."""
        per_read = min(_MAX_BLOCKS, max(1, _READ_BYTES // format.block_bytes(self._layout))) * format.ROWS_PER_BLOCK
        for first in range(0, chunk.n_tokens, per_read):
            yield first, min(first + per_read, chunk.n_tokens)

    def _read_part(self, chunk: ChunkRow, first: int, rows: memoryview) -> None:
        """Read a chunk's rows from the `first`, at the beginning of a block, as many as `rows` has room for."""
        assert chunk.row is not None
        size = format.block_bytes(self._layout)
        start = first // format.ROWS_PER_BLOCK
        blocks = -(-len(rows) // size)
        padding = bytearray(blocks * size - len(rows))
        crcs = bytearray(blocks * format.CRC_BYTES)
        offset = (chunk.row // format.ROWS_PER_BLOCK + start) * (size + format.CRC_BYTES)
        short = self._read_into(chunk, self._open(chunk), _buffers(rows, padding, crcs, size), offset)
        if short:
            raise self._corrupt(chunk, f"is short by {short:,} bytes")
        wanted = chunk.crcs[start * format.CRC_BYTES : (start + blocks) * format.CRC_BYTES]
        if crcs != wanted or _checksums(rows, padding, size) != wanted:
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
