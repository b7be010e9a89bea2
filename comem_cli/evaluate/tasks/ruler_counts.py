"""RULER's aggregation tasks: the ten most common words of a list (cwe), the three most frequent coded words (fwe).

Every token of the text bears on the answer, so there is no evidence. The prompt strings are RULER's (see
`ruler_fit.PROMPTS`); scores depend on them.
"""

from __future__ import annotations

import math
import random
import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from comem_cli.evaluate.task import Cell, TaskContext
from comem_cli.evaluate.tasks import ruler_fit
from comem_cli.evaluate.tasks.ruler_fit import Record, Source
from comem_cli.evaluate.tasks.ruler_haystack import VERSION
from comem_cli.evaluate.tasks.words import load_words

CWE_HEAD = (
    "Below is a numbered list of words. In these words, some appear more often than others. "
    "Memorize the ones that appear most often.\n"
)
CWE_QUESTION = "What are the 10 most common words in the above list?"
CWE_PREFIX = " Answer: The top 10 words that appear most often in the list are:"
COMMON = 10

FWE_HEAD = (
    "Read the following coded text and track the frequency of each coded word. "
    "Find the three most frequently appeared coded words. "
)
FWE_QUESTION = (
    "Do not provide any explanation. Please ignore the dots '....'. "
    "What are the three most frequently appeared words in the above coded text?"
)
FWE_PREFIX = " Answer: According to the coded text above, the three most frequently appeared words are:"
ALPHA, ZETA, LETTERS = 2.0, math.pi**2 / 6, 6  # zeta(2)


@dataclass(frozen=True)
class CommonWords:
    """Repeat ten words more often than the others; `size`: tokens with the answer's 120.

    n counts different words, at most the vocabulary of wonderwords: past that (some 200k tokens) texts stay shorter
    than `size`, where RULER turns to a larger word list.
    """

    size: int
    options: str = ""

    name: ClassVar[str] = "cwe"
    scorer: ClassVar[str] = "string_match_all"
    max_new_tokens: ClassVar[int] = 120

    def cell(self, context: TaskContext) -> Cell:
        """Generate the cell; raises UsageError (2) as `ruler_fit.ruler_cell` does."""
        return ruler_fit.ruler_cell(self, context)

    def inputs(self, context: TaskContext) -> Mapping[str, str]:
        """Name generator and word lists."""
        return {"generator": f"ruler/{VERSION}", "words": f"wonderwords-{load_words().version}"}

    def source(self, context: TaskContext) -> Source:
        """Return how to draw its records: n counts different words."""
        words = load_words().vocabulary
        short = self.size < 4096
        shown, repeats = (20, (3, 1)) if short else (40, (10, 3))

        def draw(_: int, rng: random.Random, n: int) -> Record:
            listed, common = _numbered(context.seed, rng.sample(words, shown), *repeats)
            solved = f"{CWE_HEAD}{listed}\nQuestion: {CWE_QUESTION}{CWE_PREFIX} {_number(common)}\n"
            listed, common = _numbered(context.seed, rng.sample(words, n), *((6, 1) if short else (30, 3)))
            return Record(
                document=f"{solved}{CWE_HEAD}{listed}\n",
                question=CWE_QUESTION,
                prompt=f"Question: {CWE_QUESTION}{CWE_PREFIX}",
                answers=tuple(common),
            )

        return Source(draw, step=COMMON, floor=COMMON, most=len(words))


@dataclass(frozen=True)
class FrequentWords:
    """Repeat coded words by Zipf's law and ask for ranks 2 to 4; `size`: tokens with the answer's 50.

    Rank 1 is dots. Rank k occurs int(N * k^-2 / zeta(2)) times; N grows in steps of 1/32 of the room for the prompt.
    """

    size: int
    options: str = ""

    name: ClassVar[str] = "fwe"
    scorer: ClassVar[str] = "string_match_all"
    max_new_tokens: ClassVar[int] = 50

    def cell(self, context: TaskContext) -> Cell:
        """Generate the cell; raises UsageError (2) as `ruler_fit.ruler_cell` does."""
        return ruler_fit.ruler_cell(self, context)

    def inputs(self, context: TaskContext) -> Mapping[str, str]:
        """Name the generator."""
        return {"generator": f"ruler/{VERSION}"}

    def source(self, context: TaskContext) -> Source:
        """Return how to draw its records: n counts steps of N."""
        room = self.size - self.max_new_tokens
        step = max(room // 32, 1)
        first = room // LETTERS % step  # RULER's N begins at room // 6

        def draw(_: int, rng: random.Random, n: int) -> Record:
            coded: set[str] = set()
            while len(coded) < max(room // 50, 4):
                coded.add("".join(rng.choices(string.ascii_lowercase, k=LETTERS)))
            ranked = sorted(coded)
            random.Random(context.seed).shuffle(ranked)
            ranked[0] = "..."
            total = first + n * step
            text = [word for rank, word in enumerate(ranked, 1) for _ in range(int(total * rank**-ALPHA / ZETA))]
            random.Random(context.seed).shuffle(text)
            return Record(
                document=f"{FWE_HEAD}{' '.join(text)}\n",
                question=FWE_QUESTION,
                prompt=f"Question: {FWE_QUESTION}{FWE_PREFIX}",
                answers=tuple(ranked[1:4]),
            )

        return Source(draw, step=1)


def _numbered(seed: int, chosen: Sequence[str], often: int, seldom: int) -> tuple[str, list[str]]:
    """Return the numbered list, shuffled by `seed` as upstream, and its common words."""
    common, others = list(chosen[:COMMON]), list(chosen[COMMON:])
    listed = common * often + others * seldom
    random.Random(seed).shuffle(listed)
    return _number(listed), common


def _number(words: Sequence[str]) -> str:
    return " ".join(f"{place}. {word}" for place, word in enumerate(words, 1))
