"""Name the selectors of `--selector`, and build one from its parameters.

What a selector needs beside the index is asked for only if it needs it: vectors of the store, or the loaded reader.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from comem_cli.errors import UsageError
from comem_cli.select.attention import Attention, Scorer
from comem_cli.select.bm25 import Bm25, IterativeBm25
from comem_cli.select.dense import Dense, VectorSearch
from comem_cli.select.hybrid import DEPTH, Hybrid
from comem_cli.select.recency import Recency
from comem_cli.select.selector import Selector

DEFAULT_SELECTOR = "bm25-iterative"
HOP = 3  # of 12: dev/LOG.md has what other shares found
SELECTORS = ("bm25-iterative", "bm25", "hybrid", "dense", "attention", "recency")
WITH_VECTORS = ("dense", "hybrid")


@dataclass(frozen=True)
class SelectorChoice:
    """Hold what the user chose; hop and rounds count for `bm25-iterative` only.

    rounds: None gives the question all places but one hop's, and goes on in rounds of `hop` until top_k are found; a
    number gives every round `hop` places: 4 and 3 are the paper's rule.
    """

    name: str = DEFAULT_SELECTOR
    top_k: int = 12
    hop: int = HOP
    rounds: int | None = None

    def __post_init__(self) -> None:
        if self.name not in SELECTORS:
            raise UsageError(f"unknown selector '{self.name}'", f"pass --selector {', '.join(SELECTORS)}")
        IterativeBm25(self.top_k, self.hop, self.rounds)  # refuses counts below 1

    def build(
        self,
        vectors: Callable[[], VectorSearch] | None = None,
        scorer: Scorer | None = None,
        capacity: int = 64,
    ) -> Selector:
        """Build the selector; capacity: chunks that the model's window holds, for `attention`.

        Raises: what `vectors` raises; UsageError (2) where this place has none of what the selector needs.
        """
        if self.name == "bm25-iterative":
            first = None if self.rounds else max(self.hop, self.top_k - self.hop)
            return IterativeBm25(self.top_k, self.hop, self.rounds, first)
        if self.name == "bm25":
            return Bm25(self.top_k)
        if self.name == "recency":
            return Recency(self.top_k)
        if self.name in WITH_VECTORS and vectors is not None:
            if self.name == "dense":
                return Dense(vectors(), self.top_k)
            deep = max(DEPTH, self.top_k)
            return Hybrid((Bm25(deep), Dense(vectors(), deep)), self.top_k)
        if self.name == "attention" and scorer is not None:
            return Attention(scorer, self.top_k, capacity)
        raise UsageError(f"the selector {self.name} is not to be had here", "pass --selector bm25")
