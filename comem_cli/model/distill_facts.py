"""Planted facts for distillation: a key, a value and many phrasings, so that a reader learns to copy, not a phrase.

A `Fact` states a value (a number of 3 to 8 digits, a code, a name, a date, a place, a UUID) of a made-up key.
STATEMENTS, QUESTIONS and FRAMES are the phrasings of training; HELD_STATEMENTS, HELD_QUESTIONS and HELD_FRAMES are kept
for measuring and never trained on. All of it is drawn from one `random.Random`, so a seed gives the same fact
everywhere.
"""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass

# {noun}: what the value is; {key}: whose it is.
STATEMENTS = (
    "The {noun} of {key} is {value}.",
    "The {noun} for {key} is {value}.",
    "{key} has the {noun} {value}.",
    "{value} is the {noun} of {key}.",
    "{value} was given to {key} as its {noun}.",
    "For {key}, the {noun} reads {value}.",
    "Please note the {noun} of {key}: {value}.",
    "{key}: {noun} {value}.",
    "{key} ({noun} {value}).",
    "{noun} of {key} = {value}",
    "{key} -> {value}",
    '"{key}": "{value}",',
    "| {key} | {noun} | {value} |",
    "- {key}: {value}",
    "* {noun} of {key}: {value}",
    "[{key}] {noun} = {value}",
    "Entry {key}. The {noun} given there is {value}.",
    "They wrote down {value} as the {noun} of {key}.",
    "According to the register, {key} goes with the {noun} {value}.",
    "Anyone who asks about {key} is told the {noun} {value}.",
    "It was agreed that the {noun} of {key} would be {value}.",
    "Since last year {key} has been listed under the {noun} {value}.",
    "If you need {key}, use the {noun} {value}.",
    "Nobody forgot that {key} had {value} as its {noun}.",
    "On the label of {key} stands the {noun} {value}.",
    "In the margin: {key}, {noun} {value}.",
    "The record of {key} shows {value} under '{noun}'.",
    "Remember this: the {noun} of {key} is {value}.",
    "{key} was entered with {value} for its {noun}.",
    "Its {noun} being {value}, {key} was easy to find.",
    "We found {value} where the {noun} of {key} should be.",
    "set {noun} of {key} to {value};",
    "As for {key}, its {noun} is said to be {value}.",
    "Look up {key} and you will see the {noun} {value}.",
)
HELD_STATEMENTS = (
    "One of the special {noun}s for {key} is: {value}.",
    "line {key}: CONTENT is <{value}>",
    "The clerk read out that {key} carries the {noun} {value}.",
    "Whoever keeps {key} must quote {value}, its {noun}.",
    "{key} answers to the {noun} {value}.",
    "Under {noun}, the sheet for {key} says {value}.",
)
QUESTIONS = (
    "What is the {noun} of {key}?",
    "What is the {noun} for {key}?",
    "Which {noun} does {key} have?",
    "Which {noun} belongs to {key}?",
    "What {noun} is given for {key}?",
    "Tell me the {noun} of {key}.",
    "Find the {noun} of {key} in the text.",
    "{key} has which {noun}?",
    "According to the text, what is the {noun} of {key}?",
    "I need the {noun} of {key}.",
    "What does the text give as the {noun} of {key}?",
    "Under which {noun} is {key} known?",
    "Give the {noun} that goes with {key}.",
    "What should I write down as the {noun} of {key}?",
)
HELD_QUESTIONS = (
    "What is the special {noun} for {key} mentioned in the provided text?",
    "Could you look up {key} and say its {noun}?",
    "Somebody asks for {key}: which {noun} do you answer?",
)
# What stands between question and value; the first is the template of `comem ask`.
FRAMES = (
    "\n\nQuestion: {question}\nAnswer: {value}",
    "\n\nQuestion: {question}\nAnswer: The {noun} of {key} is {value}.",
    "\n\nQ: {question}\nA: {value}",
    "\n\n{question}\n{value}",
    "\n\n{question} {value}",
    "\n\n{question} The {noun} for {key} is {value}.",
    "\n\nUser: {question}\nAssistant: {value}",
    "\n\nThe {noun} of {key} is {value}.",
    "\n\n{key}: {value}",
)
HELD_FRAMES = (
    "\n\nQuestion: {question}\nAnswer: {value}",
    "\n{question} The special {noun} for {key} mentioned in the provided text is {value}",
)

_ADJECTIVES = (
    "amber bitter brisk calm copper crimson dusty early eastern faded fallow gentle golden hollow iron ivory lonely "
    "marble mellow narrow northern oaken pale quiet rapid restless rusty scarlet silent silver southern steep sunken "
    "tidy upper velvet violet wandering western winter wooden"
)
_NOUNS = (
    "anchor archive beacon bridge cabinet canal cellar chapel compass cottage engine ferry furnace garden gate granary "
    "harbour island kettle lantern ledger locker meadow mill orchard parcel pier pump quarry reservoir schooner shed "
    "station tower turbine valley vault wagon warehouse well workshop"
)
_FIRST = (
    "Ada Anselm Bruno Clara Dora Edith Felix Greta Hanna Igor Ines Jonas Karin Leo Maren Nadia Olaf Petra Quentin Rosa "
    "Stefan Tilda Ulla Viktor Wanda Yusuf Zora"
)
_LAST = (
    "Abbot Brandt Calloway Dressler Eklund Farrow Galloway Hartmann Ingram Jarvis Kessler Lindqvist Marlowe Novak "
    "Okafor Pemberton Quist Rasmussen Sandoval Thackeray Ulrich Vasquez Whitlock Yardley Zeller"
)
_PLACES = (
    "Aldermoor Brackwater Castlefen Dunholm Eastmere Fennwick Graystone Hollowell Inverlath Kestrel Bay Larkhaven "
    "Mossgate Netherby Oxbridge Pinecrest Ravensford Saltmarsh Thornbury Underhill Westerly"
)
_MONTHS = "January February March April May June July August September October November December"
_LETTERS = "ABCDEFGHJKLMNPQRSTUVWXYZ"


@dataclass(frozen=True)
class Fact:
    """Hold one made-up fact; the same `noun` and statement make it a distractor of another."""

    key: str
    noun: str
    value: str

    def state(self, statement: str) -> str:
        """Write the fact down."""
        return _capital(statement.format(key=self.key, noun=self.noun, value=self.value))

    def ask(self, question: str, frame: str) -> tuple[str, int, int]:
        """Ask for it: -> text of question and answer, first and last character of the value in it.

        The frame ends with the value, or with the value and punctuation.
        """
        asked = _capital(question.format(key=self.key, noun=self.noun))
        before, after = frame.split("{value}")
        head = before.format(question=asked, key=self.key, noun=self.noun)
        return head + self.value + after, len(head), len(head) + len(self.value)


def draw_facts(rng: random.Random, count: int) -> list[Fact]:
    """Draw `count` facts of one kind of value and one noun, with distinct keys and values."""
    nouns, value = rng.choice(_KINDS)
    noun, make_key = rng.choice(nouns), rng.choice(_KEYS)
    facts: dict[str, Fact] = {}
    used: set[str] = set()
    while len(facts) < count:
        fact = Fact(make_key(rng), noun, value(rng))
        if fact.key not in facts and fact.value not in used:
            facts[fact.key] = fact
            used.add(fact.value)
    return list(facts.values())


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _word(rng: random.Random, words: str) -> str:
    return rng.choice(words.split())


def _number(rng: random.Random) -> str:
    digits = rng.randint(3, 8)
    return str(rng.randrange(10 ** (digits - 1), 10**digits))


def _code(rng: random.Random) -> str:
    letters = "".join(rng.choices(_LETTERS, k=rng.randint(2, 4)))
    return f"{letters}-{rng.randrange(10**2, 10**4)}"


def _person(rng: random.Random) -> str:
    return f"{_word(rng, _FIRST)} {_word(rng, _LAST)}"


def _date(rng: random.Random) -> str:
    return f"{rng.randint(1, 28)} {_word(rng, _MONTHS)} {rng.randint(1700, 2090)}"


def _place(rng: random.Random) -> str:
    return f"{rng.choice(('Port', 'Upper', 'Mount', 'Old', 'Saint'))} {_word(rng, _PLACES)}"


def _uuid(rng: random.Random) -> str:
    return str(uuid.UUID(int=rng.getrandbits(128), version=4))


def _thing(rng: random.Random) -> str:
    return f"the {_word(rng, _ADJECTIVES)} {_word(rng, _NOUNS)}"


def _hyphenated(rng: random.Random) -> str:
    return f"{_word(rng, _ADJECTIVES)}-{_word(rng, _NOUNS)}"


def _numbered(rng: random.Random) -> str:
    return f"{_word(rng, _NOUNS)} {rng.randint(2, 999)}"


_Draw = Callable[[random.Random], str]
_KEYS: Sequence[_Draw] = (_thing, _hyphenated, _numbered, _person, _place, _hyphenated, _uuid)
_KINDS: Sequence[tuple[Sequence[str], _Draw]] = (
    (("number", "magic number", "account number", "reference number", "price", "depth in feet"), _number),
    (("code", "access code", "serial code", "password", "call sign"), _code),
    (("keeper", "owner", "inspector", "first name and surname"), _person),
    (("date", "opening date", "date of repair", "deadline"), _date),
    (("place", "destination", "place of origin", "meeting place"), _place),
    (("identifier", "token", "key"), _uuid),
    (("number", "magic number", "room number", "register content"), _number),
)
