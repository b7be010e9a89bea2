"""Row 4: a real file system that runs full, at a random size; at zero bytes free a store can still be used."""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import subprocess
from pathlib import Path

from comem_cli.errors import NoSpaceError
from comem_cli.store.check import CheckOptions, check_store
from tests.faults import jobs
from tests.faults.bases import job_named, place, recorded
from tests.faults.case import Outcome, Prepared, Row, must
from tests.faults.child import start
from tests.faults.command import command

_CLONE_NEWNS = 0x20000
_NUMBERS = re.compile(r"[\d,]+ bytes needed, [\d,]+ free")
FULL = ("create", "ingest", "overlap-write", "forget")


def _cases(prepared: Prepared) -> list[str]:
    count = 25 if prepared.full else 3
    return ["commands-0", *(f"{job}-{number}" for job in FULL for number in range(count))]


def _mounted(folder: Path, kib: int) -> Path | None:
    """Mount a tmpfs that only this process sees; None where that is not allowed."""
    disk = folder / "disk"
    disk.mkdir()
    if ctypes.CDLL(None, use_errno=True).unshare(_CLONE_NEWNS) != 0:
        return None
    lines = (["mount", "--make-rprivate", "/"], ["mount", "-t", "tmpfs", "-o", f"size={kib}k", "none", str(disk)])
    return disk if all(subprocess.run(line, capture_output=True).returncode == 0 for line in lines) else None


def fill(disk: Path, leave: int = 0) -> None:
    """Write until `leave` bytes are free."""
    facts = os.statvfs(disk)
    with (disk / "reserve").open("wb") as file:
        file.write(bytes(max(0, facts.f_bavail * facts.f_frsize - leave)))
    must(os.statvfs(disk).f_bavail * facts.f_frsize <= max(leave, 0), "the disk is not full")


def run(prepared: Prepared, case: str, folder: Path) -> Outcome:
    """Run a job on a disk that is too small for it."""
    disk = _mounted(folder, 4096)
    if disk is None:
        return Outcome(True, "needs the right to mount a file system", skipped=True)
    if case == "commands-0":
        return _commands(prepared, folder, disk)
    job = job_named(case)
    wanted, store = recorded(prepared, job), disk / "store"
    if job.base != "nothing":
        shutil.copytree(prepared.folder / job.base, store)
    leave = (prepared.rng(4, case).randrange(0, 400) + (850 if job.name == "forget" else 0)) * 1024
    fill(disk, leave)

    def work() -> tuple[bool, str]:
        try:
            job.run(store, place(prepared))
        except NoSpaceError as error:
            return False, error.message
        return True, ""

    ended = start(work).wait()
    must(ended.returned, ended.error)
    done, said = ended.result
    must(done or _NUMBERS.search(said), f"without numbers: {said}")
    if not done:
        (disk / "more").write_bytes(b"")
        _fill_rest(disk)
    wanted.holds(store)
    if job.name != "create" or jobs.read_state(store)[0] >= 0:
        report = check_store(store, CheckOptions(read_data=True), jobs.no_index_check)
        must(not report.damage, f"damage on the full disk: {report.damage}")
    (disk / "reserve").unlink()
    (disk / "more").unlink(missing_ok=True)
    job.run(store, place(prepared))
    jobs.settled(store, wanted.final)
    return Outcome(True, f"{leave} bytes left: {'done' if done else said.rpartition(': ')[2]}")


def _fill_rest(disk: Path) -> None:
    """Take what a failed job gave back."""
    try:
        with (disk / "more").open("ab", buffering=0) as file:
            while file.write(b"\0" * 4096):
                pass
    except OSError:
        pass


def _commands(prepared: Prepared, folder: Path, disk: Path) -> Outcome:
    """At zero bytes free, ask, stats and check work; forget works, or says what it needs and changes nothing."""
    store = Path(shutil.copytree(prepared.folder / "indexed", disk / "store"))
    fill(disk)
    _fill_rest(disk)
    (folder / "run").mkdir()
    model = prepared.folder / "model"
    asks = (
        ("stats", store),
        ("check", store, "--read-data"),
        ("ask", store, "where is the harbour ledger?", "--top-k", "2", "--max-new-tokens", "4"),
    )
    for line in asks:
        done = command(folder / "run", model, *line)
        must(done.code == 0, f"{line[0]} ended with {done.code}: {done.err}")
    before = jobs.read_state(store)
    done = command(folder / "run", model, "forget", store, "d1.txt")
    must(done.code in (0, 14), f"forget ended with {done.code}: {done.err}")
    if done.code == 14:
        must(_NUMBERS.search(done.err), f"forget says no numbers: {done.err}")
        must(jobs.read_state(store) == before, "forget changed something")
    os.unlink(disk / "reserve")
    (disk / "more").unlink(missing_ok=True)
    again = command(folder / "run", model, "forget", store, "d1.txt")
    must(again.code == 0, f"forget with room ended with {again.code}: {again.err}")
    return Outcome(True, f"stats, check, ask 0; forget {done.code}")


ROWS = (Row(4, "the disk runs full (tmpfs)", _cases, run, ("jobs", "indexed")),)
