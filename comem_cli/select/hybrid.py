"""Select chunks that several selectors rank high: reciprocal rank fusion.

    score(chunk) = sum over the selectors of 1 / (60 + rank), rank from 1; a selector that does not list it adds nothing

Source: Cormack, Clarke and Büttcher (2009), Reciprocal Rank Fusion, with their constant k = 60.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from comem_cli.errors import NoEvidenceError, UsageError
from comem_cli.select.selector import Candidates, Hit, Query, Selected, Selector, best, one_round, require_positive

RANK_OFFSET = 60
DEPTH = 100  # chunks that each selector lists


@dataclass(frozen=True)
class Hybrid:
    """Selects the `top_k` chunks of highest fused score from the lists of `selectors`, in one round.

    Each selector's own `top_k` says how far down its list is looked at (`DEPTH`).
    """

    selectors: tuple[Selector, ...]
    top_k: int = 12

    def __post_init__(self) -> None:
        require_positive(top_k=self.top_k)
        if not self.selectors:
            raise UsageError("hybrid needs selectors to fuse", "pass --selector bm25")

    def select(self, query: Query, candidates: Candidates) -> tuple[Selected, ...]:
        """Return the fused selection, best first. Raises NoEvidenceError where every selector does."""
        fused: dict[int, float] = defaultdict(float)
        for selector in self.selectors:
            for rank, choice in enumerate(_listed(selector, query, candidates), 1):
                fused[choice.chunk_id] += 1 / (RANK_OFFSET + rank)
        hits = (Hit(chunk_id, score) for chunk_id, score in fused.items())
        return one_round(best(hits, candidates, self.top_k))


def _listed(selector: Selector, query: Query, candidates: Candidates) -> tuple[Selected, ...]:
    try:
        return selector.select(query, candidates)
    except NoEvidenceError:  # the other lists may have some
        return ()
