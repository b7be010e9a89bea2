"""The only place that prints: data to stdout, everything else to stderr.

Modes: human (tables on a terminal, tab-separated values in a pipe), json (one document, or one event a line for long
jobs) and quiet (data alone). In json mode stderr carries JSON lines or nothing, so that `2>&1 | jq` works. Text that
comes from documents or from the model passes `sanitise`, so that it cannot drive the terminal.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from traceback import format_exception
from typing import Any, Protocol, TextIO

# C0 but tab and newline, DEL, C1, and the bidirectional overrides that can reorder what a reader sees.
_UNSAFE = {c: f"\\x{c:02x}" for c in [*range(0x20), 0x7F, *range(0x80, 0xA0)] if c not in (0x09, 0x0A)}
_UNSAFE |= {c: f"\\u{c:04x}" for c in [*range(0x202A, 0x202F), *range(0x2066, 0x206A)]}


def sanitise(text: str, *, one_line: bool = False) -> str:
    """Make control characters visible; with `one_line`, tabs and newlines too."""
    safe = text.translate(_UNSAFE)
    return safe.replace("\t", "\\t").replace("\n", "\\n") if one_line else safe


class Progress(Protocol):
    """Advance a progress bar."""

    def update(self, n: float = 1) -> Any:
        """Count n more units."""

    def describe(self, text: str) -> None:
        """Show a figure beside the bar."""


class _NoProgress:
    def update(self, n: float = 1) -> None:
        """Show nothing."""

    def describe(self, text: str) -> None:
        """Show nothing."""


class _Bar:
    """Drive a tqdm bar."""

    def __init__(self, bar: Any) -> None:
        self._bar = bar

    def update(self, n: float = 1) -> None:
        """Count n more units."""
        self._bar.update(n)

    def describe(self, text: str) -> None:
        """Show a figure beside the bar."""
        self._bar.set_postfix_str(text)


class Output:
    """Print in one mode; commands share the instance `out`."""

    def __init__(self) -> None:
        self.json = False
        self.quiet = False

    def configure(self, *, json: bool = False, quiet: bool = False) -> None:
        """Choose the mode; make both streams survive text that they cannot encode."""
        self.json, self.quiet = json, quiet
        sys.stdout = sys.stdout or open(os.devnull, "w")  # noqa: SIM115 - closed by the caller with >&-
        sys.stderr = sys.stderr or open(os.devnull, "w")  # noqa: SIM115
        for stream in (sys.stdout, sys.stderr):
            if hasattr(stream, "reconfigure"):
                stream.reconfigure(errors="backslashreplace")

    # stdout: data

    def text(self, text: str = "", *, one_line: bool = False) -> None:
        """Print a line of data; with `one_line`, tabs and newlines inside it are made visible."""
        print(sanitise(text, one_line=one_line), flush=True)

    def piece(self, text: str) -> None:
        """Print a piece of an answer as it is generated, without a newline."""
        print(sanitise(text), end="", flush=True)

    def document(self, value: Any) -> None:
        """Print one JSON document; on one line in a pipe, indented on a terminal."""
        print(json.dumps(value, ensure_ascii=True, indent=2 if sys.stdout.isatty() else None), flush=True)

    def event(self, value: dict[str, Any]) -> None:
        """Print one JSON line and flush it."""
        print(json.dumps(value, ensure_ascii=True, separators=(",", ":")), flush=True)

    def table(self, header: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
        """Print rows: aligned on a terminal, tab-separated with plain numbers in a pipe, never cut."""
        if not sys.stdout.isatty():
            for row in [header, *rows]:
                print("\t".join(sanitise(str(cell), one_line=True) for cell in row), flush=True)
            return
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text

        table = Table(box=None, pad_edge=False, header_style="" if os.environ.get("NO_COLOR") else "bold")
        for name in header:
            table.add_column(name, overflow="fold")
        for row in rows:
            table.add_row(*(Text(sanitise(_grouped(cell), one_line=True)) for cell in row))
        Console().print(table)

    # stderr: everything else

    def note(self, text: str) -> None:
        """Say what is going on; silent in json and quiet mode."""
        if not (self.json or self.quiet):
            self._stderr(sanitise(text))

    def warning(self, text: str) -> None:
        """Warn in one line, in every mode."""
        self._stderr(json.dumps({"warning": text}) if self.json else f"warning: {sanitise(text)}")

    def error(self, message: str, hint: str = "", exit_code: int = 1) -> None:
        """Report a failure in one line, then the hint, in every mode."""
        if self.json:
            self._stderr(json.dumps({"error": message, "hint": hint, "exit_code": exit_code}))
            return
        self._stderr(f"error: {sanitise(message, one_line=True)}")
        if hint:
            self._stderr(f"hint: {sanitise(hint, one_line=True)}")

    def usage(self, text: str) -> None:
        """Print the help that answers a command line without a command."""
        self._stderr(text)

    def traceback(self, error: BaseException) -> None:
        """Print where an error came from; only COMEM_DEBUG=1 asks for it."""
        self._stderr(sanitise("".join(format_exception(error)).rstrip()))

    def _stderr(self, line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    @contextmanager
    def progress(self, what: str, total: int | None, unit: str) -> Iterator[Progress]:
        """Show a bar on a terminal, else nothing."""
        if self.json or self.quiet or not _is_terminal(sys.stderr):
            yield _NoProgress()
            return
        from tqdm import tqdm

        scale = unit == "B"
        with tqdm(total=total, desc=what, unit=unit, unit_scale=scale, file=sys.stderr, leave=False) as bar:
            yield _Bar(bar)


def _grouped(cell: object) -> str:
    """Write whole numbers with thousands separators, anything else as it is."""
    return f"{cell:,}" if isinstance(cell, int) and not isinstance(cell, bool) else str(cell)


def _is_terminal(stream: TextIO) -> bool:
    return stream.isatty() and os.environ.get("TERM") != "dumb"


def stdout_is_terminal() -> bool:
    """Say whether a person reads stdout."""
    return _is_terminal(sys.stdout)


out = Output()
