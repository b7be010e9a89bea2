"""Rows 3 and 5: the N-th call that changes a file fails; and what was not flushed is lost."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import subprocess
from pathlib import Path

from comem_cli.store import durable
from tests.faults import jobs, row_index
from tests.faults.bases import Calls, base, job_named, place, recorded
from tests.faults.case import Outcome, Prepared, Row, must
from tests.faults.child import start
from tests.faults.unsynced import WAYS, Unsynced, lose

CODES = ("EIO", "ENOSPC", "EACCES")
EACH = 2  # points that are tried of each kind of unflushed file in each way


def _calls(prepared: Prepared) -> list[str]:
    codes = CODES if prepared.full else CODES[:1]
    inside = range(1, 121) if prepared.full else (1, 2, 3, 5, 8, 13, 21, 34, 55)
    sqlite = [
        f"{job}-sqlite.{call}-{code}-{number}"
        for code in codes[:2]
        for job in ("ingest", "forget")
        for call in ("pwrite64", "fdatasync")
        for number in inside
    ]
    return sqlite + [
        f"{job.name}-{code}-{number + 1}"
        for code in codes
        for job in jobs.JOBS
        for number in range(recorded(prepared, job).calls)
    ]


def run_failing(prepared: Prepared, case: str, folder: Path) -> Outcome:
    """Let the N-th call fail; the job says so with exit code 1 or 14, or goes on; the next run completes."""
    job = job_named(case)
    name, number = case.rpartition("-")[0].rpartition("-")[2], int(case.rpartition("-")[2])
    wanted, code = recorded(prepared, job), getattr(errno, name)
    store = base(prepared, job, folder)
    if "-sqlite." in case:
        return _fail_sqlite(prepared, case, store)

    def work() -> tuple[str, str, int | None]:
        calls = Calls(number, code)
        try:
            with calls.counting():
                job.run(store, place(prepared))
        except Exception as error:
            return calls.failed, repr(error), jobs.exit_code(error)
        return calls.failed, "", 0

    ended = start(work).wait()
    must(ended.returned, ended.error)
    failed, said, exit_code = ended.result
    allowed = {0, 14 if code == errno.ENOSPC else 1}
    must(exit_code in allowed, f"{failed} failed with {name}: exit code {exit_code}, {said}")
    if job.name != "repair":
        wanted.holds(store)
    job.run(store, place(prepared))
    jobs.settled(store, wanted.final)
    return Outcome(True, f"{failed}: {exit_code}")


def _fail_sqlite(prepared: Prepared, case: str, store: Path) -> Outcome:
    """Let the kernel fail the N-th call of SQLite on the catalogue's files, by strace's injection."""
    job = job_named(case)
    _, call, name, number = case.rsplit("-", 3)
    call = call.removeprefix("sqlite.")
    wanted, tracer = recorded(prepared, job), shutil.which("strace")
    if tracer is None:
        return Outcome(True, "needs strace", skipped=True)
    waiting, go = os.pipe()

    def work() -> tuple[str, int | None]:
        os.read(waiting, 1)
        try:
            job.run(store, place(prepared))
        except Exception as error:
            return repr(error), jobs.exit_code(error)
        return "", 0

    child = start(work)
    paths = [word for end in ("", "-wal") for word in ("-P", f"{store}/catalog.sqlite{end}")]
    attach = [tracer, "-f", "-p", str(child.pid), "-o", str(store.parent / "trace")]
    line = [*attach, *paths, "-e", f"trace={call}", "-e", f"inject={call}:error={name}:when={number}"]
    with subprocess.Popen(line, stderr=subprocess.PIPE, text=True) as strace:
        assert strace.stderr is not None
        said = strace.stderr.readline()
        if "attached" not in said:
            child.kill()
            child.wait()
            return Outcome(True, f"strace cannot attach: {said.strip()}", skipped=True)
        os.write(go, b"1")
        ended = child.wait()
        strace.wait(10)
    must(ended.returned, ended.error)
    error, exit_code = ended.result
    injected = "(INJECTED)" in (store.parent / "trace").read_text()
    allowed = {0, 1} if name != "ENOSPC" else {0, 14} if call == "pwrite64" else {0, 1, 14}
    must(exit_code in allowed, f"{call} failed with {name}: exit code {exit_code}, {error}")
    wanted.holds(store)
    job.run(store, place(prepared))
    jobs.settled(store, wanted.final)
    return Outcome(True, f"{call}: {exit_code}" if injected else f"fewer than {number} calls")


def _losses(prepared: Prepared) -> list[str]:
    found = ["lucene-flush"]
    for job in jobs.JOBS:
        points = recorded(prepared, job).unsynced
        for kind in sorted(frozenset().union(*points)):
            at = [number + 1 for number, kinds in enumerate(points) if kind in kinds]
            for way in WAYS:
                drawn = prepared.rng(5, f"{job.name} {kind} {way}").sample(
                    at, min(200 if prepared.full else EACH, len(at))
                )
                found += [f"{job.name}-{way}-{number}" for number in drawn]
    return list(dict.fromkeys(found))


def run_losing(prepared: Prepared, case: str, folder: Path) -> Outcome:
    """Cut the power at a fault point: the process dies, and what it had not flushed is lost in one of six ways."""
    if case == "lucene-flush":
        return row_index.run_flushed(prepared, case, folder)
    job = job_named(case)
    way, number = case.rpartition("-")[0].rpartition("-")[2], int(case.rpartition("-")[2])
    wanted = recorded(prepared, job)
    store, report = base(prepared, job, folder), folder / "lost"

    def work() -> None:
        import pickle

        shim, passed = Unsynced(store), 0

        def die(name: str) -> None:
            nonlocal passed
            passed += 1
            shim.passed(name)
            if passed == number:
                report.write_bytes(pickle.dumps(shim.lost()))
                os.kill(os.getpid(), signal.SIGKILL)

        durable.fault_point = die
        with shim.watching():
            job.run(store, place(prepared))

    ended = start(work).wait()
    must(ended.signal == signal.SIGKILL, f"ended with {ended}")
    import pickle

    touched = lose(store, pickle.loads(report.read_bytes()), way, prepared.rng(5, case))
    if job.name != "repair":
        wanted.holds(store)
    job.run(store, place(prepared))
    jobs.settled(store, wanted.final)
    return Outcome(True, f"{way}: {', '.join(touched)}")


ROWS = (
    Row(3, "the N-th write, fsync, rename, unlink or mkdir fails", _calls, run_failing, ("jobs",)),
    Row(5, "loss of what was not flushed", _losses, run_losing, ("jobs", "indexed", "stale")),
)
