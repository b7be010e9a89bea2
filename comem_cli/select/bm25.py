"""Select chunks with BM25 over terms: in one shot, or iteratively as the paper does (§4).

Contract: the same question over the same chunks gives the same selection on every run, whatever the index's internal
order. A score is Lucene's, summed over the distinct terms t of the query:
    ln((N - df(t) + .5) / (df(t) + .5) + 1) * tf / (tf + k1 * (1 - b + b * dl / avgdl)),
N, df and the mean length avgdl over the chunks of the store that have a term, dl Lucene's one-byte length (exact to 40,
then rounded down by at most 1/8 of what exceeds 24), without Robertson's constant factor k1 + 1, which changes no
ranking. Lengths are counted in terms; the paper's terms are token ids (`terms.TokenTerms`).
Source: Robertson and Zaragoza (2009), §3.5; `BM25Similarity` and `SmallFloat.byte4ToInt` of Lucene 9.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from comem_cli.errors import UsageError
from comem_cli.select.selector import (
    Candidates,
    Hit,
    Query,
    Selected,
    best,
    no_evidence,
    one_round,
    require_positive,
)

K1 = 1.5
B = 0.75


@dataclass(frozen=True)
class Bm25:
    """Selects the `top_k` best chunks for the question's own terms, in one round."""

    top_k: int = 12
    k1: float = K1
    b: float = B

    def __post_init__(self) -> None:
        require_positive(top_k=self.top_k)
        _require_weights(self.k1, self.b)

    def select(self, query: Query, candidates: Candidates) -> tuple[Selected, ...]:
        """Return the best chunks, best first; ties by document order. Raises NoEvidenceError if none scores."""
        return one_round(_best(candidates, query.terms, self.top_k, frozenset(), self.k1, self.b))


@dataclass(frozen=True)
class IterativeBm25:
    """Selects `hop` chunks a round: first for the question, then for the chunks that the last round added.

    A round does not ask for terms that more than `candidates.common` of the chunks hold, unless it finds nothing
    without them: what shares only "the" with the question shall not take the place of what a later round finds.
    `top_k` caps the whole; rounds: None goes on until it is full. It ends early when a round adds nothing.
    first: chunks of round 1; None: `hop`, as in the paper.
    """

    top_k: int = 12
    hop: int = 4
    rounds: int | None = None
    first: int | None = None
    k1: float = K1
    b: float = B

    def __post_init__(self) -> None:
        require_positive(top_k=self.top_k, hop=self.hop)
        for name in ("rounds", "first"):
            if getattr(self, name) is not None:
                require_positive(**{name: getattr(self, name)})
        _require_weights(self.k1, self.b)

    def select(self, query: Query, candidates: Candidates) -> tuple[Selected, ...]:
        """Return the chosen chunks, round by round, best first; ties by document order.

        Raises NoEvidenceError if no chunk scores in round 1.
        """
        selected: list[Selected] = []
        taken: set[int] = set()
        hits: list[Hit] = []
        for number in range(1, (self.rounds or self.top_k) + 1):
            room = min(self.first or self.hop if number == 1 else self.hop, self.top_k - len(selected))
            if not room:
                break
            terms = query.terms if number == 1 else candidates.query_terms(hit.chunk_id for hit in hits)
            hits = round_hits(candidates, terms, room, taken, self.k1, self.b)
            if not hits:
                break
            selected += [Selected(hit.chunk_id, hit.score, number) for hit in hits]
            taken.update(hit.chunk_id for hit in hits)
        if not selected:
            raise no_evidence()
        return tuple(selected)


def round_hits(
    candidates: Candidates, terms: Iterable[str], k: int, exclude: Collection[int], k1: float, b: float
) -> list[Hit]:
    """Return the k best chunks of a round: for its terms that are not common; where they find none, for all."""
    asked = set(terms)
    if candidates.common < 1:
        hits = best(candidates.index.search(asked, k, exclude, k1, b, candidates.common), candidates, k)
        if hits:
            return hits
    return _best(candidates, asked, k, exclude, k1, b)


def _best(
    candidates: Candidates, terms: Iterable[str], k: int, exclude: Collection[int], k1: float, b: float
) -> list[Hit]:
    """Return the k best chunks with a score above 0: the index gives all that tie at the cut, the order decides."""
    return best(candidates.index.search(set(terms), k, exclude, k1, b), candidates, k)


def _require_weights(k1: float, b: float) -> None:
    if not (math.isfinite(k1) and k1 >= 0):
        raise UsageError(f"k1 must be a number of at least 0, not {k1}", f"the usual value is {K1}")
    if not 0 <= b <= 1:
        raise UsageError(f"b must lie between 0 and 1, not {b}", f"the usual value is {B}")
