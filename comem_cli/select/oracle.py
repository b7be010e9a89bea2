"""Select the chunks that are known to hold the evidence: the upper bound of a selector, for evaluation only."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

from comem_cli.select.selector import Candidates, Hit, Query, Selected, best, one_round, require_positive


@dataclass(frozen=True)
class Oracle:
    """Selects up to `top_k` chunks of evidence, in document order; `evidence`: chunk ids by the question's text."""

    evidence: Callable[[str], Collection[int]]
    top_k: int = 12

    def __post_init__(self) -> None:
        require_positive(top_k=self.top_k)

    def select(self, query: Query, candidates: Candidates) -> tuple[Selected, ...]:
        """Return the evidence, each chunk with score 1. Raises NoEvidenceError where none is known."""
        known = {Hit(chunk_id, 1.0) for chunk_id in self.evidence(query.text)}
        return one_round(best(known, candidates, self.top_k))
