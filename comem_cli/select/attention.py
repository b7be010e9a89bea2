"""Select chunks by how much the reader's question attends to them, before the pack is cut to what it may hold.

The paper's Table 13 names the method without its details. Here all candidates are read as one pack and a chunk scores
the attention mass that the question's tokens put on it (`Scorer`, made in `read.attention`). Where the store exceeds
`capacity`, the candidates are the best of BM25: the model's window bounds what attention can compare.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from comem_cli.select.bm25 import Bm25
from comem_cli.select.selector import Candidates, Hit, Query, Selected, best, one_round, require_positive

Scorer = Callable[[str, Sequence[int]], Sequence[float]]
"""Scores chunks, given in document order, for a question's text."""


@dataclass(frozen=True)
class Attention:
    """Selects the `top_k` chunks of highest attention mass among at most `capacity` candidates, in one round."""

    scorer: Scorer
    top_k: int = 12
    capacity: int = 64

    def __post_init__(self) -> None:
        require_positive(top_k=self.top_k, capacity=self.capacity)

    def select(self, query: Query, candidates: Candidates) -> tuple[Selected, ...]:
        """Return the chunks that the question attends to most. Raises NoEvidenceError of an empty store."""
        ids = list(candidates.ordered)
        if len(ids) > self.capacity:
            found = Bm25(self.capacity).select(query, candidates)
            ids = sorted((choice.chunk_id for choice in found), key=candidates.order)
        masses = self.scorer(query.text, ids) if ids else []
        hits = (Hit(chunk_id, mass) for chunk_id, mass in zip(ids, masses, strict=True))
        return one_round(best(hits, candidates, self.top_k))
