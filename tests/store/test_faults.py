"""A killed or failing writer leaves one generation or the next, whole; the same run then completes."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from killed_writer import first_run, second_run
from samples import contents, expected, ledger, open_store, put, sample
from test_reader import _unshared, needs_mount

from comem_cli.errors import ComemError, LockedError, NoSpaceError
from comem_cli.store import durable
from comem_cli.store.reader import StoreReader

STATES = [
    {"a": [sample(1), sample(2)], "b": [sample(6)]},
    {"a": [sample(3), sample(4, 20)], "b": [sample(6)]},
    {"a": [sample(3), sample(4, 20)], "b": [sample(6)], "c": [sample(5)]},
]
EXPECTED = [{("/src", name): expected(chunks) for name, chunks in state.items()} for state in STATES]


def passages(path: Path, run) -> Counter[str]:
    """Count how often a run passes each fault point."""
    found: Counter[str] = Counter()
    durable.fault_point, real = lambda name: found.update([name]), durable.fault_point
    try:
        run(path)
    finally:
        durable.fault_point = real
    return found


def check_exact_layout(path: Path) -> None:
    """No orphan, no temporary file: what lies there is what the catalogue names."""
    assert not list(path.rglob("*.tmp"))
    with StoreReader(path) as reader:
        counts = reader.counts()
    files = [file for file in (path / "residuals/c").rglob("*") if file.is_file()]
    assert len(files) == counts.shards and sum(file.stat().st_size for file in files) == counts.residual_bytes


def run_killed(path: Path, point: str, number: int, *more: str) -> int:
    script = Path(__file__).with_name("killed_writer.py")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    return subprocess.run([sys.executable, script, path, point, str(number), *more], env=environment).returncode


def test_killed_at_any_fault_point_the_store_holds_one_generation_and_the_rerun_completes(tmp_path):
    base = tmp_path / "base"
    first_run(base)
    shutil.copytree(base, tmp_path / "count")
    counted = passages(tmp_path / "count", second_run)
    kinds = {name.split(".")[0] for name in counted}
    assert kinds == {"mkdir", "write", "fsync", "rename", "dirsync", "commit", "unlink"}
    for point, times in counted.items():
        for number in sorted({1, times}):
            path = tmp_path / f"{point}-{number}"
            shutil.copytree(base, path)
            assert run_killed(path, point, number) == -9
            assert contents(path) in EXPECTED, (point, number)
            second_run(path)
            assert contents(path) == EXPECTED[-1]
            check_exact_layout(path)


def test_killed_while_it_is_created_a_store_can_be_created_again(tmp_path):
    counted = passages(tmp_path / "count", first_run)
    for point, times in counted.items():
        for number in sorted({1, times}):
            path = tmp_path / f"{point}-{number}"
            assert run_killed(path, point, number, "first") == -9
            first_run(path)
            assert contents(path) == EXPECTED[0]
            check_exact_layout(path)


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC, errno.EACCES])
def test_when_the_nth_step_fails_the_store_stays_whole_and_the_same_run_then_completes(tmp_path, monkeypatch, code):
    base = tmp_path / "base"
    first_run(base)
    steps = ("write.before", "fsync.before", "rename.before")
    for number in range(1, 100):
        path = tmp_path / str(number)
        shutil.copytree(base, path)
        seen = 0

        def fail(name: str, number: int = number) -> None:
            nonlocal seen
            seen += name in steps
            if name in steps and seen == number:
                raise OSError(code, os.strerror(code))

        with monkeypatch.context() as patch:
            patch.setattr(durable, "fault_point", fail)
            try:
                second_run(path)
            except ComemError as error:
                assert (error.exit_code == 14) == (code == errno.ENOSPC)
            else:
                break
        assert contents(path) in EXPECTED
        second_run(path)
        assert contents(path) == EXPECTED[-1]
        check_exact_layout(path)
    assert 5 < number < 99


def test_a_full_disk_names_the_bytes_needed_and_free_and_the_writer_can_go_on(tmp_path, monkeypatch):
    path = tmp_path / "s"
    first_run(path)
    with open_store(path) as writer:
        put(writer, "c", [sample(5)])

        def full(fd, data):
            raise OSError(errno.ENOSPC, "No space left on device")

        with monkeypatch.context() as patch:
            patch.setattr(os, "write", full)
            with pytest.raises(NoSpaceError, match=r"[\d,]+ bytes needed, [\d,]+ free"):
                writer.commit(ledger())
        assert contents(path) == EXPECTED[0]
        writer.commit(ledger())
    assert set(contents(path)) == {("/src", "a"), ("/src", "b"), ("/src", "c")}


FILL = """import os, pathlib, sys
from samples import contents, open_store, put, sample
from comem_cli.errors import NoSpaceError
path = pathlib.Path("/mnt/s")
with open_store(path) as writer:
    put(writer, "kept", [sample(0)])
    writer.commit()
try:
    with open_store(path) as writer:
        for seed in range(1, 100_000):
            put(writer, f"f{seed}", [sample(seed)])
            writer.commit()
except NoSpaceError as error:
    assert error.exit_code == 14 and "bytes needed" in error.message, error.message
found = contents(path)
assert ("/src", "kept") in found and len(found) > 3
os.unlink("/mnt/reserve")
with open_store(path) as writer:
    put(writer, "after", [sample(0)])
    writer.commit()
assert set(contents(path)) - set(found) == {("/src", "after")}
print("whole")"""


@needs_mount
@pytest.mark.parametrize("size", [700, 1100])
def test_a_disk_that_fills_up_for_real_leaves_the_last_commit(size, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))
    script = f"""mount -t tmpfs -o size={size}k none /mnt
    dd if=/dev/zero of=/mnt/reserve bs=1k count=256 2>/dev/null; "$1" -c "$2" """
    done = _unshared(script, sys.executable, FILL)
    assert done.returncode == 0 and done.stdout == "whole\n", done.stderr


def test_a_second_writer_is_told_who_holds_the_lock(tmp_path):
    path = tmp_path / "s"
    with open_store(path), pytest.raises(LockedError, match=f"process {os.getpid()} ") as caught:
        open_store(path)
    assert caught.value.exit_code == 11
    open_store(path).close()


def test_a_lock_file_that_a_killed_process_left_is_no_lock(tmp_path):
    path = tmp_path / "s"
    first_run(path)
    (path / "writer.lock").write_text("1 comem ingest docs")
    open_store(path).close()
    assert run_killed(path, "commit.before", 1) == -9
    open_store(path).close()


def test_orphans_and_temporary_files_are_swept_and_live_shards_are_not(tmp_path):
    path = tmp_path / "s"
    first_run(path)
    for orphan in ("c/7/0.tmp", "c/7/0", "c/stray/x"):
        (path / "residuals" / orphan).parent.mkdir(exist_ok=True)
        (path / "residuals" / orphan).touch()
    (path / "zarr.json.tmp").touch()
    (path / "residuals/zarr.json.tmp").touch()
    with StoreReader(path):  # what was never committed is in no snapshot: no reader delays its removal
        open_store(path).close()
        assert not (path / "residuals/c/7").exists()
    open_store(path).close()
    check_exact_layout(path)
    assert contents(path) == EXPECTED[0]
