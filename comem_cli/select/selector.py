"""What every selector gets and gives: `Selector.select(query, candidates) -> chosen chunks`.

`Candidates` is all a selector sees of a store, so it can be tested without Lucene. Chunk ids are the catalogue's.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Protocol

from comem_cli.errors import NoEvidenceError, UsageError

if TYPE_CHECKING:
    from comem_cli.select.terms import TermScheme

_ID = 4  # bytes of a stored token id
_KEPT = 256  # chunks whose terms stay in memory, some 50 kB each


@dataclass(frozen=True)
class Query:
    """One question: its text, and its terms under the scheme of the index."""

    text: str
    terms: tuple[str, ...]


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
    """Scores chunks by the terms they share with a query."""

    def search(
        self, terms: Iterable[str], k: int, exclude: Collection[int], k1: float, b: float, common: float = 1.0
    ) -> list[Hit]:
        """Return the k best chunks outside `exclude` and every further one whose score equals the k-th.

        common: terms that more than this share of the chunks hold are not asked for.
        """
        ...


@dataclass(frozen=True)
class Candidates:
    """The chunks of one store: their index, the terms of each, its rank in document order, all ids in that order.

    asked: the terms of a chunk as a query; where it is not given, those that it counts. common: as in `TermScheme`.
    """

    index: ScoredIndex
    terms: Callable[[int], Sequence[str]]
    order: Callable[[int], int]
    ordered: Sequence[int] = ()
    asked: Callable[[int], Sequence[str]] | None = None
    common: float = 1.0

    @classmethod
    def over(
        cls,
        index: ScoredIndex,
        scheme: TermScheme,
        ordered: Sequence[int],
        ids: Callable[[int], bytes],
        before: Callable[[int], bytes],
        order: Callable[[int], int] | None = None,
    ) -> Candidates:
        """Make terms of stored token ids, uint32 little-endian, under the scheme of the index.

        ids: of a chunk; before: of the chunk that stands before it in its document, or none: a chunk asks for its last
        `scheme.border` tokens, too, as a border may cut a sentence. order: rank of a chunk; by default in `ordered`.
        """

        @lru_cache(_KEPT)
        def terms(chunk_id: int) -> Sequence[str]:
            return scheme.terms(decode_ids(ids(chunk_id)))

        @lru_cache(_KEPT)
        def asked(chunk_id: int) -> Sequence[str]:
            border = before(chunk_id)[-_ID * scheme.border :] if scheme.border else b""
            return scheme.query_terms(decode_ids(border + ids(chunk_id)))

        rank = order or {chunk_id: number for number, chunk_id in enumerate(ordered)}.__getitem__
        return cls(index, terms, rank, ordered, asked, scheme.common)

    def query_terms(self, chunk_ids: Iterable[int]) -> set[str]:
        """Return the distinct terms that chunks ask for: the query of a later round."""
        return {term for chunk_id in chunk_ids for term in (self.asked or self.terms)(chunk_id)}


class Selector(Protocol):
    """Chooses the chunks that a question is answered from: a frozen dataclass."""

    def select(self, query: Query, candidates: Candidates) -> tuple[Selected, ...]:
        """Return the chosen chunks, best first within each round; never empty, none twice, ties by document order.

        Raises NoEvidenceError (4) if nothing speaks for any chunk.
        """
        ...


def best(hits: Iterable[Hit], candidates: Candidates, k: int) -> list[Hit]:
    """Return the k best of `hits` with a score above 0; ties by document order."""
    scored = [hit for hit in hits if hit.score > 0]
    return sorted(scored, key=lambda hit: (-hit.score, candidates.order(hit.chunk_id)))[:k]


def one_round(hits: Iterable[Hit]) -> tuple[Selected, ...]:
    """Return ranked hits as the selection of a single round; raises NoEvidenceError (4) where there are none."""
    chosen = tuple(Selected(hit.chunk_id, hit.score, round=1) for hit in hits)
    if not chosen:
        raise no_evidence()
    return chosen


def no_evidence() -> NoEvidenceError:
    """Return the error that says that no chunk matches."""
    return NoEvidenceError(
        "no chunk shares a term with the question",
        "ask in the words of the documents: comem ask STORE QUESTION",
    )


def require_positive(**values: int) -> None:
    """Refuse a count below 1; raises UsageError (2) naming its option."""
    for name, value in values.items():
        if value < 1:
            raise UsageError(f"{name} must be at least 1, not {value}", f"give --{name.replace('_', '-')} 1 or more")


def decode_ids(stored: bytes) -> tuple[int, ...]:
    """Return the token ids of a chunk stored as uint32 little-endian; len(stored) is a multiple of 4."""
    return struct.unpack(f"<{len(stored) // _ID}I", stored)
