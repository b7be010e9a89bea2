"""Verified fetch of a pack's chunks against `preadv` of the same bytes into one reused buffer, warm and cold.

Random rows in a shard of a store of its own; `cold` drops the file from the page cache before every turn.
"""

from __future__ import annotations

import os
import random
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from comem_cli.store import format, shards
from comem_cli.store.fetch import ShardFiles
from comem_cli.store.rows import ChunkRow
from dev.bench.interleave import Figure, interleaved, ratio
from dev.bench.material import CHUNK

BARS = {"warm": 2.0, "cold": 1.9}
KEPT, PACK = 48, 12


def fetch(widths: list[int], repeat: int) -> Iterator[Figure]:
    """Yield fetch / preadv for each width, warm and cold."""
    for width in widths:
        with tempfile.TemporaryDirectory(prefix="comem-bench-", dir=".") as folder:
            chunks, paths = _store(Path(folder), width)
            size = PACK * CHUNK * width * format.ITEM_BYTES
            files, verified, raw = ShardFiles(Path(folder), width), bytearray(size), bytearray(size + 2**20)
            arms = {
                "verified": lambda f=files, c=chunks, out=verified: f.read(c, memoryview(out)),
                "raw": _raw(chunks, paths, width, memoryview(raw)),
            }
            for state, bar in BARS.items():
                turns = {name: _turn(arm, paths if state == "cold" else []) for name, arm in arms.items()}
                times = interleaved(turns, repeat, warm=2)
                facts = {"mb": round(size / 1e6, 1)}
                name = f"verified fetch / preadv, d={width}, {PACK} chunks, {state}"
                yield ratio(name, times["verified"], times["raw"], bar=bar, better="lower", facts=facts)
            files.close()


def _store(folder: Path, width: int) -> tuple[list[ChunkRow], list[Path]]:
    """Write random rows; return PACK chunks of it in document order, and the shard files."""
    rng, capacity = np.random.default_rng(0), format.shard_capacity(width, CHUNK)
    shards.make_layout(folder, True)
    rows: list[ChunkRow] = []
    paths = []
    builder = format.ShardBuilder(width, capacity)
    for number in range(KEPT):
        if (builder.blocks + format.blocks_of(CHUNK)) * format.ROWS_PER_BLOCK > capacity:
            shards.write_shard(folder, len(paths), builder)
            paths.append(format.shard_path(folder, len(paths)))
            builder = format.ShardBuilder(width, capacity)
        data = rng.integers(0, 2**16, CHUNK * width, dtype=np.uint16).tobytes()
        row, crcs = builder.add(memoryview(data))
        rows.append(ChunkRow(number, f"c-{number}", len(paths), row, CHUNK, crcs, b""))
    shards.write_shard(folder, len(paths), builder)
    paths.append(format.shard_path(folder, len(paths)))
    return sorted(random.Random(1).sample(rows, PACK), key=lambda one: one.id), paths


def _raw(chunks: list[ChunkRow], paths: list[Path], width: int, out: memoryview) -> Callable[[], None]:
    files = [os.open(path, os.O_RDONLY) for path in paths]
    step = format.block_bytes(width) + format.CRC_BYTES
    size = format.blocks_of(CHUNK) * step
    places = [(files[one.shard or 0], (one.row or 0) // format.ROWS_PER_BLOCK * step) for one in chunks]

    def run() -> None:
        for fd, offset in places:
            done = 0
            while done < size:
                done += os.preadv(fd, [out[done:size]], offset + done)

    return run


def _turn(arm: Callable[[], None], cold: list[Path]) -> Callable[[], float]:
    def turn() -> float:
        for path in cold:
            fd = os.open(path, os.O_RDONLY)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(fd)
        begin = time.perf_counter()
        arm()
        return time.perf_counter() - begin

    return turn
