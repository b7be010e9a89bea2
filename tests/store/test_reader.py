from __future__ import annotations

import ctypes
import os
import subprocess
import sys

import pytest
from samples import contents, expected, ledger, open_store, put, sample

from comem_cli.errors import ComemError, CorruptStoreError, FingerprintError, NoStoreError
from comem_cli.store import catalogue as catalogues
from comem_cli.store import fetch
from comem_cli.store.format import FORMAT_VERSION
from comem_cli.store.reader import StoreReader
from comem_cli.store.rows import MetaRow


@pytest.fixture
def store(tmp_path):
    path = tmp_path / "s"
    with open_store(path) as writer:
        for name, seed in (("a", 1), ("b", 2)):
            put(writer, name, [sample(seed), sample(seed + 10, 40)])
            writer.commit(ledger())
    return path


def test_fetch_fills_one_buffer_in_the_order_asked(store):
    with StoreReader(store) as reader:
        ids = {chunk.key: chunk.id for chunk in reader.iter_chunks()}
        wanted = [sample(2), sample(11, 40), sample(1)]
        out = bytearray(b"\xff" * 10_000)
        lengths = reader.fetch([ids[chunk.key] for chunk in wanted], memoryview(out))
        assert lengths == [64, 40, 64]
        rows = b"".join(chunk.residual for chunk in wanted)
        assert out[: len(rows)] == rows and set(out[len(rows) :]) == {255}
        with pytest.raises(ValueError, match="holds"):
            reader.fetch([ids[wanted[0].key]], memoryview(bytearray(10)))
        with pytest.raises(CorruptStoreError, match="no chunk 99"):
            reader.fetch([99], memoryview(out))
        assert reader.fetch([], memoryview(out)) == []


def test_the_chunk_before_is_that_of_the_document_at_the_smallest_place(store):
    with StoreReader(store) as reader:
        (first, second), (third, fourth) = (reader.document_chunks(row.id) for row in reader.documents())
        assert [reader.ids_before(row.id) for row in (first, second, third, fourth)] == [b"", first.ids, b"", third.ids]


def test_short_reads_and_many_buffers_are_completed(store, monkeypatch):
    real = os.preadv
    monkeypatch.setattr(fetch, "_MAX_BLOCKS", 1)
    monkeypatch.setattr(fetch, "MAX_OPEN_SHARDS", 1)
    monkeypatch.setattr(os, "preadv", lambda fd, views, offset, flags=0: real(fd, [views[0][:7]], offset))
    assert contents(store)["/src", "b"] == expected([sample(2), sample(12, 40)])


def test_a_reader_keeps_its_snapshot_while_the_store_changes(store):
    with StoreReader(store) as old:
        out = memoryview(bytearray(64 * 16))
        ids = {chunk.key: chunk.id for chunk in old.iter_chunks()}
        with open_store(store) as writer:
            writer.remove_documents(row.id for row in writer.documents() if row.name == "a")
            writer.drop_unplaced()
            put(writer, "c", [sample(3)])
            writer.commit()
        assert {row.name for row in old.documents()} == {"a", "b"}
        old.fetch([ids[sample(1).key]], out)  # its shard was dropped, but waits for this reader
        assert bytes(out) == sample(1).residual
        with StoreReader(store) as new:
            assert {row.name for row in new.documents()} == {"b", "c"} and new.generation > old.generation
    assert (store / "residuals/c/0").exists()
    open_store(store).close()
    assert not (store / "residuals/c/0").exists()
    assert set(contents(store)) == {("/src", "b"), ("/src", "c")}


def test_reading_changes_no_byte_of_the_store(store):
    def state():
        files = [p for p in store.rglob("*") if p.is_file() and not p.name.endswith(("-wal", "-shm"))]
        return {p: (p.read_bytes(), p.stat().st_mtime_ns) for p in files}

    before = state()
    contents(store)
    with StoreReader(store) as reader:
        reader.counts()
    assert state() == before


def test_no_store_says_so(tmp_path, store):
    for path in (tmp_path / "none", tmp_path):
        with pytest.raises(NoStoreError, match="no store") as caught:
            StoreReader(path)
        assert "comem ingest" in caught.value.hint
    (tmp_path / "e").mkdir()
    (tmp_path / "e" / "catalog.sqlite").touch()
    with pytest.raises(NoStoreError):
        StoreReader(tmp_path / "e")
    (store / "catalog.sqlite").unlink()
    with pytest.raises(CorruptStoreError, match="missing"):
        StoreReader(store)
    with pytest.raises(CorruptStoreError, match="missing"):
        open_store(store)
    assert (store / "residuals/c/0/0").exists()


def test_a_newer_format_is_refused_with_both_versions(store):
    catalogue = catalogues.open_writable(store)
    with catalogue.transaction():
        catalogue.insert(MetaRow("format_version", str(FORMAT_VERSION + 1)))
    catalogue.close()
    for act in (StoreReader, open_store):
        with pytest.raises(FingerprintError, match=rf"format {FORMAT_VERSION + 1}.*format {FORMAT_VERSION}"):
            act(store)


def _unshared(script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["unshare", "-m", "sh", "-ec", script, "sh", *arguments], capture_output=True, text=True)


def _can_mount() -> bool:
    try:
        return _unshared("mount -t tmpfs none /mnt").returncode == 0
    except FileNotFoundError:
        return False


needs_mount = pytest.mark.skipif(not _can_mount(), reason="needs `unshare -m` and mount (root)")
READ = "from samples import contents; import sys, pathlib; print(len(contents(pathlib.Path(sys.argv[1]))))"


@needs_mount
def test_a_read_only_mount_is_read_and_a_pending_wal_there_is_refused(store, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))
    script = 'mount --bind "$1" "$1"; mount -o remount,ro,bind "$1"; "$2" -c "$3" "$1"'
    done = _unshared(script, str(store), sys.executable, READ)
    assert done.returncode == 0 and done.stdout == "2\n", done.stderr
    (store / "catalog.sqlite-wal").write_bytes(b"frames" * 100)
    done = _unshared(script, str(store), sys.executable, READ)
    assert done.returncode != 0 and "folded in" in done.stderr
    assert not list(store.glob("*-shm"))


@needs_mount
def test_a_full_disk_is_read(store, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))
    script = """mount -t tmpfs -o size=1m none /mnt; cp -a "$1" /mnt/s
    dd if=/dev/zero of=/mnt/fill bs=4k 2>/dev/null || true; "$2" -c "$3" /mnt/s"""
    done = _unshared(script, str(store), sys.executable, READ)
    assert done.returncode == 0 and done.stdout == "2\n", done.stderr


def test_an_unwritable_catalogue_falls_back_to_immutable(store, monkeypatch):
    real = catalogues._connect_readable

    def refuse(path, options):
        if options == "mode=ro":
            error = catalogues.sqlite3.OperationalError("unable to open database file")
            error.sqlite_errorcode = catalogues.sqlite3.SQLITE_CANTOPEN
            raise error
        return real(path, options)

    monkeypatch.setattr(catalogues, "_connect_readable", refuse)
    assert len(contents(store)) == 2
    (store / "catalog.sqlite-wal").write_bytes(b"x")
    with pytest.raises(ComemError, match="not folded in"):
        StoreReader(store)


def test_what_stats_needs_imports_neither_numpy_nor_zarr(store):
    script = """import sys, pathlib
from comem_cli.store.format import FORMAT_VERSION
from comem_cli.store.reader import StoreReader
with StoreReader(pathlib.Path(sys.argv[1])) as reader:
    reader.counts(), reader.ledger(), reader.index()
print(sorted({"numpy", "zarr", "torch", "ml_dtypes"} & set(sys.modules)))"""
    done = subprocess.run([sys.executable, "-c", script, str(store)], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_fetch_writes_into_memory_that_another_library_owns(store):
    raw = (ctypes.c_char * 1024)()
    with StoreReader(store) as reader:
        (first, *_) = reader.chunk_ids_in_order()
        reader.fetch([first], memoryview(raw))
    assert bytes(raw) == sample(1).residual
