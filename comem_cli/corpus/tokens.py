"""Tokenise a long text in pieces, with the same ids as in one go.

The tokenizers library keeps some 140 bytes of memory a byte of text, so a text above SEGMENT characters is cut
where tokenising both sides alone gives what tokenising across the cut gives. Tokenizers split text into words by
local rules and merge within words, so such a cut changes nothing elsewhere. Where no cut passes that test the
text is tokenised whole.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tokenizers import Encoding, Tokenizer

SEGMENT = 1 << 18  # characters
CONTEXT = 1 << 11  # characters on each side of a cut under test
_MAX_TRIALS = 8
# After a line end before text, or before a space between words.
_CUT = re.compile(r"(?<=\n)(?=\S)|(?<=\S)(?= \S)")


@dataclass(frozen=True, slots=True)
class Piece:
    """Hold the encoding of one piece, which starts at character `start`; its offsets count from there."""

    start: int
    encoding: Encoding


def encode_pieces(
    tokenizer: Tokenizer, text: str, *, segment: int = SEGMENT, context: int = CONTEXT
) -> Iterator[Piece]:
    """Tokenise `text` without special tokens; the pieces' ids in a row are `tokenizer.encode(text)`'s."""
    start = 0
    while start < len(text):
        end = _cut(tokenizer, text, start, segment, context)
        yield Piece(start, tokenizer.encode(text[start:end], add_special_tokens=False))
        start = end


def _cut(tokenizer: Tokenizer, text: str, start: int, segment: int, context: int) -> int:
    """Find the end of the piece that starts at `start`: a safe cut, at best just below `segment` characters."""
    while start + segment < len(text):
        window = range(start + segment - segment // 4, start + segment)
        cuts = [match.start() for match in _CUT.finditer(text, window.start, window.stop)]
        for cut in reversed(cuts[-_MAX_TRIALS:]):
            if cut > start and _is_safe(tokenizer, text[max(start, cut - context) : cut], text[cut : cut + context]):
                return cut
        segment *= 2
    return len(text)


def _is_safe(tokenizer: Tokenizer, left: str, right: str) -> bool:
    def ids(text: str) -> list[int]:
        return list(tokenizer.encode(text, add_special_tokens=False).ids)

    return ids(left) + ids(right) == ids(left + right)
