"""Planted facts for distillation: a key, a value and many phrasings, so that a reader learns to copy, not a phrase.

A `Fact` states a value (a number of 3 to 8 digits, a code, words, a name, a date, a place, a UUID) of a made-up key.
All of it is drawn from one `random.Random`, so a seed gives the same fact everywhere.
"""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from comem_cli.model import distill_phrases as phrases

Span = tuple[int, int]  # [first, last), in characters or in tokens


@dataclass(frozen=True)
class Fact:
    """Hold one made-up fact; the same `noun` and statement make it a distractor of another."""

    key: str
    noun: str
    value: str

    def state(self, statement: str) -> str:
        """Write the fact down."""
        return capital(statement.format(key=self.key, noun=self.noun, value=self.value))

    def ask(self, question: str, frame: str) -> tuple[str, list[Span]]:
        """Ask for it: -> text of question and answer, and which characters of it are the value.

        The frame ends with the value, or with the value and punctuation.
        """
        asked = capital(question.format(key=self.key, noun=self.noun))
        before, after = frame.split("{value}")
        head = before.format(question=asked, key=self.key, noun=self.noun)
        return head + self.value + after, [(len(head), len(head) + len(self.value))]

    def ask_with(self, other: Fact, question: str, frame: str, between: str) -> tuple[str, list[Span]]:
        """Ask for this value and another one in one question: -> text, and which characters are the two values."""
        asked = question.format(key=self.key, noun=self.noun, other_key=other.key, other_noun=other.noun)
        head = frame.format(question=capital(asked))
        text = head + self.value + between + other.value
        return text, [(len(head), len(head) + len(self.value)), (len(text) - len(other.value), len(text))]


def draw_facts(rng: random.Random, count: int) -> list[Fact]:
    """Draw `count` facts of one kind of value and one noun, with distinct keys and values."""
    nouns, value = rng.choice(_KINDS)
    noun, make_key = rng.choice(nouns), rng.choice(_KEYS)
    return _distinct(count, lambda: Fact(make_key(rng), noun, value(rng)))


def draw_mixed(rng: random.Random, count: int) -> list[Fact]:
    """Draw `count` facts of any kinds, with distinct keys and values."""

    def one() -> Fact:
        nouns, value = rng.choice(_KINDS)
        return Fact(rng.choice(_KEYS)(rng), rng.choice(nouns), value(rng))

    return _distinct(count, one)


def _distinct(count: int, draw: Callable[[], Fact]) -> list[Fact]:
    facts: dict[str, Fact] = {}
    used: set[str] = set()
    while len(facts) < count:
        fact = draw()
        if fact.key not in facts and fact.value not in used:
            facts[fact.key] = fact
            used.add(fact.value)
    return list(facts.values())


def capital(text: str) -> str:
    """Begin with a capital letter, unless the first word is a name that must stay as it is."""
    return text[:1].upper() + text[1:] if text.split(" ")[0].isalpha() else text


def _word(rng: random.Random, words: str) -> str:
    return rng.choice(words.split())


def _number(rng: random.Random) -> str:
    digits = rng.randint(3, 8)
    return str(rng.randrange(10 ** (digits - 1), 10**digits))


def _code(rng: random.Random) -> str:
    letters = "".join(rng.choices(phrases.LETTERS, k=rng.randint(2, 4)))
    return f"{letters}-{rng.randrange(10**2, 10**4)}"


def _person(rng: random.Random) -> str:
    return f"{_word(rng, phrases.FIRST)} {_word(rng, phrases.LAST)}"


def _date(rng: random.Random) -> str:
    return f"{rng.randint(1, 28)} {_word(rng, phrases.MONTHS)} {rng.randint(1700, 2090)}"


def _place(rng: random.Random) -> str:
    return f"{rng.choice(('Port', 'Upper', 'Mount', 'Old', 'Saint'))} {_word(rng, phrases.PLACES)}"


def _uuid(rng: random.Random) -> str:
    return str(uuid.UUID(int=rng.getrandbits(128), version=4))


def _thing(rng: random.Random) -> str:
    return f"the {_word(rng, phrases.ADJECTIVES)} {_word(rng, phrases.NOUNS)}"


def _hyphenated(rng: random.Random) -> str:
    return f"{_word(rng, phrases.ADJECTIVES)}-{_word(rng, phrases.NOUNS)}"


def _words(rng: random.Random) -> str:
    return f"{_word(rng, phrases.ADJECTIVES)} {_word(rng, phrases.NOUNS)}"


def _numbered(rng: random.Random) -> str:
    return f"{_word(rng, phrases.NOUNS)} {rng.randint(2, 999)}"


_Draw = Callable[[random.Random], str]
_KEYS: Sequence[_Draw] = (_thing, _hyphenated, _numbered, _person, _place, _hyphenated, _uuid)
_KINDS: Sequence[tuple[Sequence[str], _Draw]] = (
    (("number", "magic number", "account number", "reference number", "price", "depth in feet"), _number),
    (("code", "access code", "serial code", "password", "call sign"), _code),
    (("keeper", "owner", "inspector", "first name and surname"), _person),
    (("date", "opening date", "date of repair", "deadline"), _date),
    (("place", "destination", "place of origin", "meeting place"), _place),
    (("codeword", "magic word", "nickname", "emblem"), _words),
    (("identifier", "token", "key"), _uuid),
    (("number", "magic number", "room number", "register content"), _number),
)
