"""After a `forget` no byte of the documents is left; killed anywhere, the next one finishes; readers are not hurt."""

from __future__ import annotations

import errno
import os
import random
import shutil
import sqlite3
import sys
import time
from pathlib import Path

import pytest
from killed_forget import GONE, KEPT, ROOT, SECRET, SECRETS, SHARED, forget, killed, traces, write_store
from samples import CHUNK, contents, expected, open_store, put, sample
from test_faults import passages
from test_reader import _unshared, needs_mount
from test_reclaim import check_exact_bytes

from comem_cli.errors import ComemError, CorruptStoreError, NoSpaceError, UsageError
from comem_cli.store import durable, pending
from comem_cli.store import forget as forget_module
from comem_cli.store.doomed import find_doomed
from comem_cli.store.reader import StoreReader
from comem_cli.store.rows import RootRow
from comem_cli.store.writer import StoreWriter

AFTER = {(ROOT, name): expected(chunks) for name, chunks in KEPT.items()}
BEFORE = {**AFTER, (ROOT, SECRET): expected(SECRETS)}


@pytest.fixture
def base(tmp_path):
    write_store(tmp_path / "base")
    return tmp_path / "base"


def check_forgotten(path: Path) -> None:
    """Nothing is left, and everything else is: contents, the shared chunk, a fresh index, exact bytes."""
    assert traces(path) == []
    assert contents(path) == AFTER
    check_exact_bytes(path)
    assert not (path / pending.PENDING_NAME).exists()
    with StoreReader(path) as reader:
        assert reader.index()[1]
        assert reader.counts().unplaced_chunks == 0
        name = reader.index()[0]
    assert [folder.name for folder in (path / "index").iterdir()] == [name]


def test_the_traces_are_there_before_and_gone_after(base):
    found = traces(base)
    assert {what.partition(" ")[2].partition(" at")[0] for _, what in found} >= {"key", "first", "last", "32 bit"}
    assert any(what == "path" for _, what in found)
    report = forget(base, SECRET)
    assert report.done and report.documents == (SECRET,)
    assert report.chunks == 3 and report.indexed and report.moved.freed_bytes > 0
    assert report.scanned.files == sum(file.is_file() for file in base.rglob("*")) + 2  # -wal and -shm
    assert report.needles > 50
    check_forgotten(base)


def test_a_chunk_that_others_have_stays_and_loses_only_this_citation(base):
    forget(base, SECRET)
    with StoreReader(base) as reader:
        ids = {chunk.key: chunk.id for chunk in reader.iter_chunks()}
        places = reader.places([ids[SHARED.key]])[ids[SHARED.key]]
        assert [place.path for place in places] == ["public/beta.txt"]
        out = bytearray(len(SHARED.residual))
        reader.fetch([ids[SHARED.key]], memoryview(out))
        assert out == SHARED.residual


@pytest.mark.parametrize("path", [f"{ROOT}/{SECRET}", "private", f"{ROOT}/private/", "./private//secret-plans.txt"])
def test_a_document_is_named_by_its_path_or_by_a_folder_above_it(base, path):
    assert forget(base, path).documents == (SECRET,)
    check_forgotten(base)


def test_paths_relative_to_the_working_folder_are_understood(tmp_path, monkeypatch):
    sources = tmp_path / "docs"
    (sources / "deep").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    with open_store(tmp_path / "s") as writer:
        for number, name in enumerate(("a.txt", "deep/b.txt", "deep/c.txt", "d.txt", "e.txt", "f.txt")):
            put(writer, name, [sample(number)], root=str(sources))
        writer.commit()
        assert len(find_doomed(writer.catalogue, ["docs/deep"]).documents) == 2
        assert len(find_doomed(writer.catalogue, ["docs"]).documents) == 6
    assert sorted(forget(tmp_path / "s", "docs/deep", "docs/a.txt").documents) == ["a.txt", "deep/b.txt", "deep/c.txt"]


def test_what_is_not_there_is_refused_before_anything_changes(base):
    before = contents(base)
    for paths in (["nowhere.txt"], [SECRET, "nowhere.txt"], ["public/alpha.tx"], []):
        with pytest.raises(UsageError):
            forget(base, *paths)
    assert contents(base) == before and not (base / pending.PENDING_NAME).exists()


def test_a_relative_path_of_two_roots_is_refused_and_a_folder_of_both_is_not(tmp_path):
    with open_store(tmp_path / "s") as writer:
        for number, root in enumerate(("/one", "/two", "/three", "/four", "/five")):
            put(writer, "x/same.txt", [sample(number)], root=root)
            put(writer, f"{number}.txt", [sample(10 + number)], root=root)
        writer.commit()
    with pytest.raises(UsageError, match=r"several documents: /five/x/same\.txt, /four/x/same\.txt"):
        forget(tmp_path / "s", "x/same.txt")
    assert len(forget(tmp_path / "s", "/one/x/same.txt", "/two").documents) == 3
    assert len(forget(tmp_path / "s", "x", yes=True).documents) == 3
    assert len(contents(tmp_path / "s")) == 4


def test_more_than_half_of_a_store_needs_consent(base):
    with pytest.raises(UsageError, match="3 of the store's 4 documents"):
        forget(base, "public")
    assert contents(base) == BEFORE
    assert len(forget(base, "public", yes=True).documents) == 3
    assert set(contents(base)) == {(ROOT, SECRET)}


def test_everything_can_be_forgotten_and_the_store_filled_again(base):
    report = forget(base, ROOT, yes=True)
    assert report.done and not report.indexed
    everything = [*GONE, SHARED, *(chunk for chunks in KEPT.values() for chunk in chunks)]
    assert traces(base, everything) == []
    assert not list((base / "residuals/c").iterdir()) and not list((base / "index").iterdir())
    assert b"/sources" not in (base / "catalog.sqlite").read_bytes()  # the root went with its last document
    with StoreReader(base) as reader:
        assert reader.index() == (None, False)
    with open_store(base) as writer:
        put(writer, SECRET, SECRETS, root=ROOT)
        writer.commit()
    assert contents(base) == {(ROOT, SECRET): expected(SECRETS)}


def test_other_roots_stay(tmp_path):
    with open_store(tmp_path / "s") as writer:
        put(writer, "a.txt", [sample(1)], root="/hidden/place")
        put(writer, "b.txt", [sample(2)], root="/open/place")
        writer.commit()
        forgotten = writer.add_root(Path("/hidden/place"))
    forget(tmp_path / "s", "/hidden")
    with StoreWriter.open(tmp_path / "s") as writer:
        assert [row.path for row in writer.catalogue.rows(RootRow)] == [b"/open/place"]
        assert writer.add_root(Path("/third")) not in (forgotten + 1,)
        put(writer, "c.txt", [sample(3)], root="/third")
        writer.commit()
    assert set(contents(tmp_path / "s")) == {("/open/place", "b.txt"), ("/third", "c.txt")}


def test_a_short_path_and_a_path_within_another_are_no_false_alarm(tmp_path):
    with open_store(tmp_path / "s") as writer:
        for number, name in enumerate(("a", "notes.txt", "notes.txt.old", "my/notes.txt", "z", "y", "x")):
            put(writer, name, [sample(number)])
        writer.commit()
    report = forget(tmp_path / "s", "a", "/src/notes.txt")
    assert report.done and len(report.documents) == 2
    assert set(contents(tmp_path / "s")) == {("/src", n) for n in ("notes.txt.old", "my/notes.txt", "z", "y", "x")}


def test_rows_that_a_live_chunk_shares_are_no_trace(tmp_path):
    """In mode chunk the first row is the same for all chunks that begin with the same token."""
    one, other = sample(1), sample(2)
    twin = type(one)(other.key, one.ids[:160] + other.ids[160:], one.residual[:640] + other.residual[640:])
    with open_store(tmp_path / "s") as writer:
        put(writer, "one.txt", [one])
        put(writer, "twin.txt", [twin])
        put(writer, "more.txt", [sample(3)])
        writer.commit()
    report = forget(tmp_path / "s", "one.txt")
    assert report.done
    raw = b"".join(file.read_bytes() for file in (tmp_path / "s").rglob("*") if file.is_file())
    assert one.residual[:64] in raw and one.residual[640:] not in raw and one.ids[160:192] not in raw


def test_the_lock_file_does_not_keep_the_command_line(base, monkeypatch):
    monkeypatch.setattr("sys.argv", ["comem", "ingest", f"{ROOT}/{SECRET}"])
    with StoreWriter.open(base):
        assert SECRET in (base / "writer.lock").read_text()
    (base / "writer.lock").write_text(f"1 comem ingest {SECRET}")  # what a killed writer leaves
    assert forget(base, SECRET).done
    assert SECRET not in (base / "writer.lock").read_text()
    with StoreWriter.open(base, "comem forget"):
        assert (base / "writer.lock").read_text() == f"{os.getpid()} comem forget"


def test_text_of_the_source_is_looked_for_where_the_source_still_is(tmp_path):
    source = tmp_path / "docs" / "secret.txt"
    source.parent.mkdir()
    source.write_text("The vault opens with the third bell of the evening and closes with the first of the day.\n" * 3)
    with open_store(tmp_path / "s") as writer:
        put(writer, "secret.txt", [sample(1)], root=str(source.parent))
        put(writer, "other.txt", [sample(2)], root=str(source.parent))
        put(writer, "third.txt", [sample(3)], root=str(source.parent))
        writer.commit()
    (tmp_path / "s" / "stray.log").write_text("... the third bell of the evening and closes with the first of ...")
    report = forget(tmp_path / "s", "secret.txt")
    assert not report.done and not report.readers
    assert {(trace.file, trace.what, trace.document) for trace in report.traces} == {
        ("stray.log", "text", "secret.txt")
    }
    (tmp_path / "s" / "stray.log").unlink()
    assert forget(tmp_path / "s").done
    assert not (tmp_path / "s" / pending.PENDING_NAME).exists()


@pytest.mark.parametrize(
    "kind", ["path", "token ids, 32 bit", "token ids, 16 bit", "residual rows", "chunk key", "text"]
)
def test_each_kind_of_trace_is_found_wherever_it_lies(base, kind):
    chunk, planted = SECRETS[2], base / "index" / "elsewhere"
    narrow = b"".join(chunk.ids[at : at + 2] for at in range(0, len(chunk.ids), 4))
    raw = {
        "path": SECRET.encode(),
        "token ids, 32 bit": chunk.ids[20 : 20 + 15 * 4],
        "token ids, 16 bit": narrow[6 : 6 + 30],
        "residual rows": chunk.residual[-64:],
        "chunk key": chunk.key.encode(),
        "text": None,
    }[kind]
    if raw is None:
        from killed_forget import decode

        raw = decode(b"".join(c.ids for c in SECRETS if c is not SHARED)).encode()[:4000]
    planted.write_bytes(b"\0" * 5 + raw + b"\0")
    report = forget(base, SECRET)
    assert {(trace.file, trace.what) for trace in report.traces} == {("index/elsewhere", kind)}
    planted.unlink()
    assert forget(base).done
    check_forgotten(base)


def test_the_catalogue_is_rewritten_where_sqlite_left_a_copy_in_a_page(base):
    """A stale copy in the gap of a page, as SQLite leaves it when it moves cells to a neighbour."""
    with sqlite3.connect(base / "catalog.sqlite") as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        connection.execute("CREATE TABLE gap (x BLOB)")
        connection.execute("INSERT INTO gap VALUES (?)", (SECRETS[0].ids,))
        connection.execute("PRAGMA secure_delete = OFF")
        connection.execute("DELETE FROM gap")
        connection.commit()
        connection.execute("DROP TABLE gap")
    connection.close()
    assert (base / "catalog.sqlite").read_bytes().count(SECRETS[0].ids) == 2
    assert forget(base, SECRET).done
    check_forgotten(base)


def test_more_needles_than_fit_at_once_take_more_passes(base, monkeypatch):
    monkeypatch.setattr(forget_module, "NEEDLES", 7)
    (base / "stray").write_bytes(SECRETS[3].residual)
    report = forget(base, SECRET)
    assert {trace.what for trace in report.traces} == {"residual rows"} and len(report.traces) == 2
    (base / "stray").unlink()
    assert forget(base).done


def test_killed_at_any_fault_point_the_next_forget_finishes(base, tmp_path):
    shutil.copytree(base, tmp_path / "count")
    counted = passages(tmp_path / "count", lambda path: forget(path, SECRET))
    assert {name.split(".")[0] for name in counted} >= {"write", "fsync", "rename", "dirsync", "commit", "unlink"}
    unfinished = 0
    for point, times in counted.items():
        for number in {1, times}:
            path = tmp_path / f"{point}-{number}"
            shutil.copytree(base, path)
            assert killed("forget", path, point, number) == 9
            assert contents(path) in (BEFORE, AFTER), (point, number)
            finish(path, named=unfinished % 2 == 0)
            unfinished += 1
    assert unfinished > 20


def finish(path: Path, *, named: bool) -> None:
    """Forget again, by name or without, whatever the killed run left to do."""
    gone = contents(path) == AFTER
    if gone and not (path / pending.PENDING_NAME).exists():  # killed after the last step
        with pytest.raises(UsageError):
            forget(path, SECRET)
    else:
        assert forget(path, *([SECRET] if named or not gone else [])).done
    check_forgotten(path)


def test_killed_at_random_times_the_next_forget_finishes(base, tmp_path):
    shutil.copytree(base, tmp_path / "timed")
    start = time.monotonic()
    assert killed("forget", tmp_path / "timed", "-", 1) == 0
    whole = time.monotonic() - start
    draw = random.Random(0)
    for number in range(8):
        path = tmp_path / str(number)
        shutil.copytree(base, path)
        killed("forget", path, "-", 1, after=draw.uniform(0, 1.0) * whole)
        assert contents(path) in (BEFORE, AFTER)
        finish(path, named=bool(number % 2))


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC])
def test_when_the_nth_step_fails_the_next_forget_finishes(base, tmp_path, monkeypatch, code):
    steps = ("write.before", "fsync.before", "rename.before", "dirsync.before", "unlink.before")
    for number in range(1, 80, 1 if code == errno.EIO else 3):
        path, seen = tmp_path / str(number), 0
        shutil.copytree(base, path)

        def fail(name: str, number: int = number) -> None:
            nonlocal seen
            seen += name in steps
            if seen == number:
                seen += 1000
                raise OSError(code, os.strerror(code))

        with monkeypatch.context() as patch:
            patch.setattr(durable, "fault_point", fail)
            try:
                forget(path, SECRET)
            except (ComemError, OSError) as error:
                assert isinstance(error, OSError) or error.exit_code == (14 if code == errno.ENOSPC else 1)
            else:
                break
        assert contents(path) in (BEFORE, AFTER)
        finish(path, named=True)
    assert 10 < number < 79


def test_an_open_reader_keeps_its_snapshot_and_the_report_says_that_bytes_are_left(base):
    with StoreReader(base) as reader:
        order = reader.chunk_ids_in_order()
        report = forget(base, SECRET)
        assert report.readers and not report.done and report.traces
        assert (base / pending.PENDING_NAME).exists()
        assert {row.name for row in reader.documents()} == {*KEPT, SECRET}
        out = memoryview(bytearray(CHUNK * 16))
        for chunk in reader.chunks(order):
            reader.fetch([chunk.id], out)
        assert contents(base) == AFTER
    assert traces(base)
    assert forget(base, SECRET).done
    check_forgotten(base)


def test_a_reader_that_came_after_the_commit_delays_nothing_but_the_certainty(tmp_path):
    with open_store(tmp_path / "s", split=0) as writer:  # no shard waits for the reader: token ids and index alone
        for number in range(3):
            put(writer, f"{number}.txt", [sample(number)])
        writer.commit()
    with StoreReader(tmp_path / "s"):
        report = forget(tmp_path / "s", "0.txt")
        assert report.readers and not report.done
    report = forget(tmp_path / "s")
    assert report.done and report.documents == ("0.txt",)


def test_documents_that_are_stored_again_before_it_is_finished_are_no_trace(base):
    with StoreReader(base):
        assert forget(base, SECRET).readers
    with open_store(base) as writer:
        put(writer, SECRET, SECRETS, root=ROOT)
        writer.commit()
    report = forget(base)
    assert report.done and (report.documents, report.again) == ((), (SECRET,))
    assert contents(base) == BEFORE
    assert forget(base, SECRET).documents == (SECRET,)
    check_forgotten(base)


def test_without_room_for_what_must_move_nothing_is_changed_and_the_numbers_are_said(base, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(durable, "free_bytes", lambda path: 2**20 + 14_000)
        with pytest.raises(NoSpaceError, match=r"[\d,]+ bytes needed, 1,062,576 free"):
            forget(base, SECRET)
        patch.setattr(durable, "free_bytes", lambda path: 100)
        with pytest.raises(NoSpaceError, match="bytes needed, 100 free"):
            forget(base, SECRET)
    assert contents(base) == BEFORE and not (base / pending.PENDING_NAME).exists()
    assert forget(base, SECRET).done


def test_shards_that_are_wholly_dead_make_room_for_themselves(tmp_path, monkeypatch):
    with open_store(tmp_path / "s") as writer:
        put(writer, "big.txt", [sample(number) for number in range(60)])
        writer.commit()
        for number in range(2):
            put(writer, f"{number}.txt", [sample(100 + number)])
        writer.commit()
    monkeypatch.setattr(durable, "free_bytes", lambda path: 2**20 + 80_000)
    assert forget(tmp_path / "s", "big.txt").done
    assert len(contents(tmp_path / "s")) == 2


def test_a_damaged_live_chunk_stops_it_with_its_name_and_it_goes_on_after_the_repair(base):
    path = base / "residuals/c/0/0"
    whole = path.read_bytes()
    path.write_bytes(whole[: 2066 + 5] + bytes([whole[2066 + 5] ^ 1]) + whole[2066 + 6 :])
    with pytest.raises(CorruptStoreError, match="does not match its checksum") as caught:
        forget(base, SECRET)
    assert "check" in caught.value.hint
    path.write_bytes(whole)
    assert forget(base, SECRET).done
    check_forgotten(base)


@pytest.mark.parametrize("raw", [b'{"root": 1}\n', b"", b"\n", b"[]\n", b"null\n", b"[" * 100_000 + b"\n"])
def test_an_intent_that_cannot_be_read_is_named(base, raw):
    (base / pending.PENDING_NAME).write_bytes(raw)
    for paths in ([], [SECRET]):
        with pytest.raises(CorruptStoreError, match="cannot be read"):
            forget(base, *paths)


def test_an_empty_path_is_not_the_working_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with open_store(tmp_path / "s") as writer:
        put(writer, "below.txt", [sample(0)], root=str(tmp_path))
        for number in range(1, 4):
            put(writer, f"{number}.txt", [sample(number)])
        writer.commit()
        assert len(find_doomed(writer.catalogue, ["."]).documents) == 1
        for paths in ([""], ["1.txt", ""]):
            with pytest.raises(UsageError, match="empty PATH"):
                find_doomed(writer.catalogue, paths)


FULL = """import errno, os, pathlib, shutil, sys
from killed_forget import KEPT, ROOT, SECRET, forget, traces, write_store
from samples import contents, expected
from comem_cli.errors import NoSpaceError
after = {(ROOT, name): expected(chunks) for name, chunks in KEPT.items()}
write_store(pathlib.Path(sys.argv[1]))
refused = done = 0
for kib in range(0, 1400, 100):
    path = pathlib.Path("/mnt/s")
    shutil.copytree(sys.argv[1], path)
    free = os.statvfs("/mnt").f_bavail * os.statvfs("/mnt").f_frsize
    with open("/mnt/reserve", "wb") as file:
        file.write(bytes(free - kib * 1024))
    before = contents(path)
    try:
        forget(path, SECRET)
        done += 1
    except NoSpaceError as error:
        assert error.exit_code == 14 and "bytes needed" in error.message, error.message
        refused += 1
    assert contents(path) in (before, after), kib
    os.unlink("/mnt/reserve")
    if contents(path) != after or traces(path):
        assert forget(path, SECRET).done
    assert contents(path) == after and not traces(path), kib
    shutil.rmtree(path)
print(refused, done)"""


@needs_mount
def test_on_a_disk_that_is_full_for_real_it_is_done_or_refused_with_numbers_and_the_store_is_whole(
    monkeypatch, tmp_path
):
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))
    script = """mount -t tmpfs -o size=8m none /mnt; "$1" -c "$2" "$3" """
    ran = _unshared(script, sys.executable, FULL, str(tmp_path / "template"))
    assert ran.returncode == 0, ran.stderr
    refused, done = map(int, ran.stdout.split())
    assert refused > 5 and done >= 1
