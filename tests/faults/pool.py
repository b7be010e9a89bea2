"""Run cases in forks of this warm process, a few at a time, and log each outcome as one JSON line.

A batch of cases shares one fork, its own folder and process group; a case that hangs, or whose process dies, counts
as not survived, and the rest of its batch goes on in a new fork. The log says what was tried: a run can be resumed.
"""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import sys
import time
import traceback
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from tests.faults.case import NotHeldError, Outcome, Prepared, Row


@dataclass
class _Running:
    row: Row
    cases: deque[str]
    pid: int
    pipe: int
    folder: Path
    since: float
    rest: bytes = b""


@dataclass(frozen=True)
class Tried:
    """One line of the log."""

    row: int
    case: str
    seed: int
    survived: bool
    skipped: bool
    detail: str
    ms: float


def run_all(
    prepared: Prepared, batches: Iterator[tuple[Row, list[str]]], workers: int, log: TextIO | None
) -> Iterator[Tried]:
    """Yield the outcome of every case."""
    waiting, running, number = deque(batches), list[_Running](), 0
    while waiting or running:
        while waiting and len(running) < workers:
            row, cases = waiting.popleft()
            running.append(_start(prepared, row, cases, prepared.folder / f"case-{number}"))
            number += 1
        ready, _, _ = select.select([one.pipe for one in running], [], [], 1.0)
        for one in list(running):
            over = time.monotonic() - one.since > one.row.seconds
            if one.pipe not in ready and not over:
                continue
            for tried in _outcomes(prepared, one, over):
                if log:
                    print(json.dumps(vars(tried)), file=log, flush=True)
                yield tried
            if one.pid == 0:
                running.remove(one)
                shutil.rmtree(one.folder, ignore_errors=True)
                if one.cases:
                    waiting.appendleft((one.row, list(one.cases)))


def _start(prepared: Prepared, row: Row, cases: list[str], folder: Path) -> _Running:
    folder.mkdir()
    reading, writing = os.pipe()
    sys.stdout.flush()
    pid = os.fork()
    if pid:
        os.close(writing)
        return _Running(row, deque(cases), pid, reading, folder, time.monotonic())
    try:
        os.close(reading)
        os.setpgid(0, 0)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        _work(prepared, row, cases, folder, writing)
    finally:
        os._exit(0)  # whatever happens, a fork must not go on as its parent would


def _work(prepared: Prepared, row: Row, cases: list[str], folder: Path, pipe: int) -> None:
    write = os.write  # a case may replace it
    for case in cases:
        begin = time.perf_counter()
        outcome = _try(prepared, row, case, folder / case.replace("/", "_"))
        ms = round((time.perf_counter() - begin) * 1e3, 1)
        raw = memoryview(json.dumps({**vars(outcome), "ms": ms}).encode() + b"\n")
        while raw:
            raw = raw[write(pipe, raw) :]


def _try(prepared: Prepared, row: Row, case: str, folder: Path) -> Outcome:
    folder.mkdir()
    try:
        return row.run(prepared, case, folder)
    except NotHeldError as error:
        return Outcome(False, str(error)[-2000:])
    except BaseException:
        return Outcome(False, traceback.format_exc(limit=-8)[-2000:])
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _outcomes(prepared: Prepared, one: _Running, over: bool) -> Iterator[Tried]:
    """Read what a process reported; at its end `pid` becomes 0, and what it did not come to stays in `cases`."""
    seed = prepared.seed
    part = b"" if over else os.read(one.pipe, 2**16)
    one.rest += part
    *lines, one.rest = one.rest.split(b"\n")
    for line in lines:
        found = json.loads(line)
        one.since = time.monotonic()
        case = one.cases.popleft()
        yield Tried(one.row.number, case, seed, found["survived"], found["skipped"], found["detail"], found["ms"])
    if part:
        return
    if over:
        os.killpg(one.pid, signal.SIGKILL)
    _, status = os.waitpid(one.pid, 0)
    os.close(one.pipe)
    one.pid = 0
    if one.cases:
        how = f"hung for {one.row.seconds:.0f} s" if over else f"its process died, wait status {status}"
        yield Tried(one.row.number, one.cases.popleft(), seed, False, False, how, one.row.seconds * 1e3)
