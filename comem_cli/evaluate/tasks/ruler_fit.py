"""From a way to draw RULER records to a cell of them, each as long as its token budget allows.

A record is drawn for n units of haystack (words, lines, documents). n0 is the largest n whose probe fits, and a sample
starts there and gives up `step` units until it fits. Counts are of the whole prompt with its answer prefix. Two things
differ from RULER, which draws everything from one stream: each probe redraws the same sample, so that n0 is exactly its
limit, and each sample has a stream of its own, so that the first 30 of 100 samples are those of a run of 30.
"""

from __future__ import annotations

import platform
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from comem_cli.errors import UsageError
from comem_cli.evaluate.task import Cell, Document, Example, Span, TaskContext
from comem_cli.evaluate.tasks.ruler_haystack import VERSION

if TYPE_CHECKING:
    import tokenizers

DOCUMENT = "context.txt"
PROMPTS = "NVIDIA/RULER, Copyright (c) 2024 NVIDIA CORPORATION, Apache-2.0"


@dataclass(frozen=True)
class Record:
    """Hold one sample: document + prompt is RULER's input with its answer prefix.

    question: the question sentence of the prompt. evidence: character ranges of the document.
    """

    document: str
    question: str
    prompt: str
    answers: tuple[str, ...]
    evidence: tuple[tuple[int, int], ...] = ()
    group: str = ""


Draw = Callable[[int, random.Random, int], Record]
"""Draw sample number `index` with n units of haystack; all its randomness comes from the stream."""


@dataclass(frozen=True)
class Source:
    """Hold how to draw records: n is at least `floor` and at most `most` units; `count`: samples there are.

    The search for n0 begins at `step`.
    """

    draw: Draw
    step: int
    floor: int = 1
    most: int | None = None
    count: int | None = None


class RulerTask(Protocol):
    """What a RULER task tells `ruler_cell`; size: tokens of prompt and answer together."""

    @property
    def name(self) -> str: ...  # noqa: D102
    @property
    def size(self) -> int: ...  # noqa: D102
    @property
    def options(self) -> str: ...  # noqa: D102
    @property
    def scorer(self) -> str: ...  # noqa: D102
    @property
    def max_new_tokens(self) -> int: ...  # noqa: D102

    def inputs(self, context: TaskContext) -> Mapping[str, str]:
        """Name what the texts are made of, beside the context: generator, packages, files."""
        ...

    def source(self, context: TaskContext) -> Source:
        """Return how to draw its records."""
        ...


def ruler_cell(task: RulerTask, context: TaskContext) -> Cell:
    """Make the cell of a RULER task.

    Raises: UsageError (2) where the size is too small, no number of examples is given, or what it is made of is
    missing.
    """
    inputs = task.inputs(context)
    units, records = ruler_records(task, context)
    origins = [f"{key}={inputs[key]}" for key in ("haystack", "words", "questions") if key in inputs]
    return Cell(
        task=task.name,
        label=f"{task.size}:{task.options}" if task.options else str(task.size),
        cohort=" ".join([inputs["generator"], *origins]),
        scorer=task.scorer,
        max_new_tokens=task.max_new_tokens,
        examples=tuple(_example(index, record) for index, record in enumerate(records)),
        provenance={
            **inputs,
            "seed": str(context.seed),
            "tokenizer": context.tokenizer_hash,
            "haystack_units": str(units),
            "python": platform.python_version(),
            "prompts": PROMPTS,
        },
    )


def ruler_records(task: RulerTask, context: TaskContext) -> tuple[int, list[Record]]:
    """Return n0 and the records, each within task.size - task.max_new_tokens tokens. Raises as `ruler_cell`."""
    source = task.source(context)
    limit = task.size - task.max_new_tokens
    count = context.n if source.count is None else min(context.n or source.count, source.count)
    if count < 1:
        raise UsageError(f"{task.name} is generated: say how many examples", "ask for 100, as the paper does")

    def length(record: Record) -> int:
        return tokens(context.tokenizer, record.document + record.prompt)

    def sample(index: int) -> Record:
        n = units
        while length(record := source.draw(index, stream(task, context.seed, index), n)) > limit:
            if n == source.floor:
                raise _too_small(task)
            n = max(n - source.step, source.floor)
        return record

    def probe(n: int) -> int:
        return length(source.draw(0, stream(task, context.seed, "probe"), n))

    least = max(source.step, source.floor)
    units = largest(probe, limit, least if source.most is None else min(least, source.most), source.most)
    if not units:
        raise _too_small(task)
    return units, [sample(index) for index in range(count)]


def largest(length: Callable[[int], int], limit: int, least: int, most: int | None = None) -> int:
    """Return n in [least, most] with length(n) <= limit < length(n + 1).

    It is `most` where that fits, and 0 where `least` does not. length: of n units, growing with n. The range is doubled
    from `least` and then narrowed along the line between its ends, every fourth time by half: tokens grow evenly with
    units, so a few probes do.
    """
    low, shortest = least, length(least)
    if shortest > limit:
        return 0
    while True:
        high = 2 * low if most is None else min(2 * low, most)
        if (longest := length(high)) > limit:
            break
        if high == most:
            return high
        low, shortest = high, longest
    turn = 0
    while high - low > 1:
        turn += 1
        guess = low + (limit - shortest) * (high - low) // (longest - shortest) if turn % 4 else (low + high) // 2
        middle = min(max(guess, low + 1), high - 1)
        if (found := length(middle)) <= limit:
            low, shortest = middle, found
        else:
            high, longest = middle, found
    return low


def tokens(tokenizer: tokenizers.Tokenizer, text: str) -> int:
    """Count the tokens of a text, special tokens not added."""
    return len(tokenizer.encode_batch_fast([text], add_special_tokens=False)[0])


def stream(task: RulerTask, seed: int, purpose: int | str) -> random.Random:
    """Return a random stream of its own for one purpose; a text as seed gives the same one in every process."""
    return random.Random(f"{VERSION}/{task.name}/{task.size}/{task.options}/{seed}/{purpose}")


def _too_small(task: RulerTask) -> UsageError:
    return UsageError(f"{task.name}: {task.size} tokens are too few for it", f"pass for example {task.name}:4096")


def _example(index: int, record: Record) -> Example:
    return Example(
        id=f"{index:04}",
        documents=(Document(DOCUMENT, record.document),),
        question=record.question,
        prompt=record.prompt,
        answers=record.answers,
        evidence=tuple(Span(DOCUMENT, start, end) for start, end in record.evidence),
        group=record.group,
    )
