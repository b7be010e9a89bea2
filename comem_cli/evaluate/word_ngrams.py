"""Word n-grams of a text as 64-bit numbers.

A word is a run of letters, digits and combining marks of any script, case-folded, in NFKC; all else separates words.
So quotation marks, hyphens, line breaks and markup make no difference, nor does an accent's encoding. A script without
spaces gives one word a clause: use this for those that have them.

The number of an n-gram is simple tabulation hashing (Zobrist 1970; Carter and Wegman 1979): the exclusive or, over its
places, of a 64-bit number that SHAKE-128 gives for (word, place). Two different n-grams share a number with probability
2**-64, as far as SHAKE-128 cannot be told from chance.
"""

from __future__ import annotations

import hashlib
import re
import unicodedata
from collections.abc import Iterator
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

Grams = NDArray[np.uint64]
Codes = NDArray[np.int64]
UNKNOWN = 0  # the code of a word that the vocabulary does not hold

_WORD = re.compile("(?:[^\\W_]|[\u0300-\u036f])+")


def words(text: str) -> list[str]:
    """Return the normalised words of a text."""
    return [_normal(word) for word in _WORD.findall(text)]


def places(text: str) -> NDArray[np.uint32]:
    """Return where each word stands: (words, 2), the characters [start, end) of the text."""
    spans = (edge for found in _WORD.finditer(text) for edge in found.span())
    return np.fromiter(spans, dtype=np.uint32).reshape(-1, 2)


@lru_cache(maxsize=1 << 16)
def _normal(word: str) -> str:
    return unicodedata.normalize("NFKC", word.casefold())


class Vocabulary:
    """Give every known word a code from 1, and every n-gram of known words its number.

    It grows by `learn` alone; memory is about 8 · n + 150 bytes a distinct word.
    """

    def __init__(self, n: int) -> None:
        self.n = n
        self._codes: dict[str, int] = {}
        self._table = np.zeros((1024, n), dtype=np.uint64)

    def learn(self, text: str) -> Codes:
        """Return the codes (words,) of a text; words that are new are added."""
        found = words(text)
        for word in dict.fromkeys(found):
            if word not in self._codes:
                self._add(word)
        return self._lookup(found)

    def codes(self, text: str) -> Codes:
        """Return the codes (words,) of a text, UNKNOWN for a word that is not there."""
        return self._lookup(words(text))

    def grams(self, codes: Codes) -> tuple[Grams, NDArray[np.int64]]:
        """Return the numbers of the n-grams that hold no unknown word, and the word at which each begins."""
        starts = len(codes) - self.n + 1
        if starts < 1:
            return np.empty(0, dtype=np.uint64), np.empty(0, dtype=np.int64)
        unknown = np.concatenate([[0], np.cumsum(codes == UNKNOWN)])
        begins = np.flatnonzero(unknown[self.n :] == unknown[:starts])
        found = np.zeros(len(begins), dtype=np.uint64)
        for place in range(self.n):
            found ^= self._table[codes[begins + place], place]
        return found, begins

    def _lookup(self, found: list[str]) -> Codes:
        get = self._codes.get
        return np.fromiter((get(word, UNKNOWN) for word in found), dtype=np.int64, count=len(found))

    def _add(self, word: str) -> None:
        code = len(self._codes) + 1
        if code == len(self._table):
            self._table = np.concatenate([self._table, np.zeros_like(self._table)])
        numbers = hashlib.shake_128(word.encode("utf-8", "surrogatepass")).digest(8 * self.n)
        self._table[code] = np.frombuffer(numbers, dtype="<u8")
        self._codes[word] = code


def blocks(text_blocks: Iterator[str]) -> Iterator[str]:
    """Cut blocks of one text again, at blanks alone, so that no word is cut; the last block is what is left.

    A text without a blank is one block.
    """
    rest = ""
    for block in text_blocks:
        rest += block
        cut = max(rest.rfind(" "), rest.rfind("\n")) + 1
        if cut:
            yield rest[:cut]
            rest = rest[cut:]
    yield rest
