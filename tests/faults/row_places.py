"""Row 18: odd places: a read-only folder, no HOME, umask 000, LANG=C, a cp1252 stdout, 20 columns, no terminal."""

from __future__ import annotations

import os
import stat
import subprocess
from pathlib import Path

from tests.commands.cli import COMEM
from tests.faults import sources
from tests.faults.case import Outcome, Prepared, Row, must

PLACES: dict[str, dict[str, str]] = {
    "read-only": {},
    "no-home": {},
    "umask-000": {},
    "lang-c": {"LANG": "C", "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
    "cp1252": {"PYTHONIOENCODING": "cp1252"},
    "columns-20": {"COLUMNS": "20"},
    "no-terminal": {"TERM": "dumb"},
}


def run(prepared: Prepared, case: str, folder: Path) -> Outcome:
    """Ingest, ask and count with the installed command in one odd place; files stay 0600, directories 0700."""
    name, rest = "h\u00e9 \u2192 \u4e2d.txt", "\u4e2d\u6587 \u2713 \U0001f6a2\n"
    docs = sources.write(folder / "docs", {name: sources.text("odd", 60) + rest})
    store = str(folder / "store")
    settings = ["--split", "2", "--chunk", "32", "--device", "cpu"]
    ingest = [*COMEM, "ingest", str(docs), "--store", store, *settings]
    question = [*COMEM, "ask", store, "where is the harbour?", "--top-k", "9", "--max-new-tokens", "4"]
    asks = [question, [*COMEM, "stats", store]]
    for line in [ingest] if case != "read-only" else []:
        _run(prepared, case, folder, line)
    if case == "read-only":
        _run(prepared, "no-terminal", folder, ingest)
        mount = 'mount --bind store store && mount -o remount,bind,ro store && exec "$@"'
        asks = [["unshare", "-m", "sh", "-c", mount, "sh", *line] for line in asks]
        probe = subprocess.run(["unshare", "-m", "sh", "-c", mount, "sh", "true"], cwd=folder, capture_output=True)
        if probe.returncode:
            return Outcome(True, "needs the right to mount a file system", skipped=True)
    for line in asks:
        _run(prepared, case, folder, line)
    for path in (folder / "store").rglob("*"):
        mode = stat.S_IMODE(path.stat().st_mode)
        must(mode == (0o700 if path.is_dir() else 0o600), f"{path.relative_to(folder)} has mode {mode:o}")
    return Outcome(True, f"{1 + len(asks)} commands")


def _run(prepared: Prepared, case: str, folder: Path, line: list[str]) -> None:
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("COMEM_", "XDG_"))}
    environment = {**kept, "COMEM_MODEL": str(prepared.folder / "model"), **PLACES[case]}
    environment["COMEM_CACHE"] = str(folder / "cache")
    if case == "no-home":
        environment.pop("HOME", None)
        environment.pop("COMEM_CACHE")
        environment["XDG_CACHE_HOME"] = str(folder / "cache")
    umask = 0 if case == "umask-000" else 0o022
    done = subprocess.run(
        line, cwd=folder, env=environment, stdin=subprocess.DEVNULL, capture_output=True, umask=umask, check=False
    )
    err = done.stderr.decode(errors="replace")
    must(done.returncode == 0, f"{line[-1]} ended with {done.returncode}: {err[-800:]}")
    must(done.stdout, "nothing on stdout")
    must("Traceback" not in err, err[-800:])
    if "stats" in line and case == "columns-20":
        rows = [text.count("\t") for text in done.stdout.decode().splitlines()]
        must(len(set(rows)) == 1, "a table was cut")


ROWS = (Row(18, "odd places and environments", lambda prepared: list(PLACES), run, ("jobs",), seconds=600),)
