"""Planted chains of assignments for distillation: one variable gets a value, each further one that of the one before.

The question gives the value and the answer is the names, in the order of the chain. All of it is drawn from one
`random.Random`.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from comem_cli.model import distill_phrases as phrases
from comem_cli.model.distill_facts import Span, capital


@dataclass(frozen=True)
class Chain:
    """Hold the names of one chain and the value of all of them."""

    names: tuple[str, ...]
    value: str

    def state(self, first: str, next_one: str) -> tuple[str, ...]:
        """Write the assignments down, one line a variable, in order."""
        lines = [first.format(name=self.names[0], value=self.value)]
        pairs = zip(self.names[1:], self.names, strict=False)
        return (*lines, *(next_one.format(name=name, other=other) for name, other in pairs))

    def ask(self, question: str, frame: str, between: str) -> tuple[str, list[Span]]:
        """Ask for the names: -> text of question and answer, and which characters of it are the names."""
        asked = capital(question.format(value=self.value))
        text, _ = frame.split("{names}")
        text = text.format(question=asked, value=self.value, count=len(self.names))
        spans = []
        for number, name in enumerate(self.names):
            text += between if number else ""
            spans.append((len(text), len(text) + len(name)))
            text += name
        return text, spans


def draw_chains(rng: random.Random, count: int, longest: int) -> list[Chain]:
    """Draw `count` chains of 2 to `longest` variables; no two share a name or a value."""
    make = rng.choice((_letters, _letters, _plain))
    names: set[str] = set()
    values: set[str] = set()
    chains = []
    for _ in range(count):
        mine: list[str] = []
        wanted = rng.randint(2, max(2, longest))
        while len(mine) < wanted:
            name = make(rng)
            if name not in names:
                names.add(name)
                mine.append(name)
        value = str(rng.randrange(10_000, 100_000))
        while value in values:
            value = str(rng.randrange(10_000, 100_000))
        values.add(value)
        chains.append(Chain(tuple(mine), value))
    return chains


def _letters(rng: random.Random) -> str:
    return "".join(rng.choices(phrases.LETTERS, k=rng.randint(3, 5)))


def _plain(rng: random.Random) -> str:
    return f"{rng.choice(phrases.NOUNS.split())}_{rng.randint(1, 99)}"
