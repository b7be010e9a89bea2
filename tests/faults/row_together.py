"""Rows 9, 10 and 11: two writers, one writer and many readers, and locks that are stale, foreign or held."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from comem_cli.errors import ComemError, LockedError
from comem_cli.store.lock import LOCK_NAME
from comem_cli.store.writer import StoreWriter
from tests.faults import jobs, loop_asks, loop_readers, loop_writers
from tests.faults.bases import base
from tests.faults.case import Outcome, Prepared, Row, must, numbered
from tests.faults.child import start


def _writers(prepared: Prepared) -> list[str]:
    return numbered("rounds", 25 if prepared.full else 1)


def run_writers(prepared: Prepared, case: str, folder: Path) -> Outcome:
    """Let two processes write 20 rounds each into one store."""
    seed = prepared.seed * 1000 + int(case.rpartition("-")[2])
    found = loop_writers.run(folder, rounds=20, seed=seed)
    must(found.lost == 0, f"{found.lost} commits are lost")
    must(not found.unnamed, f"refused without the holder: {found.unnamed[:3]}")
    return Outcome(True, f"20 rounds, {found.refused} times refused")


def _readers(prepared: Prepared) -> list[str]:
    count = 25 if prepared.full else 1
    return [*numbered("asks", count), *numbered("reads", count)]


def run_readers(prepared: Prepared, case: str, folder: Path) -> Outcome:
    """Let four processes ask or read 200 times beside a writer."""
    jobs.uninstall()
    if case.startswith("reads-"):
        seed = prepared.seed * 1000 + int(case.rpartition("-")[2])
        read = loop_readers.run(folder, reads=200, readers=4, seed=seed)
        must(not read.errors, f"{len(read.errors)} errors, first {read.errors[:2]}")
        return Outcome(True, f"{read.reads} reads of {read.generations} generations")
    asked = loop_asks.run(folder, asks=200, readers=4)
    must(not asked.errors, f"{len(asked.errors)} errors, first {asked.errors[:2]}")
    must(asked.asks == 200, f"{asked.asks} asks")
    return Outcome(True, f"{asked.asks} asks of {asked.generations} generations, {asked.turns} turns of the writer")


LOCKS = ("empty", "pid-reused", "other-host", "stopped-holder", "killed-holder", "link")


def run_lock(prepared: Prepared, case: str, folder: Path) -> Outcome:
    """Meet one kind of lock file."""
    store = base(prepared, jobs.JOBS[1], folder)
    lock = store / LOCK_NAME
    texts = {"empty": "", "pid-reused": f"{os.getppid()} comem ingest docs", "other-host": "host7 4711 comem index"}
    if case in texts:
        lock.write_text(texts[case])
        StoreWriter.open(store).close()
        return Outcome(True, "opened")
    if case == "link":
        lock.unlink(missing_ok=True)
        (folder / "elsewhere").write_text("keep me")
        lock.symlink_to(folder / "elsewhere")
        try:
            StoreWriter.open(store).close()
        except ComemError as error:
            must(error.exit_code == 1, f"exit code {error.exit_code}")
        else:
            must(False, "a link was taken for a lock file")
        must((folder / "elsewhere").read_text() == "keep me", "the link was followed")
        return Outcome(True, "refused")
    return _held(store, stop=case == "stopped-holder")


def _held(store: Path, *, stop: bool) -> Outcome:
    ready, told = os.pipe()

    def hold() -> None:
        with StoreWriter.open(store):
            os.write(told, b"1")
            time.sleep(60)

    holder = start(hold)
    os.read(ready, 1)
    os.kill(holder.pid, signal.SIGSTOP if stop else signal.SIGKILL)
    if stop:
        try:
            StoreWriter.open(store).close()
        except LockedError as error:
            must(error.exit_code == 11 and f"process {holder.pid} (" in error.message, error.message)
        else:
            must(False, "the lock of a stopped process was taken")
        must((store / LOCK_NAME).read_text().startswith(f"{holder.pid} "), "the lock file was changed")
        holder.kill()
    holder.wait()
    StoreWriter.open(store).close()
    return Outcome(True, "11 with the holder, opened after its end" if stop else "opened")


ROWS = (
    Row(9, "two writers at once, 20 rounds a case", _writers, run_writers),
    Row(10, "one writer and four readers, 200 a case", _readers, run_readers, seconds=1800),
    Row(11, "stale, foreign and held locks", lambda prepared: list(LOCKS), run_lock, ("jobs",)),
)
