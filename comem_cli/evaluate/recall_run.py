"""Compare selectors and term schemes over one corpus: a row a selector, scheme and k, with bootstrap intervals.

Only the lexical selectors depend on the terms; the others are measured once and their rows name no scheme.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import fmean
from typing import TYPE_CHECKING, Any

from comem_cli.errors import UsageError
from comem_cli.evaluate.recall import (
    NAMES,
    Case,
    Corpus,
    Found,
    candidates_of,
    make_query,
    recall,
    selector_for,
)
from comem_cli.measure.inference import Estimate, mean_interval
from comem_cli.select.attention import Scorer
from comem_cli.select.choose import HOP
from comem_cli.select.dense import VectorSearch
from comem_cli.select.terms import term_scheme

if TYPE_CHECKING:
    import tokenizers

LEXICAL = ("bm25", "bm25-iterative", "hybrid")


@dataclass(frozen=True)
class RecallRow:
    """Hold one line of the table; recall: mean share of needs met, all_found: share of cases with every need met."""

    selector: str
    terms: str
    k: int
    recall: Estimate
    all_found: float

    def to_json(self) -> dict[str, Any]:
        """Return the row as JSON values."""
        estimate = {"recall": self.recall.value, "low": self.recall.low, "high": self.recall.high, "n": self.recall.n}
        return {"selector": self.selector, "terms": self.terms, "k": self.k, **estimate, "all": self.all_found}


def recall_rows(
    corpus: Corpus,
    cases: Sequence[Case],
    tokenizer: tokenizers.Tokenizer,
    *,
    selectors: Sequence[str],
    terms: Sequence[str],
    ks: Sequence[int],
    hop: int = HOP,
    vectors: Callable[[], VectorSearch] | None = None,
    attention: Callable[[], tuple[Scorer, int]] | None = None,
) -> list[RecallRow]:
    """Measure every selector under every scheme; intervals over the cases. `vectors`, `attention`: see `selector_for`.

    Where attention cannot take all chunks at once, its candidates are BM25's over the first of `terms`.
    Raises: UsageError (2) for an unknown selector or scheme, or no k; what `vectors` and `attention` raise.
    """
    if not ks:
        raise UsageError("no k to measure recall at", "pass --k 4,12")
    for name in selectors:
        if name not in NAMES:
            raise UsageError(f"no recall of the selector '{name}'", f"pass --selector {', '.join(NAMES)}")
    rows: list[RecallRow] = []
    for number, scheme_name in enumerate(dict.fromkeys(terms)):
        scheme = term_scheme(scheme_name, tokenizer)
        with candidates_of(corpus, scheme) as candidates:
            for name in dict.fromkeys(selectors):
                if name in LEXICAL or number == 0:
                    found = recall(
                        cases,
                        partial(selector_for, name, cases, hop=hop, vectors=vectors, attention=attention),
                        candidates,
                        make_query(scheme, tokenizer),
                        ks,
                    )
                    rows += rows_of(name, scheme_name if name in LEXICAL else "-", found, ks)
    return rows


def rows_of(selector: str, terms: str, found: Sequence[Found], ks: Sequence[int]) -> list[RecallRow]:
    """Return a row a k of what one selector found; each of `found` has a share for every k."""
    rows = []
    for place, k in enumerate(ks):
        shares = [one.shares[place] for one in found]
        rows.append(RecallRow(selector, terms, k, mean_interval(shares), fmean(share == 1 for share in shares)))
    return rows
