"""RULER's variable tracking: chains of assignments in a haystack; which variables got the first chain's value?

One solved example, short and with names of its own, stands before every sample, as in RULER, and belongs to the
document. RULER renames the example's variables by replacing text; here it is drawn again with the same lines. The
prompt strings are RULER's (see `ruler_fit.PROMPTS`); scores depend on them.
"""

from __future__ import annotations

import functools
import itertools
import random
import string
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from comem_cli.errors import UsageError
from comem_cli.evaluate.task import Cell, TaskContext
from comem_cli.evaluate.tasks import ruler_fit, ruler_haystack
from comem_cli.evaluate.tasks.ruler_fit import Record, Source

HEAD = "Memorize and track the chain(s) of variable assignment hidden in the following text.\n\n"
QUESTION = "Find all variables that are assigned the value {value} in the text above."
PREFIX = (
    " Answer: According to the chain(s) of variable assignment in the text above, "
    "{count} variables are assigned the value {value}, they are: "
)
EXAMPLE_TOKENS, EXAMPLE_STEP, EXAMPLE_HOPS, EXAMPLE_VALUE = 500, 5, 10, 12345

Haystack = Literal["noise", "essay", "books"]


@dataclass(frozen=True)
class VariableTracking:
    """Hide `chains` chains of hops + 1 variables; `size`: tokens with the answer's 30.

    The evidence of an example is every statement of the first chain.
    """

    size: int
    hops: int = 4
    chains: int = 1
    haystack: Haystack = "noise"
    options: str = ""

    name: ClassVar[str] = "vt"
    scorer: ClassVar[str] = "string_match_all"
    max_new_tokens: ClassVar[int] = 30

    def cell(self, context: TaskContext) -> Cell:
        """Generate the cell; raises UsageError (2) as `ruler_fit.ruler_cell` does."""
        return ruler_fit.ruler_cell(self, context)

    def inputs(self, context: TaskContext) -> Mapping[str, str]:
        """Name generator and haystack."""
        return ruler_haystack.inputs(self.haystack, context.data)

    def source(self, context: TaskContext) -> Source:
        """Return how to draw its records: n counts lines, or words of prose. Raises UsageError (2) as `cell` does."""
        pieces = self._pieces(context)
        example = self._example(context, pieces)

        def draw(_: int, rng: random.Random, n: int) -> Record:
            values = _values(rng, 2 * self.chains)  # distinct: the example must not answer the question
            solved = f"{example(rng, values[self.chains :])}\n"
            record = self._hide(rng, self._names(rng, 5), values[: self.chains], pieces(n))
            moved = tuple((start + len(solved), end + len(solved)) for start, end in record.evidence)
            return replace(record, document=solved + record.document, evidence=moved)

        large, small = (10, 5) if self.haystack == "noise" else (500, 50)
        step = large if self.size >= 4096 else small
        return Source(draw, step, floor=self.hops + 1)

    def _example(
        self, context: TaskContext, pieces: Callable[[int], list[str]]
    ) -> Callable[[random.Random, Sequence[int]], str]:
        """Return what draws the solved example: its lines are the same in every sample, names and values are new.

        It has as many hops as the task, at most 10, and fewer where it would pass its 500 tokens.
        """

        def solved(short: VariableTracking, rng: random.Random, values: Sequence[int], n: int) -> str:
            layout = ruler_fit.stream(self, context.seed, "example")
            record = short._hide(layout, short._names(rng, 3), values, pieces(n))
            return f"{record.document}{record.prompt} {' '.join(record.answers)}\n"

        def length(short: VariableTracking, n: int) -> int:
            rng = ruler_fit.stream(self, context.seed, "example names")
            values = [EXAMPLE_VALUE + chain for chain in range(self.chains)]
            return ruler_fit.tokens(context.tokenizer, solved(short, rng, values, n))

        step = EXAMPLE_STEP if self.haystack == "noise" else 50
        for hops in range(min(EXAMPLE_HOPS, self.hops), 0, -1):
            short = replace(self, hops=hops)
            if n := ruler_fit.largest(functools.partial(length, short), EXAMPLE_TOKENS, max(step, hops + 1)):
                return functools.partial(solved, short, n=n)
        message = f"{self.name}: its example of {EXAMPLE_TOKENS} tokens cannot hold so many chains: {self.chains}"
        raise UsageError(message, "ask for fewer chains")

    def _hide(self, layout: random.Random, names: Sequence[str], values: Sequence[int], pieces: list[str]) -> Record:
        length = self.hops + 1
        chains = [_statements(names[at * length :][:length], value) for at, value in enumerate(values)]
        if self.haystack == "noise":
            lines = [indexes for _ in chains for indexes in sorted(layout.sample(range(len(pieces)), length))]
            flat = [statement for chain in chains for statement in chain]
            context, spans = ruler_haystack.scatter(pieces, flat, lines, "\n")
        else:
            order = _interleave(layout, [len(chain) for chain in chains])
            flat = [f"{chains[chain][link].strip()}." for chain, link in order]
            places = ruler_haystack.depths(layout, len(pieces), len(flat))
            context, found = ruler_haystack.scatter(pieces, flat, places, " ")
            spans = [span for _, span in sorted(zip(order, found, strict=True))]
        question = QUESTION.format(value=values[0])
        return Record(
            document=f"{HEAD}{context}\n",
            question=question,
            prompt=f"Question: {question}" + PREFIX.format(count=length, value=values[0]),
            answers=tuple(names[:length]),
            evidence=tuple(
                (len(HEAD) + start, len(HEAD) + start + len(context[start:end].rstrip()))
                for start, end in spans[:length]
            ),
        )

    def _names(self, rng: random.Random, letters: int) -> list[str]:
        names: dict[str, None] = {"VAR": None}  # a name of that kind could not be told from the keyword
        while len(names) <= self.chains * (self.hops + 1):
            names["".join(rng.choices(string.ascii_uppercase, k=letters))] = None
        return list(names)[1:]

    def _pieces(self, context: TaskContext) -> Callable[[int], list[str]]:
        if self.haystack == "noise":
            return lambda n: [ruler_haystack.NOISE] * n
        return functools.partial(ruler_haystack.Prose.sentences, ruler_haystack.load_prose(self.haystack, context.data))


def _statements(names: Sequence[str], value: int) -> list[str]:
    links = [f"VAR {name} = VAR {before} " for before, name in itertools.pairwise(names)]  # the blank is upstream's
    return [f"VAR {names[0]} = {value}", *links]


def _values(rng: random.Random, chains: int) -> list[int]:
    return rng.sample(range(10_000, 99_999), chains)


def _interleave(rng: random.Random, lengths: Sequence[int]) -> list[tuple[int, int]]:
    """Return (chain, link) of every statement in a random order that keeps each chain's own."""
    order = [chain for chain, length in enumerate(lengths) for _ in range(length)]
    rng.shuffle(order)
    seen = [0] * len(lengths)
    placed = []
    for chain in order:
        placed.append((chain, seen[chain]))
        seen[chain] += 1
    return placed
