"""The hot read: residual rows from shard files into one reused buffer, every checksum verified.

One `preadv` of about 1 MiB separates the 32-row blocks from their 4-byte checksums: rows land in the caller's buffer,
padding rows and checksums in scratch memory, and nothing is copied twice. What the page cache holds is read as it is;
the first miss announces the whole fetch to the system, whose disk then works while checksums are computed. Int8 records
land in one reused buffer and are turned into bf16 from there. Checksums must agree with the data and with the
catalogue, so that a shard file swapped for another valid one is refused too.
"""

from __future__ import annotations

import os
import struct
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Sequence
from contextlib import suppress
from itertools import accumulate, chain
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np
import numpy.typing as npt

from comem_cli.errors import ComemError, CorruptStoreError, from_os_error
from comem_cli.store import format
from comem_cli.store.row_layout import BF16_BYTES, RowLayout
from comem_cli.store.rows import ChunkRow

MAX_OPEN_SHARDS = 64
_READ_BYTES = 2**20  # rows read at once: the checksum then finds them in the processor's cache
_MAX_BLOCKS = 500  # two buffers a block, and one of padding, stay below IOV_MAX (1,024)
_NOWAIT = getattr(os, "RWF_NOWAIT", 0)  # Linux

Bytes = npt.NDArray[np.uint8]
Buffers = list[Any]  # of Bytes, whose stubs do not say for Python 3.11 that they are buffers


class ShardFiles:
    """Read chunks of one store; keeps at most 64 shard files open."""

    def __init__(self, store: Path, layout: RowLayout) -> None:
        self._store = store
        self._layout = layout
        self._row_bytes = layout.row_bytes
        self._block = format.block_bytes(layout)
        self._step = self._block + format.CRC_BYTES
        self._coming: Sequence[ChunkRow] = ()  # what is asked for, until the disk is told
        at_once = min(_MAX_BLOCKS, max(1, _READ_BYTES // self._block))
        self._crcs = np.empty((at_once, format.CRC_BYTES), np.uint8)  # as they were read
        self._crc_buffers = list(self._crcs)
        self._records = np.empty(0, np.uint8)  # of int8 rows, before they are turned
        self._fds: OrderedDict[int, int] = OrderedDict()

    def close(self) -> None:
        """Close every shard file."""
        while self._fds:
            os.close(self._fds.popitem()[1])

    def stored(self, chunk: ChunkRow) -> bytearray:
        """Return a chunk's rows as they lie on disk; raises as `read`."""
        rows = bytearray(chunk.n_tokens * self._row_bytes)
        self.read([chunk], memoryview(rows))
        return rows

    def read(self, chunks: Sequence[ChunkRow], out: memoryview) -> None:
        """Read the rows of `chunks` one after another into `out`, writable bytes, as they lie on disk.

        Raises: CorruptStoreError (13) naming chunk key and file, for a checksum that does not match, a short read or
        a missing shard.
        """
        self._read(chunks, np.frombuffer(out, np.uint8))

    def read_residuals(self, chunks: Sequence[ChunkRow], out: memoryview) -> None:
        """Read the residuals of `chunks` into `out`: (sum of n_tokens, d) bf16 as writable bytes; int8 is turned back.

        Raises: as `read`, and for an int8 record that is none.
        """
        if not self._layout.quantised:
            self.read(chunks, out)
            return
        from comem_cli.store.int8 import NoRecordError, dequantise  # torch

        n_tokens = [chunk.n_tokens for chunk in chunks]
        size = sum(n_tokens) * self._row_bytes
        if len(self._records) < size:
            self._records = np.empty(size, np.uint8)
        records = self._records[:size]
        self._read(chunks, records)
        try:
            dequantise(records, out[: sum(n_tokens) * self._layout.width * BF16_BYTES], self._layout)
        except NoRecordError as error:
            chunk = chunks[bisect_right(list(accumulate(n_tokens)), error.row)]
            raise self._corrupt(chunk, str(error)) from error

    def _read(self, chunks: Sequence[ChunkRow], out: Bytes) -> None:
        begin, self._coming = 0, chunks
        for chunk in chunks:
            end = begin + chunk.n_tokens * self._row_bytes
            self._read_chunk(chunk, out[begin:end])
            begin = end

    def _announce(self) -> None:
        """Let the system read what is coming from the disk, all at once, while this thread waits and verifies."""
        coming, self._coming = self._coming, ()
        if not hasattr(os, "posix_fadvise"):  # macOS
            return
        for chunk in coming:
            assert chunk.row is not None
            start = chunk.row // format.ROWS_PER_BLOCK * self._step
            size = format.blocks_of(chunk.n_tokens) * self._step
            with suppress(ComemError, OSError):  # an advice: what is wrong with the file, its read will say
                os.posix_fadvise(self._open(chunk), start, size, os.POSIX_FADV_WILLNEED)

    def _read_chunk(self, chunk: ChunkRow, rows: Bytes) -> None:
        """Read a chunk into `rows`, which is as long.

        Little is done between two reads: it finds the caches full of rows, and takes twice the time it takes alone.
        """
        assert chunk.row is not None
        size = self._block
        whole = len(rows) // size * size
        # NumPy arrays, since google_crc32c refuses a writable memoryview of the same memory.
        blocks: list[Bytes] = list(rows[:whole].reshape(-1, size))
        if whole < len(rows):
            blocks.append(rows[whole:])
        number = chunk.row // format.ROWS_PER_BLOCK
        for first in range(0, len(blocks), len(self._crcs)):
            self._read_blocks(chunk, first, number + first, blocks[first : first + len(self._crcs)])

    def _read_blocks(self, chunk: ChunkRow, first: int, number: int, blocks: list[Bytes]) -> None:
        """Read blocks from the `first` of the chunk on, block `number` of the shard; the last may lack padding rows."""
        buffers: Buffers = list(chain.from_iterable(zip(blocks, self._crc_buffers, strict=False)))
        padding = None
        if len(blocks[-1]) < self._block:
            padding = np.empty(self._block - len(blocks[-1]), np.uint8)
            buffers.insert(-1, padding)
        self._fill(chunk, buffers, number * self._step, len(blocks) * self._step)
        crcs = list(map(google_crc32c.value, blocks))
        if padding is not None:
            crcs[-1] = google_crc32c.extend(crcs[-1], padding)
        wanted = chunk.crcs[first * format.CRC_BYTES : (first + len(blocks)) * format.CRC_BYTES]
        if self._crcs[: len(blocks)].tobytes() != wanted or struct.pack(f"<{len(crcs)}I", *crcs) != wanted:
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

    def _fill(self, chunk: ChunkRow, buffers: Buffers, offset: int, size: int) -> None:
        """Read `size` bytes of the chunk's shard into `buffers`, which hold as many."""
        got = _read_cached(self._open(chunk), buffers, offset)
        if got == size:
            return
        self._announce()
        fd = self._open(chunk)  # again: others may have taken its place
        try:
            while got < size:
                more = os.preadv(fd, _rest(buffers, got), offset + got)
                if not more:
                    raise self._corrupt(chunk, f"is short by {size - got:,} bytes")
                got += more
        except OSError as error:  # EIO: the disk itself lost them
            raise self._corrupt(chunk, f"cannot be read: {error.strerror}") from error

    def _corrupt(self, chunk: ChunkRow, what: str) -> ComemError:
        assert chunk.shard is not None
        path = format.shard_path(self._store, chunk.shard)
        return CorruptStoreError(f"chunk {chunk.key}: {path} {what}", f"comem check {self._store} --repair")


def _read_cached(fd: int, buffers: Buffers, offset: int) -> int:
    """Fill `buffers` from `offset` with what needs no disk, where the system can tell; returns how many bytes."""
    try:
        return os.preadv(fd, buffers, offset, _NOWAIT)
    except OSError:  # nothing is cached, or this file system cannot tell; another error comes again without _NOWAIT
        return 0


def _rest(buffers: Buffers, done: int) -> Buffers:
    """Return what of `buffers` remains after their first `done` bytes."""
    for number, buffer in enumerate(buffers):
        if done < len(buffer):
            return [buffer[done:], *buffers[number + 1 :]]
        done -= len(buffer)
    return []
