"""Select the last chunks of the store: what a model that only kept the end of a text would see (paper, Table 13)."""

from __future__ import annotations

from dataclasses import dataclass

from comem_cli.select.selector import Candidates, Hit, Query, Selected, one_round, require_positive


@dataclass(frozen=True)
class Recency:
    """Selects the `top_k` last chunks of document order, the very last first; the question does not matter."""

    top_k: int = 12

    def __post_init__(self) -> None:
        require_positive(top_k=self.top_k)

    def select(self, query: Query, candidates: Candidates) -> tuple[Selected, ...]:
        """Return the last chunks; the score falls from 1 by equal steps. Raises NoEvidenceError of an empty store."""
        last = candidates.ordered[-self.top_k :][::-1]
        return one_round(Hit(chunk_id, 1 - place / len(last)) for place, chunk_id in enumerate(last))
