"""Keep judgements in a JSONL file, so that a rerun asks only for those that are not there.

A line: key (digest of the whole request: model, prompt, settings), model, label, raw, attempts. A judgement is on disk
before the next request is sent. Failed ones are not kept: a rerun tries them again.
"""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

from comem_cli.errors import UsageError
from comem_cli.evaluate.verdict import LABELS, Judgement

_BEGIN = b'{"key": "'  # of every line


def request_key(body: bytes) -> str:
    """Return 32 hex characters that stand for a request."""
    return hashlib.blake2b(body, digest_size=16).hexdigest()


class JudgementFile:
    """Append judgements to a JSONL file and find them again by key; without a path nothing is kept on disk."""

    def __init__(self, path: Path | None) -> None:
        """Open or create; raises UsageError (2) for a file that holds something else."""
        self._known: dict[str, Judgement] = {}
        self._file = None
        if path is None:
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        self._known = _read(path) if path.exists() else {}
        self._file = path.open("a", encoding="ascii")

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()

    def get(self, key: str) -> Judgement | None:
        """Return what was judged before, or None."""
        return self._known.get(key)

    def add(self, key: str, model: str, judgement: Judgement) -> None:
        """Keep one judgement durably, unless it failed."""
        if judgement.failed:
            return
        self._known[key] = judgement
        if self._file is not None:
            line = {"key": key, "model": model, "label": judgement.label, "raw": judgement.raw}
            self._file.write(json.dumps({**line, "attempts": judgement.attempts}) + "\n")
            self._file.flush()
            os.fsync(self._file.fileno())


def _read(path: Path) -> dict[str, Judgement]:
    """Read the judgements, then cut off what a crash left of a last line."""
    known = {}
    try:
        data = path.read_bytes()
        whole = data.rfind(b"\n") + 1
        rest = data[whole : whole + len(_BEGIN)]
        if not _BEGIN.startswith(rest):
            raise ValueError("this file ends in something else")
        for line in data[:whole].splitlines():
            given = json.loads(line)
            known[str(given["key"])] = _judgement(given)
        if rest:
            os.truncate(path, whole)
    except (ValueError, TypeError, LookupError) as error:
        raise UsageError(f"{path} holds no judgements", "pass a file that the judge wrote, or a new one") from error
    return known


def _judgement(given: dict[str, Any]) -> Judgement:
    if given["label"] not in LABELS or not isinstance(given["raw"], str):
        raise ValueError("no judgement")
    return Judgement(given["label"], given["raw"], int(given["attempts"]))
