"""What Write takes: chunks to write, and the small fixed set of padded batch shapes. Loads neither torch nor numpy."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field

TOKENS_PER_BATCH = {"cpu": 512, "mps": 8192, "cuda": 32768}
_TAIL_SHARE = 4  # batches of tails hold so much less: there is one to fill up for each length, in every ingest


@dataclass(frozen=True)
class Shape:
    """Fix one padded batch: `batch` sequences of `length` tokens."""

    batch: int
    length: int


@dataclass(frozen=True)
class Pending:
    """Hold one chunk to write: its key, its token ids and the left context, both uint32 LE bytes.

    previous: the chunk before it in its document, where Write goes on from that one's state (mode document): a linked
    list, so that a document's chunks take no more memory than its ids.
    """

    key: str
    ids: bytes
    left: bytes = b""
    previous: Pending | None = field(default=None, repr=False, compare=False)

    @property
    def n_tokens(self) -> int:
        """Count the tokens of the forward, left context included."""
        return (len(self.left) + len(self.ids)) // 4


def batch_shapes(chunk: int, left: int, tokens_per_batch: int, *, routed: bool = False) -> tuple[Shape, ...]:
    """Choose the shapes for chunks of up to `chunk` tokens after up to `left` context tokens.

    Lengths are the eighths of the longest sequence, so that short files and the tails of long ones cost little, and a
    whole chunk without context, which begins every document. A batch of whole chunks holds about `tokens_per_batch`
    tokens, one of tails a quarter of that: what is filled up with padding at the end of a Write is work for nothing.
    A sparse-MoE model (`routed`) runs one chunk a batch: its expert GEMMs are shaped by the tokens routed to each
    expert, so a neighbour could change the rounding.
    """
    longest = chunk + left
    lengths = sorted({-(-longest * part // 8) for part in range(1, 9)} | {chunk})

    def batch(length: int) -> int:
        tokens = tokens_per_batch if length in (chunk, longest) else tokens_per_batch // _TAIL_SHARE
        return 1 if routed else max(1, round(tokens / length))

    return tuple(Shape(batch(length), length) for length in lengths)


def shapes_to_json(shapes: Sequence[Shape]) -> str:
    """Render shapes as the JSON list that the fingerprint holds."""
    return json.dumps([[s.batch, s.length] for s in shapes], separators=(",", ":"))


def shapes_from_json(text: str) -> tuple[Shape, ...]:
    """Read shapes back from the fingerprint."""
    return tuple(Shape(int(b), int(n)) for b, n in json.loads(text))


def shape_of(chunk: Pending, shapes: Sequence[Shape]) -> Shape:
    """Return the smallest shape that holds a chunk; `shapes` in order of length."""
    return next(s for s in shapes if chunk.n_tokens <= s.length)
