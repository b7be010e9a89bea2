"""Row 12: SIGINT, SIGTERM, two SIGINTs, a closed pipe, a terminal that hangs up."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

from tests.commands.cli import COMEM
from tests.faults import jobs
from tests.faults.bases import base, place, recorded
from tests.faults.case import Outcome, Prepared, Row, must
from tests.faults.child import Child
from tests.faults.command import begin

KINDS = ("int", "term", "int-int", "pipe", "hangup")
CODES = {"int": 130, "int-int": 130, "term": 143, "pipe": 0, "hangup": -signal.SIGHUP}
INGEST = jobs.JOBS[1]


def _cases(prepared: Prepared) -> list[str]:
    count, started = (50, 10) if prepared.full else (10, 2)
    return [
        f"{kind}-{'started' if number < started else 'forked'}-{number}" for kind in KINDS for number in range(count)
    ]


def run(prepared: Prepared, case: str, folder: Path) -> Outcome:
    """Interrupt a command at a random moment: an ingest in a fork, or a batch of questions to the installed command."""
    kind, how, _ = case.rsplit("-", 2)
    run_one = _ingest if how == "forked" else _ask
    return run_one(prepared, kind, prepared.rng(12, case), folder)


def _ingest(prepared: Prepared, kind: str, rng: Any, folder: Path) -> Outcome:
    store = base(prepared, INGEST, folder)
    reading, writing = os.pipe()
    line = ("ingest", place(prepared).docs, "--store", store, "--json", "--no-index", "--yes", "--device", "cpu")

    def slow() -> None:
        jobs.pause = 0.01

    child = begin(folder, prepared.folder / "model", *line, first=slow, out=writing, err=folder / "err")
    os.close(writing)
    out = _until_first_line(reading)
    time.sleep(rng.uniform(0, 0.2))
    code, rest = _interrupt(kind, child, reading)
    err = (folder / "err").read_text()
    _judge(kind, code, out + rest, err)
    recorded(prepared, INGEST).holds(store)
    jobs.ingest(store, place(prepared))
    jobs.settled(store, recorded(prepared, INGEST).final)
    return Outcome(True, f"exit code {code} after {(out + rest).count(chr(10))} lines")


def _interrupt(kind: str, child: Child, reading: int) -> tuple[int, str]:
    rest = ""
    if kind == "pipe":
        os.close(reading)
    else:
        number = {"term": signal.SIGTERM, "hangup": signal.SIGHUP}.get(kind, signal.SIGINT)
        os.kill(child.pid, number)
        if kind == "int-int":
            time.sleep(0.002)
            with contextlib.suppress(ProcessLookupError):
                os.kill(child.pid, number)
        rest = _drain(reading)
        os.close(reading)
    ended = child.wait(60)
    must(ended.returned or ended.signal, ended.error)
    return (ended.result if ended.returned else -ended.signal), rest


def _judge(kind: str, code: int, out: str, err: str) -> None:
    ended_first = code == 0 and kind != "pipe"  # the command was quicker than the signal
    must(code == CODES[kind] or ended_first, f"exit code {code}, expected {CODES[kind]}: {err[-500:]}")
    must("Traceback" not in err, f"a traceback: {err[-800:]}")
    lines = out.splitlines(keepends=True)
    for line in lines if out.endswith("\n") else lines[:-1]:
        json.loads(line)


def _ask(prepared: Prepared, kind: str, rng: Any, folder: Path) -> Outcome:
    questions = folder / "questions"
    questions.write_text('{"question": "where is the harbour ledger?"}\n' * 400)
    environment = {
        **{key: value for key, value in os.environ.items() if not key.startswith("COMEM_")},
        "COMEM_MODEL": str(prepared.folder / "model"),
        "COMEM_CACHE": str(prepared.folder / "cache"),
    }
    line = [*COMEM, "ask", str(prepared.folder / "indexed"), "-", "--top-k", "2", "--max-new-tokens", "4"]
    with questions.open() as source, (folder / "err").open("wb") as err:
        piped = {"stdin": source, "stdout": subprocess.PIPE, "stderr": err, "start_new_session": True}
        process = subprocess.Popen(line, cwd=folder, env=environment, preexec_fn=_interruptible, **piped)  # type: ignore[call-overload]
        assert process.stdout is not None
        reading = process.stdout.fileno()
        out = _until_first_line(reading) if rng.random() < 0.7 or kind == "pipe" else ""
        time.sleep(rng.uniform(0, 0.5) if out else rng.uniform(0.5, 4))  # also while it starts
        if kind == "pipe":
            process.stdout.close()
        else:
            number = {"term": signal.SIGTERM, "hangup": signal.SIGHUP}.get(kind, signal.SIGINT)
            process.send_signal(number)
            if kind == "int-int":
                time.sleep(0.05)
                process.send_signal(number)
            out += _drain(reading)
        code = process.wait(timeout=100)
    said = (folder / "err").read_text()
    if not out and code == 130 and kind in ("int", "int-int"):
        said = ""  # Python's own traceback of a start that was interrupted before comem ran
    _judge(kind, code, out, said)
    return Outcome(True, f"exit code {code} after {out.count(chr(10))} lines")


def _interruptible() -> None:
    """Undo what a shell does to jobs in the background: they ignore SIGINT."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def _until_first_line(reading: int) -> str:
    raw = b""
    while b"\n" not in raw:
        must(select.select([reading], [], [], 100)[0], "no line within 100 s")
        part = os.read(reading, 2**16)
        if not part:
            break
        raw += part
    return raw.decode()


def _drain(reading: int) -> str:
    raw = b""
    while select.select([reading], [], [], 100)[0]:
        part = os.read(reading, 2**16)
        if not part:
            break
        raw += part
    return raw.decode()


ROWS = (Row(12, "signals, a closed pipe, a hang-up", _cases, run, ("jobs", "indexed"), seconds=400),)
