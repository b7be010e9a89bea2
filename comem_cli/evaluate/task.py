"""What every benchmark gives: cells of examples, each with documents, a question, gold answers and evidence.

    spec "niah_multikey_1:4096" -> Task -> Task.cell(context) -> Cell(examples)

A cell is one task at one size: the unit of a table. Its digest covers every text in it, so that records of different
examples are never mixed. Importing this loads neither torch nor numpy.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import tokenizers


@dataclass(frozen=True)
class Document:
    """Hold one document; `name`: a relative POSIX path, unique among the documents of an example."""

    name: str
    text: str


@dataclass(frozen=True)
class Span:
    """Point at evidence: the characters [start, end) of a document's text."""

    document: str
    start: int
    end: int


@dataclass(frozen=True)
class Example:
    """Hold one question.

    documents: what is ingested; examples over one corpus share one tuple. question: what the selector gets. prompt:
    what the model reads after the pack, the question and the answer prefix included. evidence: spans of which every
    one is needed; empty where it is not known. group: what the example shares with others (an article, a
    conversation), for cluster intervals. category: as the benchmark calls it.
    """

    id: str
    documents: tuple[Document, ...]
    question: str
    prompt: str
    answers: tuple[str, ...]
    evidence: tuple[Span, ...] = ()
    group: str = ""
    category: str = ""


@dataclass(frozen=True)
class Cell:
    """Hold the examples of one task at one size.

    label: the size as a table names it. cohort: what produced the texts; records of different cohorts are never pooled.
    scorer: a key of `score.SCORERS`. provenance: generator, seed, tokenizer, libraries, data files, licence.
    """

    task: str
    label: str
    cohort: str
    scorer: str
    max_new_tokens: int
    examples: tuple[Example, ...]
    stop: tuple[str, ...] = ()
    provenance: Mapping[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Return what a table and a record call this cell."""
        return f"{self.task}:{self.label}" if self.label else self.task

    def digest(self) -> str:
        """Return 32 hex characters over everything that decides a score: texts, answers, scorer, limits."""
        state = hashlib.blake2b(digest_size=16)
        head = [self.task, self.label, self.cohort, self.scorer, self.max_new_tokens, self.stop]
        state.update(json.dumps(head).encode())
        corpora: dict[int, str] = {}  # by identity: examples of one corpus share the tuple
        for one in self.examples:
            if id(one.documents) not in corpora:
                texts = [[document.name, document.text] for document in one.documents]
                corpora[id(one.documents)] = hashlib.blake2b(json.dumps(texts).encode(), digest_size=16).hexdigest()
            spans = [[span.document, span.start, span.end] for span in one.evidence]
            rest = [one.id, corpora[id(one.documents)], one.question, one.prompt, one.answers, spans, one.group]
            state.update(json.dumps([*rest, one.category]).encode())
        return state.hexdigest()


@dataclass(frozen=True)
class TaskContext:
    """Hold what a task needs to make its cell.

    tokenizer: of the model, for lengths in tokens; tokenizer_hash names it. data: the folder with the user's benchmark
    files, None where there is none. n: examples wanted. A task without random draws takes the first n of a shuffle
    by `seed`, or all where n is 0.
    """

    tokenizer: tokenizers.Tokenizer
    tokenizer_hash: str
    data: Path | None
    n: int
    seed: int = 42


class Task(Protocol):
    """One benchmark task at one size: a frozen dataclass, deterministic from the context."""

    def cell(self, context: TaskContext) -> Cell:
        """Make or load the examples.

        Raises: UsageError (2) with a hint where data or a package is missing, or a file is not what it should be.
        """
        ...
