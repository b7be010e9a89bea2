"""Make the query parts of a pack: each in a phrasing of its own, with the tokens of its answer marked."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from comem_cli.model import distill_phrases as phrases
from comem_cli.model.distill_chains import Chain
from comem_cli.model.distill_facts import Fact, Span
from comem_cli.model.distill_sample import QUERY_ROOM, QueryPart, Stretch
from comem_cli.model.distill_stretch import SENTENCE_END

if TYPE_CHECKING:
    from tokenizers import Tokenizer

_NAME = re.compile(r"(?<=[a-z,;] )[A-Z][a-z]{2,}(?: [A-Z][a-z]{2,})?")
_REPEAT = (
    'Repeat the sentence that begins with "{head}".',
    'Which sentence of the text starts with "{head}"?',
    'Quote the sentence beginning "{head}" word for word.',
    'How does the sentence go on that begins with "{head}"?',
)
_ABOUT = (
    "Who is {name}?",
    "What does the text say about {name}?",
    "Where is {name} mentioned?",
    "What happens to {name}?",
    "What is said first about {name}?",
    "What is this text about?",
    "Who speaks in the text?",
    "Which names appear in the text?",
)
_ASK = ("\n\nQuestion: {question}\nAnswer: ", "\n\nQ: {question}\nA: ", "\n\n{question}\n")
_PAIRS = 0.15  # share of questions for facts that ask for two


class PartMaker:
    """Ask one pack several things; what was asked for once is not asked for again."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        stretches: Sequence[Stretch],
        planted: tuple[Sequence[Fact], Sequence[Chain]],
        room: int,
        held: bool,
    ) -> None:
        """Take the pack, the facts and chains wholly in it, and `room`: most tokens of a passage."""
        self._tokenizer = tokenizer
        self._stretches = stretches
        self._facts, self._chains = list(planted[0]), list(planted[1])
        self._room = room
        self._held = held
        self._sentences: set[str] = set()

    def make(self, rng: random.Random, kind: str) -> QueryPart | None:
        """Make a part of a kind; None where the pack has nothing (more) of it."""
        if kind == "fact":
            return self._fact(rng)
        if kind == "chain":
            return self._chain(rng)
        if kind == "sentence":
            return self._sentence(rng)
        if kind == "question":
            return self._question(rng)
        return self._follow(rng) if kind == "continue" else self.recite(rng)

    def recite(self, rng: random.Random) -> QueryPart:
        """Take a passage of the pack again; its first 8 tokens say which."""
        pack = rng.choice(self._stretches).pack
        start = rng.randrange(max(1, len(pack) - 16))
        ids = pack[start : start + rng.randint(16, self._room)]
        return QueryPart("recite", tuple(ids), ((min(8, len(ids)), len(ids)),))

    def _fact(self, rng: random.Random) -> QueryPart | None:
        if not self._facts:
            return None
        fact = self._facts.pop(0)
        if self._facts and not self._held and rng.random() < _PAIRS:
            other = self._facts.pop(0)
            frame, between = rng.choice(_ASK), rng.choice(phrases.BETWEEN)
            return self._encode("fact", *fact.ask_with(other, rng.choice(phrases.PAIRS), frame, between))
        question = rng.choice(phrases.HELD_QUESTIONS if self._held else phrases.QUESTIONS)
        frame = rng.choice(phrases.HELD_FRAMES if self._held else phrases.FRAMES)
        return self._encode("fact", *fact.ask(question, frame))

    def _chain(self, rng: random.Random) -> QueryPart | None:
        if not self._chains:
            return None
        question = rng.choice(phrases.HELD_CHAIN_QUESTIONS if self._held else phrases.CHAIN_QUESTIONS)
        frame = rng.choice(phrases.HELD_CHAIN_FRAMES if self._held else phrases.CHAIN_FRAMES)
        return self._encode("chain", *self._chains.pop(0).ask(question, frame, rng.choice((", ", " "))))

    def _follow(self, rng: random.Random) -> QueryPart | None:
        """Go on after the last chunk."""
        last = self._stretches[-1]
        after = [token for chunk in last.chunks[last.picked[-1] + 1 :] for token in chunk]
        return QueryPart("continue", tuple(after[: rng.randint(8, self._room)])) if len(after) >= 8 else None

    def _sentence(self, rng: random.Random) -> QueryPart | None:
        stretch = rng.choice(self._stretches)
        text = self._tokenizer.decode(list(stretch.chunks[rng.choice(stretch.picked)]))
        fit = [part.strip() for part in SENTENCE_END.split(text)[1:-1]]
        fit = [part for part in fit if 40 <= len(part) <= 300 and len(part.split()) >= 7]
        fit = [part for part in fit if part not in self._sentences]
        if not fit:
            return None
        sentence = rng.choice(fit)
        self._sentences.add(sentence)
        head = " ".join(sentence.split()[: rng.randint(3, 5)])
        prompt = rng.choice(_ASK).format(question=rng.choice(_REPEAT).format(head=head))
        return self._encode("sentence", prompt + sentence, [(len(prompt), len(prompt) + len(sentence))])

    def _question(self, rng: random.Random) -> QueryPart:
        names = _NAME.findall(self._tokenizer.decode(rng.choice(self._stretches).pack))
        question = rng.choice(_ABOUT).format(name=rng.choice(names) if names else "the first person")
        encoded = self._tokenizer.encode(_ASK[0].format(question=question).rstrip(" "), add_special_tokens=False)
        return QueryPart("question", tuple(encoded.ids[: self._room]))

    def _encode(self, kind: str, text: str, spans: Sequence[Span]) -> QueryPart | None:
        """Tokenise and mark the tokens that hold these characters of the text; None where it is too long."""
        encoded = self._tokenizer.encode(text, add_special_tokens=False)
        if len(encoded.ids) > QUERY_ROOM:
            return None
        answers = []
        for first, last in spans:
            inside = [at for at, (a, b) in enumerate(encoded.offsets) if b > first and a < last]
            answers.append((inside[0], inside[-1] + 1))
        return QueryPart(kind, tuple(encoded.ids), tuple(answers))
