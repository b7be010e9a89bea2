"""One JSON line an answer: what an evaluation run writes as it goes, resumes from, and is reported from.

A record is on disk (flushed and fsynced) before the next answer is computed, so a killed run loses at most one. A last
line that a crash cut off is dropped on resume. (cell digest, example, arm) identifies a record; a run never writes one
twice.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from comem_cli.errors import UsageError

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
        """Open or create; raises UsageError (2) for a file that holds something else."""
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        self.done: dict[Key, Record] = {record.key: record for record in read_records(path)} if path.exists() else {}
        _drop_cut_line(path)
        self._file = path.open("a", encoding="utf-8")

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
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read {path}: {error}", "pass a file that comem eval wrote") from error
    for number, line in enumerate(text.split("\n")[:-1], 1):
        try:
            yield _record(json.loads(line))
        except (ValueError, TypeError, KeyError) as error:
            raise UsageError(f"{path}, line {number} is no record", "pass a file that comem eval wrote") from error


def _record(given: dict[str, Any]) -> Record:
    return Record(**{**given, "chunks": tuple(given["chunks"])})


def _drop_cut_line(path: Path) -> None:
    """Cut what a crash left of a line; raises UsageError (2) where it is not the beginning of a record."""
    if not path.exists():
        return
    data = path.read_bytes()
    whole = data.rfind(b"\n") + 1
    rest = data[whole : whole + len(_BEGIN)]
    if not _BEGIN.startswith(rest):
        raise UsageError(f"{path} is no file of records", "pass another --out FILE")
    if rest:
        with path.open("r+b") as file:
            file.truncate(whole)
