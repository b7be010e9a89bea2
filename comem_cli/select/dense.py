"""Select chunks by the cosine of their vectors and the question's, both from one frozen sentence encoder."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Protocol

from comem_cli.select.selector import Candidates, Hit, Query, Selected, best, one_round, require_positive


class VectorSearch(Protocol):
    """Scores chunks by the meaning of a text."""

    def search(self, text: str, k: int, exclude: Collection[int] = ()) -> list[Hit]:
        """Return the k best chunks outside `exclude` and every further one whose score equals the k-th."""
        ...


@dataclass(frozen=True)
class Dense:
    """Selects the `top_k` chunks nearest to the question, in one round; cosines of 0 and below never count."""

    vectors: VectorSearch
    top_k: int = 12

    def __post_init__(self) -> None:
        require_positive(top_k=self.top_k)

    def select(self, query: Query, candidates: Candidates) -> tuple[Selected, ...]:
        """Return the nearest chunks, best first; ties by document order. Raises NoEvidenceError if none is above 0."""
        return one_round(best(self.vectors.search(query.text, self.top_k), candidates, self.top_k))
