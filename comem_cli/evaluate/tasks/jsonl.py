"""Your own benchmark as JSONL, one question a line: spec `jsonl:PATH`.

    {"question": "...", "answers": ["..."],
     "documents": [{"name": "a.md", "text": "..."}]   or   "corpus": "folder, relative to the file",
     "evidence": [{"document": "a.md", "start": 3, "end": 9}, {"text": "..."}]?, "id"?, "group"?, "category"?}

A corpus is read as `comem ingest` reads it; the text of a page `a.html` is the document `a.html.txt`. Evidence by text
must stand once in the documents, or once in the document that is named with it. Lines with equal documents share one
store. Every error names file and line.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from comem_cli.corpus.extract import Extracted, extract
from comem_cli.corpus.markup import is_html
from comem_cli.corpus.walk import Skip, walk
from comem_cli.errors import UsageError
from comem_cli.evaluate.task import Cell, Document, Example, Span, TaskContext
from comem_cli.evaluate.tasks import qa
from comem_cli.evaluate.tasks.data_files import read_jsonl, take
from comem_cli.evaluate.tasks.spec import Builder, Options
from comem_cli.model.cache import file_sha256

SCORERS = ("qa_f1", "answer_contained", "exact_match", "string_match_all", "string_match_part")
_HINT = 'a line is {"question", "answers", "documents" or "corpus"}, "evidence", "id", "group" if you like'


@dataclass(frozen=True)
class Jsonl:
    """Load the questions of the file at `path`; scorer: one of SCORERS; max_new_tokens of an answer."""

    path: Path
    scorer: str = SCORERS[0]
    max_new_tokens: int = qa.QA_NEW_TOKENS

    def cell(self, context: TaskContext) -> Cell:
        """Load the examples; raises UsageError (2) naming file and line."""
        corpora = _Corpora(self.path.parent)
        examples = []
        lines: dict[str, int] = {}  # by id
        for number, given in read_jsonl(self.path):
            try:
                one = _example(number, given, corpora)
                if lines.setdefault(one.id, number) != number:
                    raise ValueError(f"line {lines[one.id]} has the id {one.id} as well")
                examples.append(one)
            except (KeyError, TypeError, ValueError) as error:
                reason = f"{error.args[0]} is missing" if isinstance(error, KeyError) else str(error)
                raise UsageError(f"{self.path}, line {number}: {reason}", _HINT) from error
        if not examples:
            raise UsageError(f"{self.path} holds no question", _HINT)
        digest = file_sha256(self.path)
        return Cell(
            task="jsonl",
            label=self.path.stem,
            cohort=f"jsonl/{digest[:12]} {qa.PROMPT}",
            scorer=self.scorer,
            max_new_tokens=self.max_new_tokens,
            examples=take(examples, context.n, context.seed),
            stop=qa.QA_STOP,
            provenance={
                "data": self.path.name,
                f"sha256 {self.path.name}": digest,
                "licence": "the user's own",
                "questions": str(len(examples)),
                "seed": str(context.seed),
            },
        )


@dataclass
class _Corpora:
    """Read each corpus once, so that examples over one share one tuple."""

    folder: Path
    made: dict[str, tuple[Document, ...]] = field(default_factory=dict)

    def get(self, given: Mapping[str, Any]) -> tuple[Document, ...]:
        """Return the documents of a line; raises KeyError, TypeError or ValueError for what is wrong in it."""
        if ("documents" in given) == ("corpus" in given):
            raise ValueError('there is one of "documents" and "corpus"')
        if "corpus" in given:
            key = _text(given, "corpus")
            if key not in self.made:
                self.made[key] = _folder(self.folder, key)
            return self.made[key]
        listed = [Document(_text(one, "name"), _text(one, "text")) for one in given["documents"]]
        key = hashlib.sha256(json.dumps([[one.name, one.text] for one in listed]).encode()).hexdigest()
        return self.made.setdefault(key, _checked(listed))


def _folder(base: Path, name: str) -> tuple[Document, ...]:
    if not _is_inside(name) or not (base / name).is_dir():
        raise ValueError(f"corpus {name} is no folder below that of the file")
    try:
        items = list(walk([base / name]))
    except UsageError as error:  # it is a store, or may not be read
        raise ValueError(f"corpus {name}: {error.message}") from error
    listed = []
    for item in items:
        got = item if isinstance(item, Skip) else extract(item)
        if isinstance(got, Extracted):
            # The text of a page is no page any more.
            listed.append(Document(f"{item.path}.txt" if got.kind == "html" else item.path, got.text))
        elif got.failed:
            raise ValueError(f"corpus {name}: {got.path}: {got.detail}")
    return _checked(listed)


def _checked(documents: Sequence[Document]) -> tuple[Document, ...]:
    if not documents:
        raise ValueError("there is no document")
    names = {one.name for one in documents}
    if len(names) < len(documents):
        raise ValueError("two documents have one name")
    for one in documents:
        if not _is_inside(one.name):
            raise ValueError(f"document name {one.name!r} is no relative path")
        if is_html(one.name, one.text):
            raise ValueError(f"document {one.name} would be taken for HTML; give its text, named *.txt")
    return tuple(sorted(documents, key=lambda one: one.name.encode()))


def _is_inside(path: str) -> bool:
    parts = PurePosixPath(path).parts
    return bool(parts) and parts[0] != "/" and ".." not in parts and "\0" not in path


def _example(number: int, given: Any, corpora: _Corpora) -> Example:
    if not isinstance(given, dict):
        raise ValueError("it is no JSON object")
    documents = corpora.get(given)
    question = _text(given, "question").strip()
    if not isinstance(given["answers"], list):
        raise ValueError("answers is no list of texts")
    return Example(
        id=str(given.get("id", f"{number:06d}")),
        documents=documents,
        question=question,
        prompt=qa.prompt(question),
        answers=qa.answers(given["answers"]),
        evidence=tuple(_span(one, documents) for one in given.get("evidence", [])),
        group=str(given.get("group", "")),
        category=str(given.get("category", "")),
    )


def _span(given: Mapping[str, Any], documents: Sequence[Document]) -> Span:
    if not isinstance(given, dict):
        raise ValueError("evidence is no JSON object")
    texts = {one.name: one.text for one in documents}
    if "document" in given:
        name = _text(given, "document")
        if name not in texts:
            raise ValueError(f"evidence names {name}, which is no document")
        texts = {name: texts[name]}
    if "text" in given:
        return _only_place(_text(given, "text"), texts)
    if not all(type(given[key]) is int for key in ("start", "end")) or "document" not in given:
        raise ValueError('evidence is {"document", "start", "end"} or {"text"}')
    start, end = given["start"], given["end"]
    if not 0 <= start < end <= len(texts[name]):
        raise ValueError(f"evidence [{start}, {end}) is not inside {name}")
    return Span(name, start, end)


def _only_place(wanted: str, texts: Mapping[str, str]) -> Span:
    found = [(name, one) for name, text in texts.items() for one in re.finditer(re.escape(wanted), text)]
    if len(found) != 1:
        raise ValueError(f"evidence {wanted[:40]!r} stands {len(found)} times in the documents")
    name, at = found[0]
    return Span(name, *at.span())


def _text(given: Mapping[str, Any], key: str) -> str:
    value = given[key]
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"{key} is no text")
    if any("\ud800" <= letter <= "\udfff" for letter in value):
        raise ValueError(f"{key} is not Unicode text")
    return value


def _build(options: Options) -> Jsonl:
    path = options.size()
    if not path:
        raise UsageError("jsonl needs a file", "pass jsonl:questions.jsonl")
    tokens = options.whole("max_new_tokens", qa.QA_NEW_TOKENS, 1, 4096)
    return Jsonl(Path(path).expanduser(), options.choice("scorer", SCORERS), tokens)


JSONL_TASKS: dict[str, Builder] = {"jsonl": _build}
