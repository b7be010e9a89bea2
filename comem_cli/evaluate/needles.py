"""Needles: facts planted in the user's own chunks, and whether a reader copies one when it is asked.

Every chunk of a pack gets one fact of the same form (made-up key, value), in phrasings that no adapter of
`comem distill` is trained on; the question asks for one of them, the others distract. This is the shape of RULER's
multikey needles. No decoding is needed: a value is copied where it is the first choice at each of its tokens, which is
what greedy decoding writes.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from comem_cli.errors import UsageError
from comem_cli.evaluate.pack_fidelity import Documents, Pack
from comem_cli.model import distill_facts as facts
from comem_cli.model import distill_phrases as phrases
from comem_cli.read.generate import Reader

if TYPE_CHECKING:
    import tokenizers

_TRIES = 50  # draws of facts, until every line leaves half a chunk to the text
_ENDS = (".", "!", "?", "\n")


@dataclass(frozen=True)
class Needle:
    """Hold one pack with planted facts and the question for one of them.

    documents: for each chunk of the pack, its document through it, planted chunks in place, ids as uint32 LE bytes.
    query: ids of question and value; answer: [first, last) of the value in it.
    """

    documents: tuple[tuple[bytes, ...], ...]
    query: tuple[int, ...]
    answer: tuple[int, int]

    @property
    def question(self) -> tuple[int, ...]:
        """Return the ids before the value."""
        return self.query[: self.answer[0]]


@dataclass(frozen=True)
class Copied:
    """Hold what a reader made of a needle: whether the value is copied; first: logits of its first token, (vocab,)."""

    copied: bool
    first: torch.Tensor


def plant(documents: Documents, pack: Pack, tokenizer: tokenizers.Tokenizer, chunk: int, seed: str) -> Needle:
    """Plant a fact in every chunk of a pack; chunk: most tokens of one, what goes beyond it falls off its end.

    Raises: UsageError (2) where chunks are too short for a fact.
    """
    rng = random.Random(seed)
    drawn, lines = _lines(rng, len(pack), tokenizer, chunk)
    texts = {spot.document: documents.chunks(spot.document) for spot in pack}
    for spot, line in zip(pack, lines, strict=True):
        texts[spot.document][spot.number] = _planted(rng, texts[spot.document][spot.number], line, tokenizer, chunk)
    found = tuple(tuple(texts[spot.document][: spot.number + 1]) for spot in pack)
    asked = rng.choice(drawn)
    return Needle(found, *_ask(rng, asked, tokenizer))


def _lines(
    rng: random.Random, count: int, tokenizer: tokenizers.Tokenizer, chunk: int
) -> tuple[list[facts.Fact], list[list[int]]]:
    for _ in range(_TRIES):
        drawn = facts.draw_facts(rng, count)
        statement = rng.choice(phrases.HELD_STATEMENTS)
        texts = [f"\n{fact.state(statement)}\n" for fact in drawn]
        lines = [tokenizer.encode(text, add_special_tokens=False).ids for text in texts]
        if max(map(len, lines)) <= chunk // 2:
            return drawn, lines
    raise UsageError(
        f"chunks of {chunk} tokens are too short for planted facts", "pass --needles 0, or a larger --chunk"
    )


def _planted(rng: random.Random, stored: bytes, line: list[int], tokenizer: tokenizers.Tokenizer, chunk: int) -> bytes:
    """Put a line after a sentence of a chunk, or at its beginning where none ends in time."""
    ids = np.frombuffer(stored, "<u4").tolist()
    last = min(len(ids), chunk - len(line))
    ends = [at for at in range(1, last + 1) if tokenizer.decode([ids[at - 1]]).rstrip(" ").endswith(_ENDS)]
    at = rng.choice(ends) if ends else 0
    return np.asarray([*ids[:at], *line, *ids[at:]][:chunk], dtype="<u4").tobytes()


def _ask(
    rng: random.Random, fact: facts.Fact, tokenizer: tokenizers.Tokenizer
) -> tuple[tuple[int, ...], tuple[int, int]]:
    """Ask for a fact in held-out words: -> ids of question and value, and which of them hold the value."""
    text, [(first, last)] = fact.ask(rng.choice(phrases.HELD_QUESTIONS), rng.choice(phrases.HELD_FRAMES))
    encoded = tokenizer.encode(text, add_special_tokens=False)
    inside = [at for at, (start, end) in enumerate(encoded.offsets) if end > first and start < last]
    return tuple(encoded.ids), (inside[0], inside[-1] + 1)


@torch.inference_mode()
def copy_value(reader: Reader, rows: torch.Tensor, needle: Needle) -> Copied:
    """Read [BOS; rows; h_j(query)], rows (n, d), and look at the predictions of the value's tokens."""
    first, last = needle.answer
    pack = reader.pack(rows, needle.query, reader.split.lower_cache())
    logits = reader.split.upper(pack, keep=len(needle.query) - first + 1)[0, : last - first]
    wanted = torch.tensor(needle.query[first:last], device=logits.device)
    return Copied(bool((logits.argmax(-1) == wanted).all()), logits[0].float().cpu())
