"""The fault table, as a program: `python -m tests.faults [--full] [--rows 1,2] [--seed N] [--log FILE] [--resume]`.

Each row of the table plants one kind of fault in many ways and checks what must hold. A table `fault, tried, survived`
goes to stdout; the exit code is 1 if any case did not survive, each named with the command that runs it again.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shlex
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

for _name in ("OMP_NUM_THREADS", "HF_HUB_OFFLINE"):
    os.environ.setdefault(_name, "1")

from tests.faults.case import Prepared, Row  # noqa: E402
from tests.faults.pool import Tried, run_all  # noqa: E402


def main() -> int:
    """Run the rows and print the table."""
    options = _options()
    from tests.faults.rows import ROWS, warm

    chosen = [row for row in ROWS if not options.rows or row.number in options.rows]
    done = _logged(options) if options.resume and options.log else []
    if options.log:
        options.log.parent.mkdir(parents=True, exist_ok=True)
    log = options.log.open("a" if options.resume else "w") if options.log else None
    start = time.monotonic()
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(143))  # remove the folder even then
    with tempfile.TemporaryDirectory(dir=options.folder, prefix="comem-faults-") as folder:
        prepared = Prepared(Path(folder).resolve(), options.seed, options.full)
        warm()
        _prepare(prepared, chosen)
        tried = list(done)
        for one in run_all(prepared, _batches(prepared, chosen, options, done), options.workers, log):
            tried.append(one)
            if not one.survived and not one.skipped:
                print(f"row {one.row}, {one.case}: {one.detail}\n  {_again(one, options)}", file=sys.stderr, flush=True)
    _table(chosen, tried)
    usage = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    cpu = sum(one.ru_utime + one.ru_stime for one in usage)
    print(f"{time.monotonic() - start:.0f} s wall, {cpu:.0f} s CPU, seed {options.seed}", file=sys.stderr)
    return int(any(not one.survived and not one.skipped for one in tried))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.add_argument("--full", action="store_true", help="the nightly counts")
    parser.add_argument("--rows", type=lambda text: [int(part) for part in text.split(",")], default=[])
    parser.add_argument("--case", action="append", default=[], help="run only these cases of the rows")
    parser.add_argument("--most", type=int, help="at most so many cases a row, drawn with the seed")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--log", type=Path, help="one JSON line a case")
    parser.add_argument("--resume", action="store_true", help="skip what the log holds for this seed")
    shared = Path("/dev/shm")
    parser.add_argument("--folder", type=Path, default=shared if os.access(shared, os.W_OK) else None)
    return parser.parse_args()


def _prepare(prepared: Prepared, rows: list[Row]) -> None:
    from tests.faults.bases import MAKE

    for need in dict.fromkeys(need for row in rows for need in row.needs):
        MAKE[need](prepared)


def _batches(
    prepared: Prepared, rows: list[Row], options: argparse.Namespace, done: list[Tried]
) -> Iterator[tuple[Row, list[str]]]:
    """Cut the cases of all rows into batches; rows whose cases take long come first."""
    known = {(one.row, one.case) for one in done}
    for row in sorted(rows, key=lambda row: -row.seconds):
        cases = options.case or row.cases(prepared)
        if options.most and len(cases) > options.most:
            cases = sorted(prepared.rng(row.number, "most").sample(cases, options.most))
        cases = [case for case in cases if (row.number, case) not in known]
        for at in range(0, len(cases), row.batch):
            yield row, cases[at : at + row.batch]


def _logged(options: argparse.Namespace) -> list[Tried]:
    if not options.log.exists():
        return []
    lines = [Tried(**json.loads(line)) for line in options.log.read_text().splitlines() if line.endswith("}")]
    rows = options.rows
    return [one for one in lines if one.seed == options.seed and (not rows or one.row in rows)]


def _again(one: Tried, options: argparse.Namespace) -> str:
    return f"python -m tests.faults --rows {one.row} --seed {options.seed} --case {shlex.quote(one.case)}"


def _table(rows: list[Row], tried: list[Tried]) -> None:
    print("row\tfault\ttried\tsurvived\tskipped")
    for row in rows:
        here = [one for one in tried if one.row == row.number]
        ran = [one for one in here if not one.skipped]
        skipped = len(here) - len(ran)
        print(f"{row.number}\t{row.fault}\t{len(ran)}\t{sum(one.survived for one in ran)}\t{skipped}")
    for reason in sorted({f"row {one.row}: {one.detail}" for one in tried if one.skipped}):
        print(f"skipped, {reason}", file=sys.stderr)
    missing = sorted({row.number for row in rows} - {one.row for one in tried})
    if missing:
        print(f"no case of row {missing} was tried", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
