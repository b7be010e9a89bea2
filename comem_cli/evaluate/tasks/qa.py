"""What the loaders of question-answering files share: the corpus under construction, the prompt, the limits.

The prompt is comem's own template (`read/text.py`), the same for all of them and for `comem ask`: scores compare the
arms of one run, not published numbers that stand on other prompts.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from comem_cli.evaluate.task import Document, Span
from comem_cli.read.text import STOP, TEMPLATE, render

QA_STOP = (*STOP, "\n")  # these answers are one line
QA_NEW_TOKENS = 32
QA_SCORER = "qa_f1"
PROMPT = "prompt=comem-1"  # in cohorts: which wording
_UNSAFE = re.compile(r"[/\\\x00-\x1f\x7f]")
_NAME_BYTES = 180


def prompt(question: str) -> str:
    """Return what the model reads after the pack; raises UsageError (2) for an empty question."""
    return render(TEMPLATE, question)


def answers(given: Iterable[Any]) -> tuple[str, ...]:
    """Return the distinct gold answers in their order; raises ValueError where there is none or one is no text."""
    distinct = tuple(dict.fromkeys(given))
    if not distinct or not all(isinstance(one, str) and one.strip() for one in distinct):
        raise ValueError(f"the answers {list(distinct)} are no texts")
    return distinct


class Corpus:
    """Collect documents; equal ones are kept once, different ones never share a name."""

    def __init__(self) -> None:
        self._names: dict[tuple[str, str], str] = {}
        self._taken: set[str] = set()

    def add(self, title: str, text: str) -> str:
        """Add a document and return its name: its title made a file name, with a number where that is taken."""
        if (title, text) in self._names:
            return self._names[title, text]
        name = base = file_name(title)
        number = 1
        while name.casefold() in self._taken:
            number += 1
            name = f"{base} ({number})"
        self._taken.add(name.casefold())
        self._names[title, text] = f"{name}.txt"
        return f"{name}.txt"

    def documents(self) -> tuple[Document, ...]:
        """Return the documents by the bytes of their names, the order that a store keeps."""
        made = [Document(name, text) for (_, text), name in self._names.items()]
        return tuple(sorted(made, key=lambda one: one.name.encode()))


def file_name(title: str) -> str:
    """Turn a title into a file name without suffix: no separators or control characters, not hidden, not long."""
    name = _UNSAFE.sub("_", title).strip()
    name = name.encode()[:_NAME_BYTES].decode(errors="ignore").strip() or "_"
    return f"_{name}" if name.startswith((".", "~")) else name


def stripped(document: str, text: str, start: int, end: int) -> Span:
    """Point at text[start:end] without the blanks around it."""
    inner = text[start:end]
    first = start + len(inner) - len(inner.lstrip())
    return Span(document, first, max(first, start + len(inner.rstrip())))
