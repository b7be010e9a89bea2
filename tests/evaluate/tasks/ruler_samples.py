"""What the RULER tests share: a context with a tokenizer of words, and the whole input of an example.

A run of letters and digits is one token and so is a run of punctuation: a noise line has 25, as with real tokenizers.
"""

from __future__ import annotations

import functools
from pathlib import Path

from tokenizers import Tokenizer, models, pre_tokenizers

from comem_cli.evaluate.task import Example, TaskContext
from comem_cli.evaluate.tasks.ruler_fit import Record

PROSE = (
    "The harbour was quiet. Nobody had seen the ferry since noon! Was it late again? "
    "The keeper of the light wrote the hour down. Rain came in from the west, and the gulls went inland. "
)


@functools.cache
def _tokenizer() -> Tokenizer:
    tokenizer = Tokenizer(models.WordLevel({"?": 0}, unk_token="?"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return tokenizer


def context(n: int = 3, data: Path | None = None, seed: int = 42) -> TaskContext:
    return TaskContext(_tokenizer(), "words", data, n, seed)


def with_book(folder: Path) -> Path:
    """Make a data folder with one book of 6,800 words."""
    (folder / "books").mkdir()
    (folder / "books" / "harbour.txt").write_text(PROSE * 200, encoding="utf-8")
    return folder


def whole(given: Example | Record) -> str:
    """Return the full input with the answer prefix."""
    document = given.document if isinstance(given, Record) else given.documents[0].text
    return document + given.prompt


def quoted(given: Example | Record) -> list[str]:
    """Return the texts that the evidence points at."""
    if isinstance(given, Record):
        return [given.document[start:end] for start, end in given.evidence]
    assert {span.document for span in given.evidence} <= {"context.txt"}
    return [given.documents[0].text[span.start : span.end] for span in given.evidence]
