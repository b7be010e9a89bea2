"""Rows 1 and 2: kill -9, at a random time, and at every named point of the write order."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from comem_cli.store import durable
from comem_cli.store.writer import StoreWriter
from tests.faults import jobs, row_index
from tests.faults.bases import base, job_named, place, recorded
from tests.faults.case import Outcome, Prepared, Row, must, numbered
from tests.faults.child import start

KILLED = ("ingest", "overlap-write", "forget")
NEXT_START_SECONDS = 1.0


def _times(prepared: Prepared) -> list[str]:
    count = 1000 if prepared.full else 50
    return [name for job in (*KILLED, "index") for name in numbered(job, count)]


def _points(prepared: Prepared) -> list[str]:
    return [f"{job.name}-{at + 1}" for job in jobs.JOBS for at in range(len(recorded(prepared, job).points))]


def run_at_random_time(prepared: Prepared, case: str, folder: Path) -> Outcome:
    """Kill a job after a random time, look at the store, and run the job again."""
    if case.startswith("index-"):
        return row_index.run_killed(prepared, case, folder)
    return _run(prepared, case, folder, by_point=False)


def run_at_point(prepared: Prepared, case: str, folder: Path) -> Outcome:
    """Kill a job at the N-th fault point, look at the store, and run the job again."""
    return _run(prepared, case, folder, by_point=True)


def _run(prepared: Prepared, case: str, folder: Path, *, by_point: bool) -> Outcome:
    job = job_named(case)
    wanted = recorded(prepared, job)
    store, log = base(prepared, job, folder), folder / "computed"
    number = int(case.rpartition("-")[2])

    def work() -> None:
        _log_to(log)
        passed = 0

        def die(name: str) -> None:
            nonlocal passed
            passed += 1
            if passed == number:
                os.kill(os.getpid(), signal.SIGKILL)

        if by_point:
            durable.fault_point = die
        job.run(store, place(prepared))

    child = start(work)
    if not by_point:
        time.sleep(prepared.rng(1, case).uniform(0, 1.1 * wanted.seconds))
        child.kill()
    ended = child.wait()
    must(ended.signal == signal.SIGKILL or (ended.returned and not by_point), f"ended with {ended}")
    if job.name != "repair":
        wanted.holds(store)
    before = time.monotonic()
    if (store / "catalog.sqlite").exists() and job.name not in ("create", "repair"):
        StoreWriter.open(store).close()  # no lock to remove by hand
    must(time.monotonic() - before < NEXT_START_SECONDS, "the next writer needed more than a second to start")
    _log_to(log)
    job.run(store, place(prepared))
    jobs.settled(store, wanted.final)
    twice = _computed_again(log)
    must(twice <= jobs.BATCH, f"{twice} chunks were computed twice")
    at = wanted.points[number - 1] if by_point else ""
    return Outcome(True, at)


def _log_to(path: Path) -> None:
    jobs.computed[:] = [os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)]


def _computed_again(log: Path) -> int:
    keys = log.read_text().split()
    return len(keys) - len(set(keys))


ROWS = (
    Row(1, "kill -9 at a random time", _times, run_at_random_time, ("jobs", "indexed", "stale")),
    Row(2, "kill -9 at each named point", _points, run_at_point, ("jobs",)),
)
