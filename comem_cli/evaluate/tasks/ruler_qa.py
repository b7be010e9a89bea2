"""RULER's question answering over documents: qa_1 from a SQuAD file, qa_2 from a HotpotQA file of the data folder.

A question's own paragraphs stand among paragraphs of its article and of others, as many as fit; all are one document,
split from the prompt before the last "Answer the question based on". No paragraph is repeated: where the file holds
fewer than fit, texts stay shorter than `size`. The prompt strings are RULER's (see `ruler_fit.PROMPTS`).
"""

from __future__ import annotations

import functools
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from comem_cli.errors import UsageError
from comem_cli.evaluate.task import Cell, TaskContext
from comem_cli.evaluate.tasks import data_files, ruler_fit
from comem_cli.evaluate.tasks.ruler_fit import Record, Source
from comem_cli.evaluate.tasks.ruler_haystack import VERSION
from comem_cli.model.cache import file_sha256

ORDER = (
    "Answer the question based on the given documents. Only give me the answer and do not output any other words.\n\n"
)
HEAD = f"{ORDER}The following are given documents.\n\n"
PREFIX = " Answer:"
FILES = {
    "qa_1": data_files.Source(
        "RULER's qa_1",
        ("qa/dev-v2.0.json", "dev-v2.0.json", "qa/xquad.en.json", "xquad.en.json"),
        "https://rajpurkar.github.io/SQuAD-explorer or https://github.com/google-deepmind/xquad",
        "CC BY-SA 4.0",
    ),
    "qa_2": data_files.Source(
        "RULER's qa_2",
        (
            *("qa/hotpot_dev_distractor_v1.json", "hotpot_dev_distractor_v1.json"),
            *("qa/hotpotqa_sample100.json", "hotpotqa_sample100.json"),
        ),
        "https://hotpotqa.github.io",
        "CC BY-SA 4.0",
    ),
}


@dataclass(frozen=True)
class Asked:
    """Hold one question: `own` paragraphs are always there, `gold` of them answer, `related` come before others."""

    id: str
    question: str
    answers: tuple[str, ...]
    own: tuple[str, ...]
    gold: tuple[str, ...]
    related: tuple[str, ...]
    group: str


@dataclass(frozen=True)
class RulerQa:
    """Ask questions over paragraphs; name: "qa_1" or "qa_2"; `size`: tokens with the answer's 32.

    The evidence of an example is its gold paragraphs. Questions are taken in a shuffle by the seed, all of them where
    n is 0.
    """

    name: str
    size: int
    options: str = ""

    scorer: ClassVar[str] = "string_match_part"
    max_new_tokens: ClassVar[int] = 32

    def cell(self, context: TaskContext) -> Cell:
        """Make the cell; raises UsageError (2) as `ruler_fit.ruler_cell` does, or for a missing or damaged file."""
        return ruler_fit.ruler_cell(self, context)

    def inputs(self, context: TaskContext) -> Mapping[str, str]:
        """Name generator and file."""
        path = FILES[self.name].find(context)
        named = {"generator": f"ruler/{VERSION}", "questions": f"{path.name}-{file_sha256(path)[:8]}"}
        return {**FILES[self.name].provenance(path), **named}

    def source(self, context: TaskContext) -> Source:
        """Return how to draw its records: n counts paragraphs."""
        path = FILES[self.name].find(context)
        asked = list(_read(self.name, path, file_sha256(path)))
        random.Random(context.seed).shuffle(asked)
        everything = sorted({text for one in asked for text in (*one.own, *one.related)})

        def draw(index: int, rng: random.Random, n: int) -> Record:
            one = asked[index]
            if n - len(one.own) > len(one.related):
                known = {*one.own, *one.related}
                others = [text for text in everything if text not in known]
                more = [*one.related, *rng.sample(others, min(n - len(known), len(others)))]
            else:
                more = rng.sample(one.related, max(n - len(one.own), 0))
            return _record(one, [*one.own, *more], context.seed)

        return Source(draw, step=10, floor=1, most=len(everything), count=len(asked))


def _record(one: Asked, texts: list[str], seed: int) -> Record:
    random.Random(seed).shuffle(texts)  # the same permutation for the same number of documents, as upstream
    parts, evidence, at = [], {}, len(HEAD)
    for number, text in enumerate(texts, 1):
        label = f"Document {number}:\n"
        parts.append(label + text)
        if text in one.gold:
            evidence[text] = (at + len(label), at + len(label) + len(text))
        at += len(parts[-1]) + 2
    return Record(
        document="\n\n".join((HEAD.removesuffix("\n\n"), *parts, "")),
        question=one.question,
        prompt=f"{ORDER}Question: {one.question}{PREFIX}",
        answers=one.answers,
        evidence=tuple(evidence[text] for text in one.gold),
        group=one.group,
    )


@functools.lru_cache(maxsize=4)
def _read(name: str, path: Path, sha256: str) -> tuple[Asked, ...]:
    """Read a file whose digest is `sha256` (it keys the cache); questions in the file's order."""
    given = data_files.read_json(path)
    with FILES[name].reading(path):
        asked = tuple(_squad(given["data"]) if name == "qa_1" else _hotpot(given))
    if not asked:
        raise UsageError(f"{path} holds no question with an answer", "get the file again")
    return asked


def _squad(articles: list[dict[str, Any]]) -> Iterator[Asked]:
    for number, article in enumerate(articles):
        texts = _distinct(paragraph["context"] for paragraph in article["paragraphs"])
        for paragraph in article["paragraphs"]:
            own = paragraph["context"]
            for one in paragraph["qas"]:
                if one.get("is_impossible") or not one["answers"]:
                    continue
                answers = _distinct(answer["text"] for answer in one["answers"])
                related = tuple(text for text in texts if text != own)
                group = str(article.get("title", number))
                yield Asked(str(one["id"]), one["question"], answers, (own,), (own,), related, group)


def _hotpot(given: list[dict[str, Any]]) -> Iterator[Asked]:
    for one in given:
        own, gold = _paragraphs(one)
        yield Asked(str(one["_id"]), one["question"], (one["answer"],), own, gold, (), str(one["_id"]))


def _paragraphs(one: Mapping[str, Any]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return all and the gold paragraphs: of the official layout, or of the sample with para_a, para_b, distractors."""

    def text(title: str, sentences: Sequence[str]) -> str:
        return f"{title}\n{''.join(sentences)}"

    if "context" in one:
        titles = {title for title, _ in one["supporting_facts"]}
        texts = [(title, text(title, sentences)) for title, sentences in one["context"]]
        return _distinct(t for _, t in texts), _distinct(t for title, t in texts if title in titles)
    gold = _distinct((text(one["title_a"], one["para_a"]), text(one["title_b"], one["para_b"])))
    return _distinct((*gold, *(text(title, parts) for title, parts, *_ in one["distractors"]))), gold


def _distinct(texts: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(texts))
