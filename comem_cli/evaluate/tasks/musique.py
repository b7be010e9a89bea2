"""MuSiQue: questions of two to four hops over ten to twenty paragraphs each.

Two layouts are read: MuSiQue's own JSONL, whose supporting paragraphs are the evidence, and a JSON list of
{question, answers, ctxs: [{title, text}]}, which does not tell the supporting ones, so that the evidence is unknown.
One corpus of all paragraphs of all questions, or with documents=own each question's own. Questions that the file marks
as unanswerable are left out and counted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from comem_cli.evaluate.task import Cell, Document, Example, TaskContext
from comem_cli.evaluate.tasks import qa
from comem_cli.evaluate.tasks.data_files import Source, read_json, read_jsonl, take
from comem_cli.evaluate.tasks.spec import Builder, Options

MUSIQUE = Source(
    "MuSiQue",
    ("qa/musique_ans_v1.0_dev.jsonl", "musique_ans_v1.0_dev.jsonl", "qa/musique_150.json", "musique_s.json"),
    "https://github.com/StonyBrookNLP/musique",
    "CC BY 4.0: name the source",
)
DOCUMENTS = ("all", "own")


@dataclass(frozen=True)
class _Question:
    id: str
    question: str
    answers: tuple[str, ...]
    passages: list[tuple[str, str, bool]]  # title, text, supporting


@dataclass(frozen=True)
class Musique:
    """Load the questions; documents: "all" (one corpus) or "own" (a corpus a question)."""

    documents: str = DOCUMENTS[0]

    def cell(self, context: TaskContext) -> Cell:
        """Load the examples; raises UsageError (2) where the file is missing or is no MuSiQue file."""
        path = MUSIQUE.find(context)
        given = _read(path)
        with MUSIQUE.reading(path):
            answerable = [(number, one) for number, one in enumerate(given) if one.get("answerable", True)]
            examples = _examples([_question(number, one) for number, one in answerable], self.documents)
        return Cell(
            task="musique",
            label="" if self.documents == DOCUMENTS[0] else self.documents,
            cohort=f"musique/comem-1 file={path.name} documents={self.documents} {qa.PROMPT}",
            scorer=qa.QA_SCORER,
            max_new_tokens=qa.QA_NEW_TOKENS,
            examples=take(examples, context.n, context.seed),
            stop=qa.QA_STOP,
            provenance=MUSIQUE.provenance(path)
            | {
                "questions": str(len(examples)),
                "unanswerable questions left out": str(len(given) - len(examples)),
                "seed": str(context.seed),
            },
        )


def _read(path: Path) -> list[Any]:
    return [one for _, one in read_jsonl(path)] if path.suffix == ".jsonl" else list(read_json(path))


def _question(number: int, given: dict[str, Any]) -> _Question:
    if "paragraphs" in given:
        answers = (given["answer"], *given.get("answer_aliases", ()))
        passages = [(one["title"], one["paragraph_text"], one["is_supporting"]) for one in given["paragraphs"]]
        return _Question(given["id"], given["question"].strip(), qa.answers(answers), passages)
    passages = [(one["title"], one["text"], False) for one in given["ctxs"]]
    return _Question(f"{number:04d}", given["question"].strip(), qa.answers(given["answers"]), passages)


def _examples(questions: Sequence[_Question], documents: str) -> list[Example]:
    shared = qa.Corpus()
    added = []
    for one in questions:
        corpus = shared if documents == "all" else qa.Corpus()
        added.append((one, corpus, [_add(corpus, title, text) for title, text, _ in one.passages]))
    whole = shared.documents()
    return [_example(one, names, whole or corpus.documents()) for one, corpus, names in added]


def _add(corpus: qa.Corpus, title: str, text: str) -> str:
    return corpus.add(title or "passage", _text(title, text))


def _text(title: str, text: str) -> str:
    return f"{title}\n{text}" if title else text


def _example(one: _Question, names: Sequence[str], documents: tuple[Document, ...]) -> Example:
    supporting = [
        qa.stripped(name, _text(title, text), 0, len(_text(title, text)))
        for name, (title, text, is_supporting) in zip(names, one.passages, strict=True)
        if is_supporting
    ]
    return Example(
        one.id, documents, one.question, qa.prompt(one.question), one.answers, tuple(dict.fromkeys(supporting))
    )


def _build(options: Options) -> Musique:
    return Musique(options.choice("documents", DOCUMENTS))


MUSIQUE_TASKS: dict[str, Builder] = {"musique": _build}
