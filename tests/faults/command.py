"""Run comem's command line in a fork of this warm process: the same `main`, without the seconds that imports take."""

from __future__ import annotations

import contextlib
import io
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

from tests.commands.cli import Ran
from tests.faults.child import Child, start


def command(
    folder: Path,
    model: Path,
    *args: str | Path,
    first: Callable[[], object] = lambda: None,
    stdin: bytes = b"",
) -> Ran:
    """Run `comem ARGS` in `folder` to its end; `first` is called in its process before it starts."""
    out, err, source = folder / ".out", folder / ".err", folder / ".in"
    source.write_bytes(stdin)
    child = begin(folder, model, *args, first=first, out=out, err=err, stdin=source)
    ended = child.wait()
    code = ended.result if ended.returned else -ended.signal
    if ended.error:
        raise RuntimeError(ended.error)
    return Ran(code, out.read_bytes().decode(errors="replace"), err.read_bytes().decode(errors="replace"))


def begin(
    folder: Path,
    model: Path,
    *args: str | Path,
    first: Callable[[], object] = lambda: None,
    out: Path | int,
    err: Path,
    stdin: Path = Path(os.devnull),
) -> Child:
    """Start `comem ARGS` in `folder`, in a session of its own; its result is the exit code."""

    def work() -> int:
        os.setsid()
        os.chdir(folder)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
        os.dup2(os.open(stdin, os.O_RDONLY), 0)
        os.dup2(out if isinstance(out, int) else os.open(out, flags, 0o600), 1)
        os.dup2(os.open(err, flags, 0o600), 2)
        sys.stdin = io.TextIOWrapper(io.FileIO(0, closefd=False))
        sys.stdout = io.TextIOWrapper(io.BufferedWriter(io.FileIO(1, "w", closefd=False)), "utf-8", "surrogateescape")
        sys.stderr = io.TextIOWrapper(io.FileIO(2, "w", closefd=False), "utf-8", "backslashreplace", write_through=True)
        os.environ["COMEM_MODEL"], os.environ["COMEM_CACHE"] = str(model), str(model.parent / "cache")
        sys.argv = ["comem", *map(os.fsdecode, args)]
        first()
        from comem_cli.app import main

        try:
            main()
            code = 0
        except SystemExit as error:
            code = error.code if isinstance(error.code, int) else int(bool(error.code))
        with contextlib.suppress(BrokenPipeError):
            sys.stdout.flush()
        return code

    return start(work)
