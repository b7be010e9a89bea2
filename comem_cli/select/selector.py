"""What every selector gets and gives: `Selector.select(question_ids, candidates) -> chosen chunks`.

`Candidates` is all a selector sees of a store, so it can be tested without Lucene. Chunk ids are the catalogue's.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class Hit:
    """One scored chunk."""

    chunk_id: int
    score: float


@dataclass(frozen=True)
class Selected:
    """One chosen chunk, with the score and the round (from 1) that chose it."""

    chunk_id: int
    score: float
    round: int


class ScoredIndex(Protocol):
    """Scores chunks by the token ids they share with a query."""

    def search(self, ids: Iterable[int], k: int, exclude: Collection[int], k1: float, b: float) -> list[Hit]:
        """Return the k best chunks outside `exclude` and every further one whose score equals the k-th."""
        ...


@dataclass(frozen=True)
class Candidates:
    """The chunks of one store: their index, their token ids (uint32 LE bytes) and their rank in document order."""

    index: ScoredIndex
    token_ids: Callable[[int], bytes]
    order: Callable[[int], int]


class Selector(Protocol):
    """Chooses the chunks that a question is answered from."""

    def select(self, question_ids: Iterable[int], candidates: Candidates) -> tuple[Selected, ...]:
        """Return the chosen chunks, best first within each round; never empty.

        Raises NoEvidenceError if no chunk shares a token id with the question.
        """
        ...


def decode_ids(stored: bytes) -> tuple[int, ...]:
    """Return the token ids of a chunk stored as uint32 little-endian; len(stored) is a multiple of 4."""
    return struct.unpack(f"<{len(stored) // 4}I", stored)
