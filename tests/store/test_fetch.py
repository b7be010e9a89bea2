"""Fetch against the bytes that were written and the files as they lie: lengths, parts, misses of the cache, faults."""

from __future__ import annotations

import errno
import os
import random
from pathlib import Path

import pytest

from comem_cli.errors import CorruptStoreError
from comem_cli.store import fetch, format, shards
from comem_cli.store.fetch import ShardFiles
from comem_cli.store.row_layout import RowLayout
from comem_cli.store.rows import ChunkRow

WIDTH = 8
LAYOUT = RowLayout(WIDTH)
STEP = 32 * WIDTH * 2 + 4  # a block and its checksum
LENGTHS = [[1, 32, 33], [64, 7], [100, 31, 96, 2], [500]]  # of the chunks of each shard

Store = tuple[Path, list[ChunkRow], list[bytes]]


@pytest.fixture
def store(tmp_path) -> Store:
    """Shards, the rows of the catalogue, and the residuals as they were given."""
    chunks, residuals, rng = [], [], random.Random(5)
    (tmp_path / "residuals" / "c").mkdir(parents=True)
    for shard, lengths in enumerate(LENGTHS):
        builder = format.ShardBuilder(LAYOUT, 512)
        for length in lengths:
            residuals.append(rng.randbytes(length * WIDTH * 2))
            row, crcs = builder.add(memoryview(residuals[-1]))
            chunks.append(ChunkRow(len(chunks), f"c-{len(chunks)}", shard, row, length, crcs, b""))
        shards.write_shard(tmp_path, shard, builder)
    return tmp_path, chunks, residuals


def fetched(path: Path, chunks: list[ChunkRow]) -> bytes:
    out = bytearray(b"\xff" * (sum(chunk.n_tokens for chunk in chunks) * WIDTH * 2))
    files = ShardFiles(path, LAYOUT)
    try:
        files.read(chunks, memoryview(out))
        again = bytearray(len(out))
        files.read_residuals(chunks, memoryview(again))  # the same files and buffers once more
        assert again == out
        assert len(files._fds) <= fetch.MAX_OPEN_SHARDS
    finally:
        files.close()
    return bytes(out)


def limit(monkeypatch, blocks: int, files: int) -> None:
    monkeypatch.setattr(fetch, "_MAX_BLOCKS", blocks)
    monkeypatch.setattr(fetch, "MAX_OPEN_SHARDS", files)


@pytest.mark.parametrize(("blocks", "files"), [(500, 64), (1, 64), (3, 1), (500, 1)])
def test_chunks_of_any_length_in_any_order(store, monkeypatch, blocks, files):
    path, chunks, residuals = store
    limit(monkeypatch, blocks, files)
    rng = random.Random(blocks)
    for _ in range(20):
        wanted = rng.choices(range(len(chunks)), k=rng.randrange(8))
        assert fetched(path, [chunks[n] for n in wanted]) == b"".join(residuals[n] for n in wanted)


def misses(monkeypatch, code: int, cached: int = 0) -> list[tuple[int, int]]:
    """Let reads that may not wait end with `code`, or after `cached` bytes; returns what will be announced."""
    real, announced = os.preadv, []

    def preadv(fd, buffers, offset, flags=0):
        if flags and not cached:
            raise OSError(code, os.strerror(code))
        return real(fd, [buffers[0][:cached]] if flags else buffers, offset)

    def advise(fd, offset, size, advice):
        assert advice == os.POSIX_FADV_WILLNEED
        announced.append((offset, size))
        raise OSError(errno.EINVAL, "an advice may fail")

    monkeypatch.setattr(os, "preadv", preadv)
    monkeypatch.setattr(os, "posix_fadvise", advise)
    return announced


@pytest.mark.skipif(not fetch._NOWAIT, reason="needs RWF_NOWAIT")
@pytest.mark.parametrize(("code", "cached"), [(errno.EAGAIN, 0), (errno.EOPNOTSUPP, 0), (0, 5)])
@pytest.mark.parametrize("files", [1, 64])
def test_the_first_miss_of_the_cache_announces_the_whole_fetch_once(store, monkeypatch, code, cached, files):
    path, chunks, residuals = store
    limit(monkeypatch, 3, files)
    announced = misses(monkeypatch, code, cached)
    assert fetched(path, chunks) == b"".join(residuals)
    blocks = [[-(-length // 32) for length in lengths] for lengths in LENGTHS]
    places = [(sum(some[:n]) * STEP, some[n] * STEP) for some in blocks for n in range(len(some))]
    assert announced == places * 2  # `fetched` reads twice


def test_what_is_cached_is_not_announced_and_systems_that_cannot_tell_are_read(store, monkeypatch):
    path, chunks, residuals = store
    announced = misses(monkeypatch, 0, cached=1 << 20)
    monkeypatch.setattr(fetch, "_NOWAIT", 0)
    assert fetched(path, chunks) == b"".join(residuals) and announced == []
    misses(monkeypatch, errno.EAGAIN)
    monkeypatch.delattr(os, "posix_fadvise")
    assert fetched(path, chunks) == b"".join(residuals)


@pytest.mark.parametrize("order", [1, -1])
def test_the_first_chunk_that_is_damaged_is_the_one_that_is_named(store, monkeypatch, order):
    path, chunks, _ = store
    flipped, missing = format.shard_path(path, 1), format.shard_path(path, 2)
    data = bytearray(flipped.read_bytes())
    data[3] ^= 1  # of chunk 3
    flipped.write_bytes(data)
    missing.unlink()
    misses(monkeypatch, errno.EAGAIN)
    named, file = (chunks[3], flipped) if order == 1 else (chunks[8], missing)
    with pytest.raises(CorruptStoreError, match=f"chunk {named.key}: {file}"):
        fetched(path, chunks[3:9][::order])


def test_a_disk_that_loses_bytes_is_damage_of_the_chunk(store, monkeypatch):
    path, chunks, _ = store

    def preadv(*_):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "preadv", preadv)
    with pytest.raises(CorruptStoreError, match=f"chunk {chunks[4].key}: .*/1/0 cannot be read: Input/output error"):
        fetched(path, chunks[4:])
