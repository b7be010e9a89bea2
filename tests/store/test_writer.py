from __future__ import annotations

import os
import stat

import pytest
from samples import CHUNK, RECORDED, WIDTH, contents, expected, fingerprint, ledger, open_store, put, sample

from comem_cli.errors import FingerprintError, NoStoreError, UsageError
from comem_cli.store import format
from comem_cli.store.edits import Placement
from comem_cli.store.reader import StoreReader
from comem_cli.store.writer import StoreWriter


@pytest.fixture
def small_shards(monkeypatch):
    """Shards of two full chunks."""
    monkeypatch.setattr(format, "SHARD_BYTES", 2 * CHUNK * WIDTH * 2)


def test_what_was_put_is_what_is_read_after_a_commit(tmp_path, small_shards):
    chunks = [sample(seed, n) for seed, n in enumerate([64, 1, 31, 32, 33, 64, 64])]
    with open_store(tmp_path / "s") as writer:
        put(writer, "a.txt", chunks)
        writer.commit(ledger())
        assert [row.name for row in writer.documents()] == ["a.txt"]
    assert contents(tmp_path / "s") == {("/src", "a.txt"): expected(chunks)}
    with StoreReader(tmp_path / "s") as reader:
        (row,) = reader.ledger()
        assert row.kind == "chunk-write" and row.io_ms > 0
        assert reader.recorded == RECORDED and reader.width == WIDTH and reader.fingerprint == fingerprint()


def test_nothing_is_visible_before_the_commit_and_what_was_not_committed_is_dropped(tmp_path):
    with open_store(tmp_path / "s") as writer:
        put(writer, "a", [sample(1)])
        assert contents(tmp_path / "s") == {}
    assert contents(tmp_path / "s") == {}
    with open_store(tmp_path / "s") as writer:
        assert writer.generation == 0 and writer.commit() == 0
        assert writer.stored([sample(1).key]) == set()


def test_a_full_shard_is_committed_by_itself_and_its_chunks_need_no_second_write(tmp_path, small_shards):
    chunks = [sample(seed) for seed in range(5)]
    with open_store(tmp_path / "s") as writer:
        put(writer, "a", chunks)
        assert writer.generation == 2  # chunks 0 to 3; the document still waits for chunk 4
        assert not list(writer.documents())
        assert writer.stored(c.key for c in chunks) == {c.key for c in chunks}
    with open_store(tmp_path / "s") as writer:
        assert writer.stored(c.key for c in chunks) == {c.key for c in chunks[:4]}
        put(writer, "a", chunks)
        writer.commit()
    assert contents(tmp_path / "s") == {("/src", "a"): expected(chunks)}


def test_a_document_waits_over_commits_until_its_last_chunk_is_durable(tmp_path):
    first, second = sample(1), sample(2)
    with open_store(tmp_path / "s") as writer:
        root = writer.add_root(tmp_path)
        places = [Placement(chunk.key, 0, 1, 1, 1) for chunk in (first, second)]
        writer.put_document(root, "a", 1, 1, "", "utf-8", "text", places)
        writer.add(first.key, first.ids, first.residual)
        writer.commit()
        assert contents(tmp_path / "s") == {}
        with pytest.raises(ValueError, match="never added"):
            writer.drop_unplaced()
        writer.add(second.key, second.ids, second.residual)
        writer.commit()
    assert contents(tmp_path / "s") == {(str(tmp_path), "a"): expected([first, second])}


def test_a_new_version_replaces_the_old_document_in_one_commit(tmp_path):
    old, new, shared = [sample(1), sample(2)], [sample(3)], sample(4)
    with open_store(tmp_path / "s") as writer:
        put(writer, "a", [*old, shared])
        put(writer, "b", [shared])
        writer.commit()
        put(writer, "a", [shared, *new])
        assert contents(tmp_path / "s")["/src", "a"] == expected([*old, shared])
        writer.commit()
        assert contents(tmp_path / "s") == {("/src", "a"): expected([shared, *new]), ("/src", "b"): expected([shared])}
        assert writer.drop_unplaced() == 2
    with StoreReader(tmp_path / "s") as reader:
        assert reader.counts().unplaced_chunks == 0 and reader.counts().chunks == 2


def test_equal_chunks_are_stored_once_and_keep_every_place(tmp_path):
    twin = sample(1)
    with open_store(tmp_path / "s") as writer:
        put(writer, "b", [twin, sample(2), twin])
        put(writer, "a", [sample(3), twin])
        put(writer, "a", [twin], root="/elsewhere")
        writer.commit()
    with StoreReader(tmp_path / "s") as reader:
        counts = reader.counts()
        assert (counts.documents, counts.chunks, counts.placements, counts.tokens) == (3, 3, 6, 3 * CHUNK)
        ids = {chunk.key: chunk.id for chunk in reader.iter_chunks()}
        places = reader.places([ids[twin.key]])[ids[twin.key]]
        assert [(p.root, p.path, p.number) for p in places] == [
            ("/elsewhere", "a", 0),
            ("/src", "a", 1),
            ("/src", "b", 0),
            ("/src", "b", 2),
        ]
        order = [ids[sample(seed).key] for seed in (1, 3, 2)]
        assert reader.chunk_ids_in_order() == order
        assert list(reader.places(reversed(order))) == order


def test_dropping_the_last_chunk_of_a_shard_unlinks_it_and_its_number_is_not_used_again(tmp_path):
    path = tmp_path / "s"
    with open_store(path) as writer:
        for name, seed in (("a", 1), ("b", 2)):
            put(writer, name, [sample(seed)])
            writer.commit()
        (doomed,) = [row.id for row in writer.documents() if row.name == "b"]
        writer.remove_documents([doomed])
        assert writer.drop_unplaced() == 1 and writer.drop_unplaced() == 0
        assert sorted(p.name for p in (path / "residuals/c").iterdir()) == ["0"]
        put(writer, "c", [sample(3)])
        writer.commit()
    assert sorted(p.name for p in (path / "residuals/c").iterdir()) == ["0", "2"]
    assert set(contents(path)) == {("/src", "a"), ("/src", "c")}


def test_deleted_token_ids_are_gone_from_every_file(tmp_path):
    path = tmp_path / "s"
    with open_store(path) as writer:
        put(writer, "keep", [sample(1)])
        writer.commit()
        put(writer, "secret", [sample(2)])
        writer.commit()
        writer.remove_documents(row.id for row in writer.documents() if row.name == "secret")
        writer.drop_unplaced()
        everything = b"".join(file.read_bytes() for file in path.rglob("*") if file.is_file())
    for trace in (sample(2).ids[:32], sample(2).residual[:32], b"secret"):
        assert trace not in everything
    assert sample(1).ids in everything


def test_the_index_is_stale_as_soon_as_other_chunks_are_live(tmp_path):
    path = tmp_path / "s"

    def state():
        with StoreReader(path) as reader:
            return reader.index()

    with open_store(path) as writer:
        put(writer, "a", [sample(1)])
        writer.commit()
        assert state() == (None, False)
        writer.set_index("i1", writer.content)
        assert state() == ("i1", True)
        put(writer, "twin", [sample(1)])
        writer.commit(ledger())
        assert state() == ("i1", True)  # the same chunk once more
        put(writer, "b", [sample(2)])
        writer.commit()
        assert state() == ("i1", False)
        writer.remove_documents(row.id for row in writer.documents() if row.name == "b")
        writer.drop_unplaced()
        assert state() == ("i1", True)
        put(writer, "b", [sample(2)])
        writer.commit()
        live = writer.content
        writer.remove_documents(row.id for row in writer.documents() if row.name == "b")
        writer.drop_unplaced()
        put(writer, "b", [sample(2)])
        writer.commit()
        assert writer.content != live  # the same key under another chunk id


@pytest.mark.parametrize("field", ["weights", "tokenizer", "split", "chunk", "mode"])
def test_another_fingerprint_is_refused_and_changes_nothing(tmp_path, field):
    path = tmp_path / "s"
    with open_store(path) as writer:
        put(writer, "a", [sample(1)])
        writer.commit()
    before = {file: file.read_bytes() for file in path.rglob("*") if file.is_file() and file.name != "writer.lock"}
    value = getattr(fingerprint(), field)
    with pytest.raises(FingerprintError, match=field):
        open_store(path, **{field: value + 1 if isinstance(value, int) else "other"})
    with pytest.raises(FingerprintError, match="width 8, not 9"):
        StoreWriter.create_or_open(path, fingerprint(), 9, RECORDED)
    with pytest.raises(FingerprintError, match="compute_dtype float32, not bfloat16"):
        StoreWriter.create_or_open(path, fingerprint(), WIDTH, {"compute_dtype": "bfloat16"})
    assert before == {f: f.read_bytes() for f in path.rglob("*") if f.is_file() and f.name != "writer.lock"}
    open_store(path).close()  # the refusals freed the lock


def test_a_store_of_split_0_keeps_token_ids_alone(tmp_path):
    path = tmp_path / "s"
    chunks = [sample(1), sample(2, 7)]
    with open_store(path, split=0) as writer:
        put(writer, "a", chunks)
        writer.commit()
        with pytest.raises(ValueError, match="split"):
            writer.add(sample(3).key, sample(3).ids, sample(3).residual)
    assert not (path / "residuals").exists()
    with StoreReader(path) as reader:
        assert [reader.token_ids(i) for i in reader.chunk_ids_in_order()] == [chunk.ids for chunk in chunks]
        assert reader.counts().residual_bytes == 0 and reader.counts().tokens == 71
        with pytest.raises(ValueError, match="no residuals"):
            reader.fetch(reader.chunk_ids_in_order(), memoryview(bytearray(4096)))
    StoreWriter.create_or_open(path, fingerprint(split=0), WIDTH, {"compute_dtype": "bfloat16"}).close()


def test_directories_are_0700_and_files_0600_whatever_the_umask(tmp_path):
    path = tmp_path / "deep" / "s"
    old = os.umask(0)
    try:
        with open_store(path) as writer:
            put(writer, "a", [sample(1)])
            writer.commit()
            inside = [path, *path.rglob("*")]
            modes = {(p.is_dir(), stat.S_IMODE(p.stat().st_mode)) for p in inside}
            assert any(p.name.endswith("-wal") for p in inside)
    finally:
        os.umask(old)
    assert modes == {(True, 0o700), (False, 0o600)}


def test_paths_that_are_not_utf_8_survive(tmp_path):
    with open_store(tmp_path / "s") as writer:
        put(writer, b"caf\xe9.txt", [sample(1)], root=os.fsdecode(b"/r\xff"))
        put(writer, "naïve.txt", [sample(1)])
        writer.commit()
        assert {row.path for row in writer.documents()} == {b"caf\xe9.txt", "naïve.txt".encode()}
    with StoreReader(tmp_path / "s") as reader:
        (places,) = reader.places(reader.chunk_ids_in_order()).values()
        assert [(os.fsencode(p.root), os.fsencode(p.path)) for p in places] == [
            (b"/r\xff", b"caf\xe9.txt"),
            (b"/src", "naïve.txt".encode()),
        ]


def test_a_directory_that_holds_something_else_is_refused(tmp_path):
    (tmp_path / "letter.txt").write_text("dear")
    with pytest.raises(UsageError, match="not empty"):
        open_store(tmp_path)
    with pytest.raises(UsageError, match="is a file"):
        open_store(tmp_path / "letter.txt")
    assert [p.name for p in tmp_path.iterdir()] == ["letter.txt"]
    with pytest.raises(NoStoreError):
        StoreWriter.open(tmp_path / "none")
    assert not (tmp_path / "none").exists()


def test_wrong_sizes_are_refused(tmp_path):
    with open_store(tmp_path / "s") as writer:
        one = sample(1, 3)
        for ids, residual in ((b"", b""), (b"123", b""), (b"1234" * 65, b""), (one.ids, one.residual[:-2])):
            with pytest.raises(ValueError):
                writer.add(one.key, ids, residual)
        assert writer.commit() == 0
