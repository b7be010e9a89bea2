"""Space of dropped chunks comes back: the disk holds what the catalogue says, byte for byte; killed anywhere, too."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

import pytest
from killed_forget import KEPT, ROOT, SECRET, SECRETS, finish_ingest, killed, write_store
from samples import RECORDED, WIDTH, contents, expected, fingerprint, open_store, put, sample
from test_faults import check_exact_layout, passages

from comem_cli.errors import CorruptStoreError
from comem_cli.store import durable, format
from comem_cli.store.reader import StoreReader
from comem_cli.store.reclaim import Moved, compact, compact_sparse, expected_bytes, shard_use, with_dead_rows
from comem_cli.store.row_layout import RowLayout
from comem_cli.store.writer import StoreWriter

AFTER = {(ROOT, name): expected(chunks) for name, chunks in KEPT.items()}
BEFORE = {**AFTER, (ROOT, SECRET): expected(SECRETS)}


@pytest.fixture
def base(tmp_path):
    write_store(tmp_path / "base")
    assert contents(tmp_path / "base") == BEFORE
    return tmp_path / "base"


def on_disk(path: Path) -> dict[str, int]:
    files = [path / "zarr.json", *(path / "residuals").rglob("*")]
    return {file.relative_to(path).as_posix(): file.stat().st_size for file in files if file.is_file()}


def check_exact_bytes(path: Path) -> None:
    with StoreReader(path) as reader:
        assert on_disk(path) == expected_bytes(reader)
    check_exact_layout(path)


def compact_all(path: Path) -> Moved:
    with StoreWriter.open(path) as writer:
        return compact(writer, with_dead_rows(writer.catalogue))


def test_the_use_of_a_shard_counts_the_blocks_of_chunks(base):
    with StoreWriter.open(base) as writer:
        uses = shard_use(writer.catalogue)
        dead = with_dead_rows(writer.catalogue)
        assert all(use.bytes == format.shard_file_bytes(RowLayout(WIDTH), use.blocks, writer.capacity) for use in uses)
        rows = list(writer.catalogue.execute("SELECT shard, n_tokens FROM chunk"))
        for use in uses:
            assert use.live == sum(-(-n // 32) for shard, n in rows if shard == use.shard)
        assert [use.shard for use in dead] == [0] and dead[0].blocks - dead[0].live == 4  # the old version's


def test_compacting_leaves_exactly_the_live_blocks_and_every_byte_that_is_read(base):
    before = sum(on_disk(base).values())
    moved = compact_all(base)
    assert moved.chunks > 0 and moved.freed_bytes > 0
    assert contents(base) == BEFORE
    check_exact_bytes(base)
    with StoreWriter.open(base) as writer:
        assert all(use.live == use.blocks for use in shard_use(writer.catalogue))
        assert writer.index_is_fresh  # the same chunks are live
    assert sum(on_disk(base).values()) == before - moved.freed_bytes
    assert compact_all(base) == Moved(0, 0, 0)


def test_many_sparse_shards_become_few(tmp_path):
    path = tmp_path / "s"
    with open_store(path) as writer:
        for number in range(6):
            put(writer, f"keep{number}", [sample(number, 20)])
            put(writer, f"drop{number}", [sample(100 + number), sample(200 + number)])
            writer.commit()
        writer.remove_documents(row.id for row in writer.documents() if row.name.startswith("drop"))
        writer.drop_unplaced()
        assert len(shard_use(writer.catalogue)) == 6
        moved = compact_sparse(writer)
        assert (moved.chunks, moved.shards) == (6, 6)
        assert len(shard_use(writer.catalogue)) == 1
    assert contents(path) == {("/src", f"keep{n}"): expected([sample(n, 20)]) for n in range(6)}
    check_exact_bytes(path)


def test_a_finished_ingest_compacts_what_is_more_dead_than_alive_and_leaves_the_rest(base):
    with StoreWriter.open(base) as writer:
        assert compact_sparse(writer) == Moved(0, 0, 0)  # a third of shard 0 is dead
    finish_ingest(base)
    assert contents(base) == AFTER
    check_exact_bytes(base)
    with StoreWriter.open(base) as writer:
        assert all(use.live * 2 >= use.blocks for use in shard_use(writer.catalogue))


def test_without_room_nothing_is_moved_and_the_ingest_is_done_all_the_same(base, monkeypatch):
    monkeypatch.setattr(durable, "free_bytes", lambda path: 2**20)
    with StoreWriter.open(base) as writer:
        writer.remove_documents(row.id for row in writer.documents() if row.name == SECRET)
        writer.drop_unplaced()
        assert compact_sparse(writer) == Moved(0, 0, 0)
    assert contents(base) == AFTER


def test_killed_at_any_fault_point_every_chunk_is_where_the_catalogue_says(base, tmp_path):
    shutil.copytree(base, tmp_path / "count")
    counted = passages(tmp_path / "count", finish_ingest)
    assert {name.split(".")[0] for name in counted} >= {"write", "fsync", "rename", "dirsync", "commit", "unlink"}
    for point, times in counted.items():
        for number in {1, times}:
            path = tmp_path / f"{point}-{number}"
            shutil.copytree(base, path)
            assert killed("compact", path, point, number) == 9
            assert contents(path) in (BEFORE, AFTER), (point, number)
            finish_ingest(path)
            assert contents(path) == AFTER
            check_exact_bytes(path)


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC])
def test_when_the_nth_step_fails_every_chunk_stays_readable(base, tmp_path, monkeypatch, code):
    for number in range(1, 60):
        path, seen = tmp_path / str(number), 0
        shutil.copytree(base, path)

        def fail(name: str, number: int = number) -> None:
            nonlocal seen
            seen += name in ("write.before", "fsync.before", "rename.before", "dirsync.before", "unlink.before")
            if seen == number:
                seen += 1000
                raise OSError(code, os.strerror(code))

        with monkeypatch.context() as patch:
            patch.setattr(durable, "fault_point", fail)
            try:
                compact_all(path)
            except Exception as error:
                assert getattr(error, "exit_code", None) == (14 if code == errno.ENOSPC else 1), repr(error)
            else:
                break
        assert contents(path) == BEFORE
        compact_all(path)
        check_exact_bytes(path)
    assert 3 < number < 59


def test_an_open_snapshot_keeps_the_shards_that_it_reads(base):
    with StoreReader(base) as reader:
        order = reader.chunk_ids_in_order()
        compact_all(base)
        out = memoryview(bytearray(64 * WIDTH * 2))
        for chunk in reader.chunks(order):
            reader.fetch([chunk.id], out)
        assert (base / "residuals/c/0").exists()
    StoreWriter.open(base).close()
    assert not (base / "residuals/c/0").exists()
    check_exact_bytes(base)


def test_a_chunk_that_cannot_be_read_is_named_and_nothing_is_lost(base):
    shard = bytearray((base / "residuals/c/0/0").read_bytes())
    shard[4 * (32 * WIDTH * 2 + 4) + 5] ^= 1  # the first block after the old version's two chunks
    (base / "residuals/c/0/0").write_bytes(shard)
    with pytest.raises(CorruptStoreError, match="does not match its checksum"):
        compact_all(base)
    assert (base / "residuals/c/0/0").read_bytes() == shard


def test_a_thousand_short_files_take_at_most_a_quarter_more_than_their_rows(tmp_path):
    width, n_tokens, files = 64, 200, 1000
    with StoreWriter.create_or_open(tmp_path / "s", fingerprint(chunk=512), width, RECORDED) as writer:
        for number in range(files):
            put(writer, f"{number}.txt", [sample(number, n_tokens, width)])
        writer.commit()
        writer.drop_unplaced()
    check_exact_bytes(tmp_path / "s")
    assert files * n_tokens * width * 2 < sum(on_disk(tmp_path / "s").values()) <= 1.25 * files * n_tokens * width * 2
