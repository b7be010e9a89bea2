"""What a sample is: a pack of chunks and the query parts that are asked of it, and the recipe that they follow.

A query part is what the lower half writes alone, at positions from 0, in serving: a question with its answer. Each is
read after the pack as if it were the only one. Kinds:

| kind | query part | answer positions |
|---|---|---|
| continue | the text that follows the pack's last chunk | none |
| recite | a passage of the pack again | all but its beginning |
| fact | a question for one or two planted facts, and their values | the values |
| chain | a question for the variables of a planted chain of assignments, and their names | the names |
| sentence | "repeat the sentence that begins with ...", and it | the sentence |
| question | a question about the text | the teacher's own greedy answer, filled in later |

Importing this loads no torch.
"""

from __future__ import annotations

import random
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from comem_cli.errors import UsageError

KINDS = ("continue", "recite", "fact", "sentence", "question", "chain")
COPIED = ("recite", "fact", "sentence", "chain")  # the answer stands in the pack: the true tokens are known
PLANTED = ("fact", "chain")
HELD_KINDS = ("fact", "fact", "fact", "fact", "chain", "sentence", "recite")  # of a pack that is measured on
_MOST = {"continue": 1, "question": 1, "chain": 2}  # parts of a kind in one pack
QUERY_ROOM = 192  # tokens kept free for one query part
PARTS_ROOM = 3 * QUERY_ROOM  # tokens of all query parts of a pack
RECIPE = 2  # goes up when a seed and a number give another sample than before: no run goes on with other data
LEAST_CHUNK = 48  # tokens
FIRST_LENGTH = 256  # tokens of the longest pack at the beginning of a growing curriculum


@dataclass(frozen=True)
class Recipe:
    """Choose the samples.

    mix: weights by kind; chunk: tokens; length: tokens of the longest pack with one query part; max_chunks: a pack;
    parts: most query parts a pack; grow: samples over which packs grow to `length`; held: held-out phrasings; step:
    samples of a step, which have the same room while they grow, so that processes end their shares of it together.
    """

    mix: Mapping[str, float]
    chunk: int = 512
    length: int = 2048
    max_chunks: int = 12
    parts: int = 1
    grow: int = 0
    held: bool = False
    step: int = 1

    def __post_init__(self) -> None:
        odd = sorted(set(self.mix) - set(KINDS))
        if odd or not any(weight > 0 for weight in self.mix.values()):
            raise UsageError(f"unknown kind '{odd[0]}'" if odd else "the mix is empty", f"kinds: {', '.join(KINDS)}")
        if self.max_chunks < 1:
            raise UsageError(f"--max-chunks {self.max_chunks} is below 1", "pass --max-chunks 12")
        if self.length < QUERY_ROOM + LEAST_CHUNK + 1:
            raise UsageError(f"--length {self.length} leaves no room for a pack beside the query", "pass --length 2048")

    @property
    def room(self) -> int:
        """Return the tokens of the longest pack."""
        return self.length - QUERY_ROOM - 1

    @property
    def passage(self) -> int:
        """Return the tokens of the longest passage of text in a query part: several in one pack are shorter."""
        return QUERY_ROOM if self.parts == 1 else QUERY_ROOM // 2

    def draw_kinds(self, rng: random.Random) -> list[str]:
        """Draw the kinds of one pack's query parts; where several of a kind make no sense, there are fewer parts."""
        if self.held:
            return list(HELD_KINDS)
        drawn = rng.choices(KINDS, [self.mix.get(kind, 0.0) for kind in KINDS], k=self.parts)
        return [kind for at, kind in enumerate(drawn) if drawn[:at].count(kind) < _MOST.get(kind, self.parts)]

    def draw_shape(self, rng: random.Random, number: int, chunks: int | None = None) -> tuple[int, int]:
        """Draw how many chunks the pack of a sample holds, and of how many tokens; `chunks`: that many if they fit."""
        room = self.room
        if number < self.grow and room > FIRST_LENGTH:
            first = number - number % self.step
            most = FIRST_LENGTH + (room - FIRST_LENGTH) * first // self.grow
            room = random.Random(first).randint(FIRST_LENGTH, most)
        count = chunks or rng.randint(1, self.max_chunks)
        size = min(self.chunk, max(LEAST_CHUNK, room // count))
        if chunks is None and size == self.chunk and rng.random() < 0.25:  # short files give short chunks
            size = rng.randint(min(size, LEAST_CHUNK), size)
        return min(count, max(1, room // size)), size


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
class QueryPart:
    """Hold one query part: its kind, its ids, and [first, last) of each answer in them."""

    kind: str
    ids: tuple[int, ...]
    answers: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True)
class Sample:
    """Hold one sample: stretches in pack order, and what is asked of the pack."""

    stretches: tuple[Stretch, ...]
    parts: tuple[QueryPart, ...]

    @property
    def pack(self) -> list[int]:
        """Return the ids of the pack."""
        return [token for stretch in self.stretches for token in stretch.pack]

    @property
    def lengths(self) -> list[int]:
        """Return the tokens of each chunk of the pack, in order."""
        return [len(stretch.chunks[number]) for stretch in self.stretches for number in stretch.picked]


def fitting(parts: Sequence[QueryPart], room: int = PARTS_ROOM) -> tuple[QueryPart, ...]:
    """Return the first parts, at least one, that have up to `room` tokens together."""
    kept: list[QueryPart] = []
    for part in parts:
        if kept and sum(len(one.ids) for one in kept) + len(part.ids) > room:
            continue
        kept.append(part)
    return tuple(kept)
