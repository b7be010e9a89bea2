"""Find, check and name the benchmark files that users supply with `--data DIR` or COMEM_DATA.

comem ships no benchmark data. Each loader states a `Source`: what the file is called below the data folder, where
users get it and under which licence; every cell keeps licence and sha256 of what it read in its provenance.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from comem_cli.errors import UsageError
from comem_cli.evaluate.task import Example, TaskContext
from comem_cli.model.cache import file_sha256


@dataclass(frozen=True)
class Source:
    """Describe a file that users supply.

    title: of the data set. names: relative to the data folder; the first that is there is taken. origin: where users
    get it. licence: its terms, with the duties that come with them.
    """

    title: str
    names: tuple[str, ...]
    origin: str
    licence: str

    def find(self, context: TaskContext) -> Path:
        """Return the file; raises UsageError (2) with what is missing, where it comes from, and its licence."""
        found = self.find_any(context)
        if found is not None:
            return found
        where = f"not in {context.data}" if context.data else "and no data folder is set"
        wanted = self.names[0] if len(self.names) == 1 else f"one of {', '.join(self.names)}"
        raise UsageError(f"{self.title} needs {wanted}, {where}", self._hint())

    def find_any(self, context: TaskContext) -> Path | None:
        """Return the file, None where it is not there."""
        if context.data is None:
            return None
        return next((context.data / name for name in self.names if (context.data / name).is_file()), None)

    def provenance(self, *files: Path) -> dict[str, str]:
        """Return what a cell keeps of the files read: data set, origin, licence, and sha256 by file name."""
        kept = {"data": self.title, "origin": self.origin, "licence": self.licence}
        for file in files:
            try:
                kept[f"sha256 {file.name}"] = file_sha256(file)
            except OSError as error:
                raise _unreadable(file, error) from error
        return kept

    @contextmanager
    def reading(self, file: Path, line: int = 0) -> Iterator[None]:
        """Turn what a file, or a line of it, of another shape makes the block raise into UsageError (2)."""
        try:
            yield
        except (KeyError, IndexError, TypeError, AttributeError, ValueError) as error:
            reason = f"no {error}" if isinstance(error, KeyError) else str(error)
            where = f"{file}, line {line}" if line else str(file)
            raise UsageError(f"{where} is not what {self.title} holds: {reason}", self._hint()) from error

    def _hint(self) -> str:
        return f"get it from {self.origin} ({self.licence}) and pass --data DIR"


def read_json(path: Path) -> Any:
    """Read a JSON file; raises UsageError (2) where it cannot be read or holds no JSON."""
    try:
        return json.loads(read_text(path))
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path} holds no JSON: {error}", "get the file again") from error


def read_jsonl(path: Path) -> Iterator[tuple[int, Any]]:
    """Read a JSONL file as (line number, value), empty lines left out; raises UsageError (2) naming file and line."""
    for number, line in enumerate(read_text(path).removeprefix("\ufeff").split("\n"), 1):
        if not line.strip():
            continue
        try:
            yield number, json.loads(line)
        except (ValueError, RecursionError) as error:
            raise UsageError(f"{path}, line {number} is no JSON", "write one JSON object a line") from error


def read_text(path: Path) -> str:
    """Read a UTF-8 file; raises UsageError (2)."""
    if path.exists() and not path.is_file():  # a pipe gives its text once, and it is read for its digest as well
        raise UsageError(f"{path} is no file", "pass a file on disk")
    try:
        with path.open(encoding="utf-8", newline="") as file:  # a text keeps its own line ends
            return file.read()
    except OSError as error:
        raise _unreadable(path, error) from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{path} is not UTF-8 text", "get the file again") from error


def draw(ids: Iterable[str], n: int, seed: int) -> list[str]:
    """Return n ids, sorted: the first n of a shuffle by `seed` over the sorted ids; all where n is 0.

    Fewer where there are fewer. Raises UsageError (2) where one is there twice.
    """
    ordered = sorted(ids)
    for one, following in pairwise(ordered):
        if one == following:
            raise UsageError(f"two questions have the id {one}", "give each question an id of its own")
    if not n:
        return ordered
    random.Random(seed).shuffle(ordered)
    return sorted(ordered[:n])


def take(examples: Sequence[Example], n: int, seed: int) -> tuple[Example, ...]:
    """Return n examples by id, drawn as `draw` says."""
    chosen = draw((one.id for one in examples), n, seed)
    by_id = {one.id: one for one in examples}
    return tuple(by_id[name] for name in chosen)


def _unreadable(path: Path, error: OSError) -> UsageError:
    return UsageError(f"cannot read {path}: {error.strerror}", "check the path and its permissions")
