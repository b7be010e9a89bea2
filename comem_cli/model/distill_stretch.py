"""Cut stretches of text into chunks, with lines planted at sentence ends before they are cut.

A plant is one or more lines that keep their order. Which chunks of a stretch go into the pack is chosen so that they
hold as many plants as there is room for.
"""

from __future__ import annotations

import random
import re
from array import array
from collections.abc import Sequence
from typing import TYPE_CHECKING

from comem_cli.errors import UsageError
from comem_cli.model.distill_facts import Span
from comem_cli.model.distill_sample import LEAST_CHUNK, Stretch

if TYPE_CHECKING:
    from tokenizers import Encoding, Tokenizer

SENTENCE_END = re.compile(r"(?<=[.!?])\s+|\n+")
Plant = tuple[str, ...]


class Cutter:
    """Draw stretches from texts."""

    def __init__(self, texts: Sequence[str], tokenizer: Tokenizer) -> None:
        """Keep what is long enough; raises UsageError (2) where nothing is."""
        self._texts = [text for text in texts if len(text) >= 4 * LEAST_CHUNK]
        if not self._texts:
            raise UsageError("the corpus holds no text to train on", "name folders or files with more text")
        self._weights = [len(text) for text in self._texts]
        self._tokenizer = tokenizer

    def cut(
        self, rng: random.Random, wanted: int, size: int, plants: Sequence[Plant]
    ) -> tuple[Stretch, frozenset[int]]:
        """Cut a stretch of `wanted` picked chunks of `size` tokens; return it and the plants wholly in the pack."""
        spread = wanted if rng.random() < 0.5 else rng.randint(wanted, 2 * wanted + 1)
        text, spans = self._plant(rng, (spread + 1) * size, plants)
        encoded = self._tokenizer.encode(text, add_special_tokens=False)
        ids = array("I", encoded.ids[: (spread + 1) * size])
        chunks = tuple(ids[at : at + size] for at in range(0, len(ids), size))
        # One chunk more than the pack can hold is cut, so that text follows the last one.
        usable = max(1, min(spread, len(chunks) - 1))
        homes = [_chunks_of(encoded, mine, size) for mine in spans]
        picked = _pick(rng, min(wanted, usable), usable, homes)
        return Stretch(chunks, tuple(picked)), _within(picked, homes)

    def _plant(self, rng: random.Random, tokens: int, plants: Sequence[Plant]) -> tuple[str, list[list[Span]]]:
        """Take about `tokens` tokens of text from a sentence on; put lines between sentences and say where they are."""
        text = rng.choices(self._texts, self._weights)[0]
        length = 6 * tokens  # characters, more than enough; what is too much is cut off as tokens
        start = rng.randrange(max(1, len(text) - length // 2))
        begin = SENTENCE_END.search(text, start) if start else None
        start = begin.end() if begin and begin.end() < len(text) - 4 * LEAST_CHUNK else start
        stretch = text[start : start + length]
        ends = [match.end() for match in SENTENCE_END.finditer(stretch) if match.end() < 3 * tokens] or [0]
        lines = []
        for number, plant in enumerate(plants):
            places = sorted(rng.choices(ends, k=len(plant)))
            lines += [(place, number, line) for place, line in zip(places, plant, strict=True)]
        lines.sort(key=lambda one: one[0])  # stable: the lines of a plant keep their order
        pieces: list[str] = []
        spans: list[list[Span]] = [[] for _ in plants]
        at = before = 0
        for place, number, line in lines:
            pieces += [stretch[before:place], line, rng.choice((" ", "\n"))]
            at += place - before
            spans[number].append((at, at + len(line)))
            at += len(line) + 1
            before = place
        pieces.append(stretch[before:])
        return "".join(pieces), spans


def _chunks_of(encoded: Encoding, spans: Sequence[Span], size: int) -> frozenset[int]:
    """Return the numbers of the chunks that hold these characters."""
    found: set[int] = set()
    for first, last in spans:
        begin, end = encoded.char_to_token(first), encoded.char_to_token(last - 1)
        if begin is None or end is None:
            return frozenset({len(encoded.ids)})  # a number that no chunk has
        found |= set(range(begin // size, end // size + 1))
    return frozenset(found)


def _pick(rng: random.Random, wanted: int, usable: int, homes: Sequence[frozenset[int]]) -> list[int]:
    """Choose `wanted` of the chunks 0..usable-1: a row of them, or any."""
    if wanted == usable or rng.random() < 0.5:
        starts = list(range(usable - wanted + 1))
        rng.shuffle(starts)
        start = max(starts, key=lambda at: len(_within(range(at, at + wanted), homes)))
        return list(range(start, start + wanted))
    forced: set[int] = set()
    for home in homes:
        if max(home) < usable and len(forced | home) <= wanted:
            forced |= home
    others = [number for number in range(usable) if number not in forced]
    return sorted(forced | set(rng.sample(others, wanted - len(forced))))


def _within(picked: Sequence[int], homes: Sequence[frozenset[int]]) -> frozenset[int]:
    return frozenset(number for number, home in enumerate(homes) if home <= set(picked))
