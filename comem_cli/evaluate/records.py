"""One JSON line an answer: what an evaluation run writes as it goes, resumes from, and is reported from.

A record is on disk (flushed and fsynced) before the next answer is computed, so a killed run loses at most one. A last
line that a crash cut off is dropped on resume. (cell digest, example, arm) identifies a record; a run never writes one
twice, and one run at a time writes a file (flock).
"""

from __future__ import annotations

import fcntl
import json
import math
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TextIO

from comem_cli.errors import LockedError, UsageError

_BEGIN = b'{"cell":'  # of every record
Key = tuple[str, str, str]  # cell digest, example id, arm


@dataclass(frozen=True)
class Record:
    """Hold one arm's answer to one example.

    arm: its spec, "replay" or "comem:j=12,mode=chunk". score: 0 to 1. hit: all evidence was in the pack; recall: the
    share of evidence spans that was; None where the evidence is not known. chunks: keys of the pack in its order.
    error: why there is no answer (no chunk shares a term); it scores 0. timing_ms: ms by boundary. identity: digest of
    everything else that decides the answer (model, Write settings, selector, adapter, dtype).
    """

    cell: str
    cell_digest: str
    cohort: str
    example: str
    group: str
    category: str
    arm: str
    identity: str
    prediction: str
    score: float
    hit: bool | None
    recall: float | None
    chunks: tuple[str, ...] = ()
    pack_tokens: int = 0
    new_tokens: int = 0
    finish: str = ""
    timing_ms: Mapping[str, float] = field(default_factory=dict)
    extra: Mapping[str, float] = field(default_factory=dict)
    error: str = ""

    @property
    def key(self) -> Key:
        """Return what identifies the record."""
        return self.cell_digest, self.example, self.arm


class RecordFile:
    """Append records to a JSONL file; a context manager. `done` holds those that were there already, by key."""

    def __init__(self, path: Path) -> None:
        """Open or create; raises UsageError (2) for what holds something else, LockedError (11) where a run has it."""
        self.path = path
        if path.exists() and not path.is_file():  # reading a device or a pipe might never end
            raise UsageError(f"{path} is no file", "pass another --out FILE")
        path.parent.mkdir(parents=True, exist_ok=True)
        with ExitStack() as stack:
            self._file = stack.enter_context(path.open("a", encoding="utf-8"))
            _lock(self._file, path)
            self.done: dict[Key, Record] = {record.key: record for record in read_records(path)}
            _drop_cut_line(path)
            stack.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()

    def add(self, record: Record) -> None:
        """Write one record durably."""
        self._file.write(json.dumps(asdict(record), ensure_ascii=True, separators=(",", ":")) + "\n")
        self._file.flush()
        os.fsync(self._file.fileno())
        self.done[record.key] = record


def read_records(path: Path) -> Iterator[Record]:
    """Read the records of a file; a last line without its newline is left out.

    Raises: UsageError (2) for a file that cannot be read or a line that is no record.
    """
    hint = "pass a file that comem eval wrote"
    if path.exists() and not path.is_file():
        raise UsageError(f"{path} is no file", hint)
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}", hint) from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{path} is not UTF-8 text", hint) from error
    for number, line in enumerate(text.split("\n")[:-1], 1):
        try:
            yield _record(json.loads(line))
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise UsageError(f"{path}, line {number} is no record", hint) from error


def _record(given: dict[str, Any]) -> Record:
    for name, value in given.items():
        if not _FIELDS[name](value):
            raise ValueError(name)
    return Record(**{**given, "chunks": tuple(given["chunks"])})


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_score(value: Any) -> bool:
    return _is_number(value) and math.isfinite(value)


def _is_count(value: Any) -> bool:
    return type(value) is int and value >= 0


def _is_figures(value: Any) -> bool:
    return isinstance(value, dict) and all(map(_is_number, value.values()))  # a KL may be infinite


_FIELDS: dict[str, Callable[[Any], bool]] = {
    **dict.fromkeys(("cell", "cell_digest", "cohort", "example", "group", "category", "arm", "identity"), _is_text),
    **dict.fromkeys(("prediction", "finish", "error"), _is_text),
    "score": _is_score,
    "hit": lambda value: value is None or isinstance(value, bool),
    "recall": lambda value: value is None or _is_score(value),
    "chunks": lambda value: isinstance(value, list) and all(map(_is_text, value)),
    **dict.fromkeys(("pack_tokens", "new_tokens"), _is_count),
    **dict.fromkeys(("timing_ms", "extra"), _is_figures),
}


def _lock(file: TextIO, path: Path) -> None:
    """Keep other runs out until the file is closed."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        hint = "wait for it to end, or pass another --out FILE"
        raise LockedError(f"another run writes its answers to {path}", hint) from error


def _drop_cut_line(path: Path) -> None:
    """Cut what a crash left of a line; raises UsageError (2) where it is not the beginning of a record."""
    data = path.read_bytes()
    whole = data.rfind(b"\n") + 1
    rest = data[whole : whole + len(_BEGIN)]
    if not _BEGIN.startswith(rest):
        raise UsageError(f"{path} is no file of records", "pass another --out FILE")
    if rest:
        with path.open("r+b") as file:
            file.truncate(whole)
