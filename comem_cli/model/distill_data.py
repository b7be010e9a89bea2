"""What a distillation step reads: packs of chunks cut as at ingest, and a query part, both drawn from a corpus.

A sample is a function of (texts, recipe, seed, number) alone, so a resumed run goes on with the data that an
undisturbed one sees. Its pack holds 1 to `max_chunks` chunks of one to three stretches of text, contiguous or not. Its
query part, which the lower half writes alone, is one of

| kind | query part | answer positions |
|---|---|---|
| continue | the text that follows the pack's last chunk | none |
| recite | a passage of the pack again | all but its beginning |
| fact | a question for a planted fact, and its value | the value |
| sentence | "repeat the sentence that begins with ...", and it | the sentence |
| question | a question about the text | the teacher's own greedy answer, filled in later |

Facts are planted at sentence ends before the text is cut, with distractors of the same form in other places. More
chunks than fit at full length are shorter ones, as short files give. Importing this loads no torch.
"""

from __future__ import annotations

import random
import re
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from comem_cli.errors import UsageError
from comem_cli.model import distill_facts as facts

if TYPE_CHECKING:
    from tokenizers import Tokenizer

KINDS = ("continue", "recite", "fact", "sentence", "question")
QUERY_ROOM = 192  # tokens kept free for the query part
LEAST_CHUNK = 48  # tokens
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+|\n+")
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
_ASK = ("\n\nQuestion: {question}\nAnswer:", "\n\nQ: {question}\nA:", "\n\n{question}\n")


@dataclass(frozen=True)
class Recipe:
    """Choose the samples: weights by kind, tokens a chunk, tokens a sample, chunks a pack; held: held-out phrasings."""

    mix: Mapping[str, float]
    chunk: int = 512
    length: int = 2048
    max_chunks: int = 12
    held: bool = False

    def __post_init__(self) -> None:
        odd = sorted(set(self.mix) - set(KINDS))
        if odd or not any(weight > 0 for weight in self.mix.values()):
            raise UsageError(f"unknown kind '{odd[0]}'" if odd else "the mix is empty", f"kinds: {', '.join(KINDS)}")
        if self.max_chunks < 1:
            raise UsageError(f"--max-chunks {self.max_chunks} is below 1", "pass --max-chunks 12")
        if self.length < QUERY_ROOM + LEAST_CHUNK + 1:
            raise UsageError(f"--length {self.length} leaves no room for a pack beside the query", "pass --length 2048")


@dataclass(frozen=True)
class Stretch:
    """Hold a stretch of text as a document: the ids of its chunks, and the numbers of those in the pack, ascending."""

    chunks: tuple[array[int], ...] = field(repr=False)
    picked: tuple[int, ...]

    @property
    def pack(self) -> list[int]:
        """Return the ids of the picked chunks in order."""
        return [token for number in self.picked for token in self.chunks[number]]


@dataclass(frozen=True)
class Sample:
    """Hold one sample: stretches in pack order, ids of the query part, [first, last) of the answer in it."""

    kind: str
    stretches: tuple[Stretch, ...]
    query: tuple[int, ...]
    answer: tuple[int, int]

    @property
    def pack(self) -> list[int]:
        """Return the ids of the pack."""
        return [token for stretch in self.stretches for token in stretch.pack]


class Sampler:
    """Draw samples from texts."""

    def __init__(self, texts: Sequence[str], tokenizer: Tokenizer, recipe: Recipe) -> None:
        """Keep what is long enough; raises UsageError (2) where nothing is."""
        self._texts = [text for text in texts if len(text) >= 4 * LEAST_CHUNK]
        if not self._texts:
            raise UsageError("the corpus holds no text to train on", "name folders or files with more text")
        self._weights = [len(text) for text in self._texts]
        self._tokenizer = tokenizer
        self._recipe = recipe

    def sample(self, seed: int, number: int) -> Sample:
        """Draw sample `number` of a run with this seed."""
        rng = random.Random(f"{seed}/{number}")
        recipe = self._recipe
        kind = rng.choices(KINDS, [recipe.mix.get(kind, 0.0) for kind in KINDS])[0]
        room = recipe.length - QUERY_ROOM - 1
        count = rng.randint(1, recipe.max_chunks)
        size = min(recipe.chunk, max(LEAST_CHUNK, room // count))
        if size == recipe.chunk and rng.random() < 0.25:  # short files give short chunks
            size = rng.randint(min(size, LEAST_CHUNK), size)
        count = min(count, max(1, room // size))
        planted = facts.draw_facts(rng, rng.randint(1, 4 + count)) if kind == "fact" else []
        target = planted[0] if planted else None
        stretches = []
        found = False
        parts = _shares(rng, count)
        home = rng.randrange(len(parts))  # the stretch that holds the fact which is asked for
        statement = rng.choice(facts.HELD_STATEMENTS if recipe.held else facts.STATEMENTS)
        for place, wanted in enumerate(parts):
            here = [target] if target is not None and place == home else []
            here += [fact for fact in planted[1:] if rng.randrange(len(parts)) == place]
            lines = [fact.state(statement) for fact in here]
            stretch, within = self._stretch(rng, wanted, size, lines)
            stretches.append(stretch)
            found |= bool(here) and here[0] is target and within
        if target is not None and found:
            query, answer = self._fact(rng, target)
        else:
            query, answer = self._query(rng, "continue" if kind == "fact" else kind, stretches)
            kind = "continue" if kind == "fact" else kind
        return Sample(kind, tuple(stretches), tuple(query), answer)

    def _stretch(self, rng: random.Random, wanted: int, size: int, lines: Sequence[str]) -> tuple[Stretch, bool]:
        """Cut a stretch of `wanted` picked chunks; tell whether lines[0] is wholly in them."""
        spread = wanted if rng.random() < 0.5 else rng.randint(wanted, 2 * wanted + 1)
        text, spans = self._plant(rng, (spread + 1) * size, lines)
        encoded = self._tokenizer.encode(text, add_special_tokens=False)
        ids = array("I", encoded.ids[: (spread + 1) * size])
        chunks = tuple(ids[at : at + size] for at in range(0, len(ids), size))
        forced: set[int] = set()
        if spans:
            first, last = encoded.char_to_token(spans[0][0]), encoded.char_to_token(spans[0][1] - 1)
            if first is not None and last is not None and last < len(ids):
                forced = set(range(first // size, last // size + 1))
                if len(forced) > wanted:  # across more chunks than there is room for
                    forced = set()
        # One chunk more than the pack can hold is cut, so that text follows the last one.
        usable = max(1, min(spread, len(chunks) - 1))
        if forced and max(forced) >= usable:
            usable = max(forced) + 1
        wanted = min(wanted, usable)
        if wanted == usable or (not forced and rng.random() < 0.5):
            start = rng.randint(0, usable - wanted)
            picked = list(range(start, start + wanted))
        else:
            others = [number for number in range(usable) if number not in forced]
            picked = sorted(forced | set(rng.sample(others, wanted - len(forced))))
        return Stretch(chunks, tuple(picked)), bool(forced)

    def _plant(self, rng: random.Random, tokens: int, lines: Sequence[str]) -> tuple[str, list[tuple[int, int]]]:
        """Take about `tokens` tokens of text from a sentence on; put lines between sentences and say where they are."""
        text = rng.choices(self._texts, self._weights)[0]
        length = 6 * tokens  # characters, more than enough; what is too much is cut off as tokens
        start = rng.randrange(max(1, len(text) - length // 2))
        begin = _SENTENCE_END.search(text, start) if start else None
        start = begin.end() if begin and begin.end() < len(text) - 4 * LEAST_CHUNK else start
        stretch = text[start : start + length]
        ends = [match.end() for match in _SENTENCE_END.finditer(stretch) if match.end() < 3 * tokens] or [0]
        places = sorted((rng.choice(ends), number) for number in range(len(lines)))
        pieces: list[str] = []
        spans: dict[int, tuple[int, int]] = {}
        at = before = 0
        for place, number in places:
            pieces += [stretch[before:place], lines[number], rng.choice((" ", "\n"))]
            at += place - before
            spans[number] = (at, at + len(lines[number]))
            at += len(lines[number]) + 1
            before = place
        pieces.append(stretch[before:])
        return "".join(pieces), [spans[number] for number in range(len(lines))]

    def _fact(self, rng: random.Random, fact: facts.Fact) -> tuple[list[int], tuple[int, int]]:
        held = self._recipe.held
        question = rng.choice(facts.HELD_QUESTIONS if held else facts.QUESTIONS)
        frame = rng.choice(facts.HELD_FRAMES if held else facts.FRAMES)
        return self._encode(*fact.ask(question, frame))

    def _query(self, rng: random.Random, kind: str, stretches: Sequence[Stretch]) -> tuple[list[int], tuple[int, int]]:
        make: dict[str, Callable[[random.Random, Sequence[Stretch]], tuple[list[int], tuple[int, int]]]] = {
            "recite": self._recite,
            "sentence": self._sentence,
            "question": self._question,
        }
        return make.get(kind, self._follow)(rng, stretches)

    def _follow(self, rng: random.Random, stretches: Sequence[Stretch]) -> tuple[list[int], tuple[int, int]]:
        """Go on after the last chunk; where nothing follows, recite."""
        last = stretches[-1]
        after = [token for chunk in last.chunks[last.picked[-1] + 1 :] for token in chunk]
        if len(after) < 8:
            return self._recite(rng, stretches)
        query = after[: rng.randint(8, QUERY_ROOM)]
        return query, (len(query), len(query))

    def _recite(self, rng: random.Random, stretches: Sequence[Stretch]) -> tuple[list[int], tuple[int, int]]:
        pack = rng.choice(stretches).pack
        start = rng.randrange(max(1, len(pack) - 16))
        query = pack[start : start + rng.randint(16, QUERY_ROOM)]
        return query, (min(8, len(query)), len(query))

    def _sentence(self, rng: random.Random, stretches: Sequence[Stretch]) -> tuple[list[int], tuple[int, int]]:
        stretch = rng.choice(stretches)
        text = self._tokenizer.decode(list(stretch.chunks[rng.choice(stretch.picked)]))
        fit = [part.strip() for part in _SENTENCE_END.split(text)[1:-1]]
        fit = [part for part in fit if 40 <= len(part) <= 300 and len(part.split()) >= 7]
        if not fit:
            return self._recite(rng, stretches)
        sentence = rng.choice(fit)
        head = " ".join(sentence.split()[: rng.randint(3, 5)])
        prompt = rng.choice(_ASK).format(question=rng.choice(_REPEAT).format(head=head))
        blank = "" if prompt.endswith("\n") else " "
        begin = len(prompt) + len(blank)
        return self._encode(prompt + blank + sentence, begin, begin + len(sentence))

    def _question(self, rng: random.Random, stretches: Sequence[Stretch]) -> tuple[list[int], tuple[int, int]]:
        names = _NAME.findall(self._tokenizer.decode(rng.choice(stretches).pack))
        question = rng.choice(_ABOUT).format(name=rng.choice(names) if names else "the first person")
        query, _ = self._encode(_ASK[0].format(question=question), 0, 0)
        return query, (len(query), len(query))

    def _encode(self, text: str, first: int, last: int) -> tuple[list[int], tuple[int, int]]:
        """Tokenise; return the ids and the tokens that hold characters [first, last) of the text."""
        encoded = self._tokenizer.encode(text, add_special_tokens=False)
        ids: list[int] = encoded.ids[:QUERY_ROOM]
        inside = [at for at, (a, b) in enumerate(encoded.offsets[:QUERY_ROOM]) if b > first and a < last]
        return ids, (inside[0], inside[-1] + 1) if inside else (len(ids), len(ids))


def _shares(rng: random.Random, count: int) -> list[int]:
    """Share `count` chunks out among one to three stretches."""
    cuts = sorted(rng.sample(range(1, count), min(count - 1, rng.randint(0, 2))))
    return [b - a for a, b in zip([0, *cuts], [*cuts, count], strict=True)]


def hold_out(texts: Sequence[str]) -> tuple[list[str], list[str]]:
    """Split texts into those to train on and those to measure on: every tenth, or the ends of each if few."""
    if len(texts) >= 10:
        kept = [text for number, text in enumerate(texts) if number % 10 != 9]
        return kept, [text for number, text in enumerate(texts) if number % 10 == 9]
    cuts = [len(text) * 9 // 10 for text in texts]
    ends = [text[cut:] for text, cut in zip(texts, cuts, strict=True)]
    return [text[:cut] for text, cut in zip(texts, cuts, strict=True)], ["\n".join(ends)]
