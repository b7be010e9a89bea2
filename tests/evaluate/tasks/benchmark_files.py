"""The user's benchmark files, where they are, and contexts for tasks.

The files are found through COMEM_DATA, else in `shared/data` beside the checkout. They are not part of the project:
without them the tests that count what they hold are skipped, and say so.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from comem_cli.evaluate.task import Example, TaskContext
from tests.tiny import tiny_tokenizer

BESIDE = Path(__file__).parents[4] / "shared" / "data"


def user_data(*names: str) -> Path:
    """Return the data folder; skips the test where one of the files is not in it."""
    folder = Path(os.environ.get("COMEM_DATA") or BESIDE)
    missing = [name for name in names if not (folder / name).exists()]
    if missing:
        pytest.skip(f"no {missing[0]} in COMEM_DATA or beside the checkout")
    return folder


def context(data: Path | None, n: int = 0, seed: int = 42) -> TaskContext:
    """Make a context with the tiny byte-level tokenizer."""
    return TaskContext(tiny_tokenizer(), "tiny", data, n, seed)


def write_json(path: Path, content: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content), encoding="utf-8")
    return path


def write_lines(path: Path, lines: Iterable[Any]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return path


def evidence_texts(example: Example) -> list[str]:
    """Return the text of each evidence span."""
    texts = {document.name: document.text for document in example.documents}
    return [texts[span.document][span.start : span.end] for span in example.evidence]
