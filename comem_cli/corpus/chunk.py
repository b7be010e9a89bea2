"""Cut an extracted text into chunks of `size` tokens, each with its byte and line span.

The ids of all chunks in a row are exactly those of `tokenizer.encode(text, add_special_tokens=False)`. Spans cover
the text without a gap: the first starts where the text does (after a byte-order mark), the last ends where it
ends, and each starts where the one before ends; only a character whose bytes fall into two chunks is in both.
"""

from __future__ import annotations

import builtins
from array import array
from dataclasses import dataclass
from itertools import accumulate
from sys import byteorder
from typing import TYPE_CHECKING

from comem_cli.corpus.extract import Extracted
from comem_cli.corpus.tokens import Piece, encode_pieces

if TYPE_CHECKING:
    from tokenizers import Tokenizer


@dataclass(frozen=True, slots=True)
class Chunk:
    """Hold one chunk: ids as uint32 little-endian, bytes as [first, last), lines 1-based and inclusive."""

    number: int
    ids: builtins.bytes
    n_tokens: int
    bytes: tuple[int, int]
    lines: tuple[int, int]


def chunk(extracted: Extracted, tokenizer: Tokenizer, size: int = 512) -> list[Chunk]:
    """Cut a text into chunks of `size` tokens, the last one shorter.

    Switches truncation and padding of the tokenizer off: either would store other ids than the text's.
    """
    if tokenizer.truncation is not None:
        tokenizer.no_truncation()
    if tokenizer.padding is not None:
        tokenizer.no_padding()
    ids, firsts, lasts = _encode(tokenizer, extracted.text, size)
    spans = _char_spans(firsts, lasts, len(extracted.text))
    byte_at = _positions(spans, extracted)
    chunks = []
    for number, (start, end) in enumerate(spans):
        part = ids[number * size : (number + 1) * size]
        first, last = byte_at[start], byte_at[max(start, end - 1)]
        chunks.append(Chunk(number, _little_endian(part), len(part), (first[0], byte_at[end][0]), (first[1], last[1])))
    return chunks


def _encode(tokenizer: Tokenizer, text: str, size: int) -> tuple[array[int], list[int], list[int]]:
    """Tokenise; return all ids, and where chunks' first tokens start and last tokens end (characters)."""
    ids = array("I")
    firsts: list[int] = []
    lasts: list[int] = []
    for piece in encode_pieces(tokenizer, text):
        before = len(ids)
        ids.extend(piece.encoding.ids)
        count = len(ids) - before
        # Only the tokens on chunk borders are looked at; -before % size is the first chunk start in this piece.
        firsts += [_token_chars(piece, at)[0] for at in range(-before % size, count, size)]
        lasts += [_token_chars(piece, at)[1] for at in range(-(before + 1) % size, count, size)]
    return ids, firsts, lasts


def _token_chars(piece: Piece, at: int) -> tuple[int, int]:
    start, end = piece.encoding.token_to_chars(at) or (0, 0)  # None only past the end
    return piece.start + start, piece.start + end


def _char_spans(firsts: list[int], lasts: list[int], length: int) -> list[tuple[int, int]]:
    """Close the gaps: a chunk starts at its first token or where the chunk before ended, whichever is earlier."""
    if not firsts:
        return []
    # A token that stands for no character may point backwards; spans never do.
    ends = [*accumulate(lasts[: len(firsts) - 1], max), length]
    starts = [0, *(min(first, end) for first, end in zip(firsts[1:], ends, strict=False))]
    return list(zip(accumulate(starts, max), ends, strict=True))


def _positions(spans: list[tuple[int, int]], extracted: Extracted) -> dict[int, tuple[int, int]]:
    """Map each character position that a span needs to its byte and its line."""
    needed = sorted({at for start, end in spans for at in (start, max(start, end - 1), end)})
    return dict(
        zip(needed, zip(extracted.byte_offsets(needed), extracted.line_numbers(needed), strict=True), strict=True)
    )


def _little_endian(ids: array[int]) -> builtins.bytes:
    if byteorder == "big":
        ids.byteswap()
    return ids.tobytes()
