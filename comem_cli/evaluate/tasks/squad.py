"""Questions over Wikipedia articles in SQuAD's JSON: XQuAD (English) and the SQuAD development sets.

One corpus for all questions: an article a document (its paragraphs joined by an empty line), or with
documents=paragraph a paragraph a document. Evidence is the first gold answer where the file places it. Questions that
the file marks as impossible are left out and counted.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from comem_cli.evaluate.task import Cell, Document, Example, Span, TaskContext
from comem_cli.evaluate.tasks import qa
from comem_cli.evaluate.tasks.data_files import Source, read_json, take
from comem_cli.evaluate.tasks.spec import Builder, Options

XQUAD = Source(
    "XQuAD (English)",
    ("qa/xquad.en.json", "xquad.en.json"),
    "https://github.com/google-deepmind/xquad",
    "CC BY-SA 4.0: name the source, share alike",
)
SQUAD = Source(
    "SQuAD",
    ("qa/dev-v1.1.json", "dev-v1.1.json", "qa/dev-v2.0.json", "dev-v2.0.json"),
    "https://rajpurkar.github.io/SQuAD-explorer/",
    "CC BY-SA 4.0: name the source, share alike",
)
DOCUMENTS = ("article", "paragraph")


@dataclass(frozen=True)
class Squad:
    """Load the questions of one SQuAD file; documents: "article" or "paragraph"."""

    task: str
    source: Source
    documents: str = DOCUMENTS[0]

    def cell(self, context: TaskContext) -> Cell:
        """Load the examples; raises UsageError (2) where the file is missing or is no SQuAD file."""
        path = self.source.find(context)
        given = read_json(path)
        with self.source.reading(path):
            examples, impossible = self._examples(given)
        return Cell(
            task=self.task,
            label="" if self.documents == DOCUMENTS[0] else self.documents,
            cohort=f"{self.task}/comem-1 file={path.name} documents={self.documents} {qa.PROMPT}",
            scorer=qa.QA_SCORER,
            max_new_tokens=qa.QA_NEW_TOKENS,
            examples=take(examples, context.n, context.seed),
            stop=qa.QA_STOP,
            provenance=_provenance(self.source, path, context, len(examples), impossible),
        )

    def _examples(self, given: Any) -> tuple[list[Example], int]:
        corpus = qa.Corpus()
        questions: list[tuple[str, str, int, dict[str, Any]]] = []  # document, article, offset, question
        for article in given["data"]:
            for name, start, paragraph in self._placed(corpus, article):
                questions += [(name, article["title"], start, one) for one in paragraph["qas"]]
        documents = corpus.documents()
        texts = {one.name: one for one in documents}
        answerable = [one for one in questions if not one[3].get("is_impossible")]
        made = [_example(one, documents, texts[name], group, start) for name, group, start, one in answerable]
        return made, len(questions) - len(made)

    def _placed(self, corpus: qa.Corpus, article: Any) -> Iterator[tuple[str, int, dict[str, Any]]]:
        """Add an article to the corpus; yield for each paragraph its document, its start there, and itself."""
        title, paragraphs = article["title"], article["paragraphs"]
        if self.documents == "paragraph":
            for number, paragraph in enumerate(paragraphs, 1):
                yield corpus.add(f"{title} {number:03d}", paragraph["context"]), 0, paragraph
            return
        name = corpus.add(title, "\n\n".join(one["context"] for one in paragraphs))
        start = 0
        for paragraph in paragraphs:
            yield name, start, paragraph
            start += len(paragraph["context"]) + 2


def _example(
    given: dict[str, Any], documents: tuple[Document, ...], document: Document, group: str, start: int
) -> Example:
    answers = qa.answers(one["text"] for one in given["answers"])
    first = given["answers"][0]
    at = start + first["answer_start"]
    span = Span(document.name, at, at + len(first["text"]))
    if document.text[span.start : span.end] != first["text"]:
        raise ValueError(f"question {given['id']}: the answer is not where answer_start points")
    question = given["question"].strip()
    return Example(given["id"], documents, question, qa.prompt(question), answers, (span,), group=group)


def _provenance(source: Source, path: Path, context: TaskContext, there: int, impossible: int) -> dict[str, str]:
    counts = {"questions": str(there), "impossible questions left out": str(impossible), "seed": str(context.seed)}
    return source.provenance(path) | counts


def _builder(task: str, source: Source) -> Builder:
    def build(options: Options) -> Squad:
        return Squad(task, source, options.choice("documents", DOCUMENTS))

    return build


SQUAD_TASKS: dict[str, Builder] = {"xquad": _builder("xquad", XQUAD), "squad": _builder("squad", SQUAD)}
