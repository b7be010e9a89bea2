"""Select chunks with BM25 over token ids: in one shot, or iteratively as the paper does (§4).

Contract: the same question over the same chunks gives the same selection on every run, whatever the index's internal
order. A score is Lucene's, summed over the distinct ids t of the query:
    ln((N - df(t) + .5) / (df(t) + .5) + 1) * tf / (tf + k1 * (1 - b + b * dl / avgdl)),
N, df and the mean length avgdl over the whole store, dl Lucene's one-byte length (exact to 40, then rounded down by at
most 1/8 of what exceeds 24), without Robertson's constant factor k1 + 1, which changes no ranking.
Source: Robertson and Zaragoza (2009), §3.5; `BM25Similarity` and `SmallFloat.byte4ToInt` of Lucene 9.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from comem_cli.errors import NoEvidenceError, UsageError
from comem_cli.select.selector import Candidates, Hit, Selected, decode_ids

K1 = 1.5
B = 0.75


@dataclass(frozen=True)
class Bm25:
    """Selects the `top_k` best chunks for the question's own ids, in one round."""

    top_k: int = 12
    k1: float = K1
    b: float = B

    def __post_init__(self) -> None:
        _require_positive(top_k=self.top_k)
        _require_weights(self.k1, self.b)

    def select(self, question_ids: Iterable[int], candidates: Candidates) -> tuple[Selected, ...]:
        """Return the best chunks, best first; ties by document order. Raises NoEvidenceError if none scores."""
        hits = _best(candidates, question_ids, self.top_k, frozenset(), self.k1, self.b)
        if not hits:
            raise _no_evidence()
        return tuple(Selected(hit.chunk_id, hit.score, round=1) for hit in hits)


@dataclass(frozen=True)
class IterativeBm25:
    """Selects `hop` chunks a round: first for the question, then for the chunks that the last round added.

    `top_k` caps the whole. It ends early when a round adds nothing.
    """

    top_k: int = 12
    hop: int = 4
    rounds: int = 3
    k1: float = K1
    b: float = B

    def __post_init__(self) -> None:
        _require_positive(top_k=self.top_k, hop=self.hop, rounds=self.rounds)
        _require_weights(self.k1, self.b)

    def select(self, question_ids: Iterable[int], candidates: Candidates) -> tuple[Selected, ...]:
        """Return the chosen chunks, round by round, best first; ties by document order.

        Raises NoEvidenceError if no chunk scores in round 1.
        """
        selected: list[Selected] = []
        taken: set[int] = set()
        hits: list[Hit] = []
        for number in range(1, self.rounds + 1):
            room = min(self.hop, self.top_k - len(selected))
            if not room:
                break
            query = question_ids if number == 1 else _ids_of(hits, candidates)
            hits = _best(candidates, query, room, taken, self.k1, self.b)
            if not hits:
                break
            selected += [Selected(hit.chunk_id, hit.score, number) for hit in hits]
            taken.update(hit.chunk_id for hit in hits)
        if not selected:
            raise _no_evidence()
        return tuple(selected)


def _ids_of(hits: Iterable[Hit], candidates: Candidates) -> set[int]:
    """Return the distinct token ids of the chunks just added: the next round's query."""
    return {token for hit in hits for token in decode_ids(candidates.token_ids(hit.chunk_id))}


def _best(
    candidates: Candidates, ids: Iterable[int], k: int, exclude: Collection[int], k1: float, b: float
) -> list[Hit]:
    """Return the k best chunks with a score above 0: the index gives all that tie at the cut, the order decides."""
    hits = [hit for hit in candidates.index.search(set(ids), k, exclude, k1, b) if hit.score > 0]
    return sorted(hits, key=lambda hit: (-hit.score, candidates.order(hit.chunk_id)))[:k]


def _no_evidence() -> NoEvidenceError:
    return NoEvidenceError(
        "no chunk shares a term with the question",
        "ask in the words of the documents: comem ask STORE QUESTION",
    )


def _require_positive(**values: int) -> None:
    for name, value in values.items():
        if value < 1:
            raise UsageError(f"{name} must be at least 1, not {value}", f"give --{name.replace('_', '-')} 1 or more")


def _require_weights(k1: float, b: float) -> None:
    if not (math.isfinite(k1) and k1 >= 0):
        raise UsageError(f"k1 must be a number of at least 0, not {k1}", f"the usual value is {K1}")
    if not 0 <= b <= 1:
        raise UsageError(f"b must lie between 0 and 1, not {b}", f"the usual value is {B}")
