"""HotpotQA: two paragraphs that answer, eight that distract, and the sentences that support the answer.

Two layouts are read: the development file of the distractor setting, and a sample in which the two gold paragraphs are
`para_a` and `para_b`. One corpus of all paragraphs of all questions, or with documents=own each question's own. A
document is the title and, on the next line, the sentences. Evidence: the supporting sentences; where a file names one
that is not there, the evidence of that question is unknown, and counted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from comem_cli.evaluate.task import Cell, Document, Example, Span, TaskContext
from comem_cli.evaluate.tasks import qa
from comem_cli.evaluate.tasks.data_files import Source, read_json, take
from comem_cli.evaluate.tasks.spec import Builder, Options

HOTPOTQA = Source(
    "HotpotQA",
    ("qa/hotpot_dev_distractor_v1.json", "hotpot_dev_distractor_v1.json", "qa/hotpotqa_sample100.json"),
    "https://hotpotqa.github.io",
    "CC BY-SA 4.0: name the source, share alike",
)
DOCUMENTS = ("all", "own")


@dataclass(frozen=True)
class _Question:
    id: str
    question: str
    answer: str
    category: str
    paragraphs: list[tuple[str, list[str]]]
    facts: list[tuple[str, int]]  # title, sentence


@dataclass(frozen=True)
class HotpotQA:
    """Load the questions; documents: "all" (one corpus) or "own" (a corpus a question)."""

    documents: str = DOCUMENTS[0]

    def cell(self, context: TaskContext) -> Cell:
        """Load the examples; raises UsageError (2) where the file is missing or is no HotpotQA file."""
        path = HOTPOTQA.find(context)
        given = read_json(path)
        with HOTPOTQA.reading(path):
            examples, unknown = _examples([_question(one) for one in given], self.documents)
        return Cell(
            task="hotpotqa",
            label="" if self.documents == DOCUMENTS[0] else self.documents,
            cohort=f"hotpotqa/comem-1 file={path.name} documents={self.documents} {qa.PROMPT}",
            scorer=qa.QA_SCORER,
            max_new_tokens=qa.QA_NEW_TOKENS,
            examples=take(examples, context.n, context.seed),
            stop=qa.QA_STOP,
            provenance=HOTPOTQA.provenance(path)
            | {
                "questions": str(len(examples)),
                "questions whose evidence the file misplaces": str(unknown),
                "seed": str(context.seed),
            },
        )


def _question(given: dict[str, Any]) -> _Question:
    if "context" in given:
        paragraphs = [(title, sentences) for title, sentences in given["context"]]
        facts = [(title, at) for title, at in given["supporting_facts"]]
    else:
        paragraphs = [(given["title_a"], given["para_a"]), (given["title_b"], given["para_b"])]
        titles = [title for title, _ in paragraphs]
        facts = [(title, at) for title, ats in zip(titles, given["supporting_facts"], strict=True) for at in ats]
        paragraphs += [(title, sentences) for title, sentences, *_ in given["distractors"]]
    return _Question(given["_id"], given["question"].strip(), given["answer"], given.get("type", ""), paragraphs, facts)


def _examples(questions: Sequence[_Question], documents: str) -> tuple[list[Example], int]:
    shared = qa.Corpus()
    added = []
    for one in questions:
        corpus = shared if documents == "all" else qa.Corpus()
        added.append((one, corpus, {title: corpus.add(title, _text(title, rest)) for title, rest in one.paragraphs}))
    whole = shared.documents()
    made = [_example(one, names, whole or corpus.documents()) for one, corpus, names in added]
    return made, sum(not one.evidence for one in made)


def _text(title: str, sentences: Sequence[str]) -> str:
    return f"{title}\n{''.join(sentences)}"


def _example(one: _Question, names: dict[str, str], documents: tuple[Document, ...]) -> Example:
    paragraphs = dict(one.paragraphs)
    spans: list[Span] = []
    for title, at in one.facts:
        sentences = paragraphs.get(title, [])
        if not 0 <= at < len(sentences):
            spans = []
            break
        start = len(_text(title, sentences[:at]))
        spans.append(qa.stripped(names[title], _text(title, sentences), start, start + len(sentences[at])))
    return Example(
        one.id,
        documents,
        one.question,
        qa.prompt(one.question),
        qa.answers([one.answer]),
        tuple(spans),
        category=one.category,
    )


def _build(options: Options) -> HotpotQA:
    return HotpotQA(options.choice("documents", DOCUMENTS))


HOTPOTQA_TASKS: dict[str, Builder] = {"hotpotqa": _build}
