"""Verified fetch of a pack's chunks against `preadv` of the same bytes into one reused buffer, warm and cold.

Random rows in shards of a store of its own; `cold` drops the files from the page cache before every turn. A last figure
holds int8 records, turned back into bf16, against bf16 rows.
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
from comem_cli.store.int8 import quantise
from comem_cli.store.row_layout import INT8, RowLayout
from comem_cli.store.rows import ChunkRow
from dev.bench.interleave import Figure, interleaved, ratio
from dev.bench.material import CHUNK

BARS = {"warm": 2.0, "cold": 1.9}
KEPT, PACK = 48, 12


class Rows:
    """Hold random chunks in a folder; `read` fetches a pack of them as bf16."""

    def __init__(self, folder: Path, layout: RowLayout) -> None:
        """Write KEPT chunks and draw PACK of them, in the order of a document."""
        self.layout = layout
        self.paths: list[Path] = []
        rng, capacity = np.random.default_rng(0), format.shard_capacity(layout, CHUNK)
        (folder / format.ARRAY_NAME / "c").mkdir(parents=True)
        chunks: list[ChunkRow] = []
        builder = format.ShardBuilder(layout, capacity)
        for number in range(KEPT):
            if (builder.blocks + format.blocks_of(CHUNK)) * format.ROWS_PER_BLOCK > capacity:
                self._write(folder, builder)
                builder = format.ShardBuilder(layout, capacity)
            values = rng.standard_normal((CHUNK, layout.width), dtype=np.float32)
            data = (values.view(np.uint32) >> 16).astype("<u2").tobytes()  # bf16, cut off
            row, crcs = builder.add(memoryview(quantise(data, layout) if layout.quantised else data))
            chunks.append(ChunkRow(number, f"c-{number}", len(self.paths), row, CHUNK, crcs, b""))
        self._write(folder, builder)
        self.chunks = sorted(random.Random(1).sample(chunks, PACK), key=lambda one: one.id)
        self._files = ShardFiles(folder, layout)
        self._out = memoryview(bytearray(PACK * CHUNK * layout.width * 2))

    def read(self) -> None:
        """Fetch the pack, every checksum verified."""
        self._files.read_residuals(self.chunks, self._out)

    def close(self) -> None:
        """Close the shard files."""
        self._files.close()

    def _write(self, folder: Path, builder: format.ShardBuilder) -> None:
        shards.write_shard(folder, len(self.paths), builder)
        self.paths.append(format.shard_path(folder, len(self.paths)))


def fetch(widths: list[int], repeat: int) -> Iterator[Figure]:
    """Yield fetch / preadv for each width, warm and cold, and int8 / bf16 warm.

    Warm there is the thread's CPU time as well: on a machine that has other work it is steadier than wall time.
    """
    for width in widths:
        with tempfile.TemporaryDirectory(prefix="comem-bench-", dir=".") as folder:
            plain = Rows(Path(folder) / "bf16", RowLayout(width))
            small = Rows(Path(folder) / "int8", RowLayout(width, INT8))
            arms = {"verified": plain.read, "raw": _raw(plain)}
            facts = {"mb": round(PACK * CHUNK * width * 2 / 1e6, 1)}
            name = f"verified fetch / preadv, d={width}, {PACK} chunks"
            for state, bar in BARS.items():
                turns = {arm: _turn(run, plain.paths if state == "cold" else []) for arm, run in arms.items()}
                times = interleaved(turns, repeat, warm=2)
                yield ratio(f"{name}, {state}", times["verified"], times["raw"], bar=bar, better="lower", facts=facts)
            times = interleaved({arm: _turn(run, [], time.thread_time) for arm, run in arms.items()}, repeat, warm=2)
            yield ratio(f"{name}, warm, CPU time", times["verified"], times["raw"], facts=facts)
            turns = {"int8": _turn(small.read, [], time.thread_time), "bf16": _turn(plain.read, [], time.thread_time)}
            times = interleaved(turns, repeat, warm=2)
            name = f"verified fetch int8 / bf16, d={width}, {PACK} chunks, warm, CPU time"
            yield ratio(name, times["int8"], times["bf16"])
            plain.close()
            small.close()


def _raw(rows: Rows) -> Callable[[], None]:
    files = [os.open(path, os.O_RDONLY) for path in rows.paths]
    step = format.block_bytes(rows.layout) + format.CRC_BYTES
    size = format.blocks_of(CHUNK) * step
    places = [(files[one.shard or 0], (one.row or 0) // format.ROWS_PER_BLOCK * step) for one in rows.chunks]
    out = memoryview(bytearray(size * PACK))

    def run() -> None:
        for number, (fd, offset) in enumerate(places):
            done, part = 0, out[number * size : (number + 1) * size]
            while done < size:
                done += os.preadv(fd, [part[done:]], offset + done)

    return run


def _turn(
    arm: Callable[[], None], cold: list[Path], clock: Callable[[], float] = time.perf_counter
) -> Callable[[], float]:
    def turn() -> float:
        for path in cold:
            fd = os.open(path, os.O_RDONLY)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(fd)
        begin = clock()
        arm()
        return clock() - begin

    return turn
