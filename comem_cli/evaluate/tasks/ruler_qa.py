"""RULER's question answering over documents: qa_1 from a SQuAD file, qa_2 from a HotpotQA file of the data folder.

A question's own paragraphs stand among paragraphs of its article and of others, as many as fit; all are one document,
split from the prompt before the last "Answer the question based on". No paragraph is repeated: where the file holds
fewer than fit, texts stay shorter than `size`. The prompt strings are RULER's (see `ruler_fit.LICENCE`).
"""

from __future__ import annotations

import functools
import json
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from comem_cli.errors import UsageError
from comem_cli.evaluate.task import Cell, TaskContext
from comem_cli.evaluate.tasks import ruler_fit
from comem_cli.evaluate.tasks.ruler_fit import Record, Source
from comem_cli.evaluate.tasks.ruler_haystack import VERSION
from comem_cli.model.cache import file_sha256

ORDER = (
    "Answer the question based on the given documents. Only give me the answer and do not output any other words.\n\n"
)
HEAD = f"{ORDER}The following are given documents.\n\n"
PREFIX = " Answer:"
FILES = {
    "qa_1": ("dev-v2.0.json", "xquad.en.json"),
    "qa_2": ("hotpot_dev_distractor_v1.json", "hotpotqa_sample100.json"),
}
LICENCES = {"qa_1": "SQuAD, XQuAD: CC BY-SA 4.0", "qa_2": "HotpotQA: CC BY-SA 4.0"}


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
        path = self._file(context.data)
        sha256 = file_sha256(path)
        return {
            "generator": f"ruler/{VERSION}",
            "questions": f"{path.name}-{sha256[:8]}",
            "questions_sha256": sha256,
            "questions_licence": LICENCES[self.name],
        }

    def source(self, context: TaskContext) -> Source:
        """Return how to draw its records: n counts paragraphs."""
        path = self._file(context.data)
        asked = list(_read(path, file_sha256(path)))
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

    def _file(self, data: Path | None) -> Path:
        for name in FILES[self.name]:
            for path in (data / "qa" / name, data / name) if data else ():
                if path.is_file():
                    return path
        where = f"the data folder {data}" if data else "a data folder"
        raise UsageError(f"{self.name} needs {' or '.join(FILES[self.name])} in {where}", "get it and put it there")


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
def _read(path: Path, sha256: str) -> tuple[Asked, ...]:
    """Read a file whose digest is `sha256` (it keys the cache); questions in the file's order."""
    try:
        given = json.loads(path.read_text(encoding="utf-8"))
        asked = tuple(_squad(given["data"]) if isinstance(given, dict) else _hotpot(given))
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise UsageError(f"{path} is not in the format of SQuAD or HotpotQA", "get the file again") from error
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
