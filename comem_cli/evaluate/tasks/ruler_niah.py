"""RULER's needles in a haystack: eight tasks, one dataclass.

A needle is a sentence that gives a key its value. The question asks for the values of one or more keys; other keys, or
a haystack made of needles, distract. The prompt strings are RULER's (see `ruler_fit.PROMPTS`); scores depend on them.
"""

from __future__ import annotations

import random
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from comem_cli.evaluate.task import Cell, TaskContext
from comem_cli.evaluate.tasks import ruler_fit, ruler_haystack
from comem_cli.evaluate.tasks.ruler_fit import Record, Source
from comem_cli.evaluate.tasks.words import load_words

Kind = Literal["numbers", "words", "uuids"]
Haystack = Literal["noise", "essay", "books", "needle"]

NEEDLE = "One of the special magic {kind} for {key} is: {value}."
ONE = (
    "A special magic {kind} is hidden within the following text. Make sure to memorize it. "
    "I will quiz you about the {kind} afterwards.\n",
    "What is the special magic {kind} for {query} mentioned in the provided text?",
    " The special magic {kind} for {query} mentioned in the provided text is",
)
SOME = (
    "Some special magic {kind} are hidden within the following text. Make sure to memorize it. "
    "I will quiz you about the {kind} afterwards.\n",
    "What are all the special magic {kind} for {query} mentioned in the provided text?",
    " The special magic {kind} for {query} mentioned in the provided text are",
)


@dataclass(frozen=True)
class Niah:
    """Hide `keys` keys with `values` values each and ask for `queries` of them; `size`: tokens with the answer's 128.

    key, value: what they are made of. The evidence of an example is every needle of its queried keys.
    """

    name: str
    size: int
    haystack: Haystack
    key: Kind = "words"
    value: Kind = "numbers"
    keys: int = 1
    values: int = 1
    queries: int = 1
    options: str = ""

    scorer: ClassVar[str] = "string_match_all"
    max_new_tokens: ClassVar[int] = 128

    def cell(self, context: TaskContext) -> Cell:
        """Generate the cell; raises UsageError (2) as `ruler_fit.ruler_cell` does."""
        return ruler_fit.ruler_cell(self, context)

    def inputs(self, context: TaskContext) -> Mapping[str, str]:
        """Name generator, haystack and word lists."""
        named = ruler_haystack.inputs(self.haystack, context.data)
        return {**named, "words": f"wonderwords-{load_words().version}"} if "words" in (self.key, self.value) else named

    def source(self, context: TaskContext) -> Source:
        """Return how to draw its records: n counts words of prose, else lines."""
        needles = self.keys * self.values
        if self.haystack in ("essay", "books"):
            prose = ruler_haystack.load_prose(self.haystack, context.data)
            # RULER steps 500 words at any size; its sizes begin at 4096, below which that would be a third of a text.
            step = 500 if self.size >= 4096 else 50
            return Source(lambda _, rng, n: self._hide(context.seed, rng, prose.sentences(n), " "), step)
        step = 25 if self.size >= 4096 else 5
        return Source(lambda _, rng, n: self._hide(context.seed, rng, self._lines(rng, n), "\n"), step, floor=needles)

    def _lines(self, rng: random.Random, n: int) -> list[str]:
        if self.haystack == "noise":
            return [ruler_haystack.NOISE] * n
        return [self._needle(_draw(rng, self.key), _draw(rng, self.value)) for _ in range(n)]

    def _hide(self, seed: int, rng: random.Random, pieces: Sequence[str], joint: str) -> Record:
        keys: list[str] = []
        while len(keys) < self.keys:
            if (key := _draw(rng, self.key)) not in keys:
                keys.append(key)
        values = {key: [_draw(rng, self.value) for _ in range(self.values)] for key in keys}
        needles = [(key, self._needle(key, value)) for key in keys for value in values[key]]
        random.Random(seed).shuffle(needles)  # the same permutation in every sample, as upstream
        if joint == " ":
            indexes = ruler_haystack.depths(rng, len(pieces), len(needles))
        else:
            indexes = sorted(rng.sample(range(len(pieces)), len(needles)), reverse=True)
        context, spans = ruler_haystack.scatter(pieces, [needle for _, needle in needles], indexes, joint)
        asked = rng.sample(keys, self.queries)
        one = self.queries * self.values == 1
        kind, query = self.value[:-1] if one else self.value, _listed(asked)
        head, question, prefix = (part.format(kind=kind, query=query) for part in (ONE if one else SOME))
        return Record(
            document=f"{head}{context}\n",
            question=question,
            prompt=question + prefix,
            answers=tuple(value for key in asked for value in values[key]),
            evidence=tuple(
                (len(head) + start, len(head) + end)
                for (key, _), (start, end) in zip(needles, spans, strict=True)
                if key in asked
            ),
        )

    def _needle(self, key: str, value: str) -> str:
        return NEEDLE.format(kind=self.value, key=key, value=value)


def _draw(rng: random.Random, kind: Kind) -> str:
    if kind == "words":
        return load_words().pair(rng)
    if kind == "numbers":
        return str(rng.randint(1_000_000, 9_999_999))
    return str(uuid.UUID(int=rng.getrandbits(128), version=4))


def _listed(keys: Sequence[str]) -> str:
    return f"{', '.join(keys[:-1])}, and {keys[-1]}" if len(keys) > 1 else keys[0]
