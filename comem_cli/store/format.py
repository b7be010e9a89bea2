"""The residual array on disk: a zarr v3 array of residual rows in sharded files, bfloat16 [rows, d] or int8 records.

    STORE/zarr.json                 a zarr v3 group
    STORE/residuals/zarr.json       the array; its shape grows after each commit
    STORE/residuals/c/K/0           shard K: rows [K * capacity, (K + 1) * capacity)

A shard file is its blocks one after another, then an index. A block is 32 rows (row_layout.py) and its
CRC-32C (4 bytes, little-endian); the index holds (offset, length) as two uint64 little-endian for each block of the
shard, 2^64 - 1 twice where it is absent, and its own CRC-32C. This is the codec `sharding_indexed` of zarr v3 with the
inner codecs bytes and crc32c, index at the end. A chunk is a contiguous row range of one shard, its tail padded with
zero rows to a whole block.
"""

from __future__ import annotations

import json
import os
import stat
import struct
from pathlib import Path

import google_crc32c

from comem_cli.store.row_layout import BF16, RowLayout

FORMAT_VERSION = 2  # the newest; a store carries the oldest that describes it
ROWS_PER_BLOCK = 32
CRC_BYTES = 4
SHARD_BYTES = 32 * 2**20  # what a full shard is about
SHARD_ROWS = 2**15  # at most, so that the index of a shard with few rows stays small (16 KiB)
ARRAY_NAME = "residuals"
METADATA_NAME = "zarr.json"

_ABSENT = 2**64 - 1
_INDEX_ENTRY = struct.Struct("<QQ")
_CRC = struct.Struct("<I")


def version_of(residual_dtype: str) -> int:
    """Return the format version of a store: 1 for bfloat16 rows, 2 for int8 records."""
    return 1 if residual_dtype == BF16 else 2


def blocks_of(n_tokens: int) -> int:
    """Return how many blocks of 32 rows hold `n_tokens` rows."""
    return -(-n_tokens // ROWS_PER_BLOCK)


def block_bytes(layout: RowLayout) -> int:
    """Return the bytes of one block without its checksum."""
    return ROWS_PER_BLOCK * layout.row_bytes


def shard_capacity(layout: RowLayout, chunk: int) -> int:
    """Return the rows of a shard: whole padded chunks of `chunk` tokens, about 32 MiB or 32,768 rows, at least one."""
    padded = blocks_of(chunk) * ROWS_PER_BLOCK
    rows = min(SHARD_ROWS, SHARD_BYTES // layout.row_bytes)
    return padded * max(1, rows // padded)


def shard_path(store: Path, shard: int) -> Path:
    """Return the file of a shard."""
    return store / ARRAY_NAME / "c" / str(shard) / "0"


class NoShardFile(OSError):
    """Say that what lies at a shard's place is a link or no regular file."""


def open_shard(store: Path, shard: int) -> int:
    """Open the file of a shard for reading and return its descriptor; no link is followed and nothing blocks.

    Raises: NoShardFile, FileNotFoundError, OSError.
    """
    path = shard_path(store, shard)
    if path.parent.is_symlink() or path.is_symlink():
        raise NoShardFile("is a symbolic link")
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)  # a FIFO would block for ever
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise NoShardFile("is no regular file")
    return fd


def shard_file_bytes(layout: RowLayout, blocks: int, capacity: int) -> int:
    """Return the exact size of a shard file that holds `blocks` blocks."""
    return blocks * (block_bytes(layout) + CRC_BYTES) + capacity // ROWS_PER_BLOCK * _INDEX_ENTRY.size + CRC_BYTES


def group_document(version: int) -> bytes:
    """Return `zarr.json` of the root group of a store of a format version."""
    attributes = {"comem_format": version}
    return _json({"zarr_format": 3, "node_type": "group", "attributes": attributes})


def array_document(layout: RowLayout, capacity: int, shards: int) -> bytes:
    """Return `zarr.json` of the residual array with room for `shards` shards of `capacity` rows."""
    little = {"name": "bytes", "configuration": {"endian": "little"}}
    crc32c = {"name": "crc32c"}
    inner = {"name": "bytes"} if layout.quantised else little  # single bytes have no order
    sharding = {
        "chunk_shape": [ROWS_PER_BLOCK, layout.columns],
        "codecs": [inner, crc32c],
        "index_codecs": [little, crc32c],
        "index_location": "end",
    }
    return _json(
        {
            "zarr_format": 3,
            "node_type": "array",
            "shape": [shards * capacity, layout.columns],
            "data_type": "uint8" if layout.quantised else "bfloat16",
            "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [capacity, layout.columns]}},
            "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
            "fill_value": 0 if layout.quantised else 0.0,
            "codecs": [{"name": "sharding_indexed", "configuration": sharding}],
            "attributes": layout.attributes(),
        }
    )


class ShardBuilder:
    """Encode chunks into the bytes of one shard, in memory (at most one shard's size)."""

    def __init__(self, layout: RowLayout, capacity: int) -> None:
        self._layout = layout
        self._capacity = capacity
        self._data = bytearray()
        self.blocks = 0

    def add(self, rows: memoryview) -> tuple[int, bytes]:
        """Append one chunk, `rows`: its n rows as they lie on disk.

        Returns the chunk's first row within the shard and the checksums of its blocks (uint32 little-endian).
        """
        first_row = self.blocks * ROWS_PER_BLOCK
        size = block_bytes(self._layout)
        crcs = bytearray()
        for start in range(0, len(rows), size):
            block = bytes(rows[start : start + size]).ljust(size, b"\0")
            crc = _CRC.pack(google_crc32c.value(block))
            self._data += block
            self._data += crc
            crcs += crc
            self.blocks += 1
        return first_row, bytes(crcs)

    def parts(self) -> tuple[bytearray, bytes]:
        """Return the blocks and the index, in file order."""
        return self._data, shard_index(self._layout, self.blocks, self._capacity)


def shard_index(layout: RowLayout, blocks: int, capacity: int) -> bytes:
    """Return the index of a shard that holds `blocks` blocks, with its checksum."""
    step = block_bytes(layout) + CRC_BYTES
    entries = [(number * step, step) for number in range(blocks)]
    entries += [(_ABSENT, _ABSENT)] * (capacity // ROWS_PER_BLOCK - blocks)
    index = b"".join(_INDEX_ENTRY.pack(*entry) for entry in entries)
    return index + _CRC.pack(google_crc32c.value(index))


def _json(document: dict[str, object]) -> bytes:
    return json.dumps(document, indent=2).encode() + b"\n"
