"""Say why chunks were selected, and why the next best were not.

Matches are the terms that a chunk shares with what its round asked: the question in round 1, the chunks that the round
before added afterwards; the rarest terms first, and common ones, for which rounds do not ask, only where there are no
others. A chunk is passed over because a cap was reached: the hop of a round,
or the top-k of the whole.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from comem_cli.select.bm25 import IterativeBm25, round_hits
from comem_cli.select.selector import Candidates, Query, Selected, Selector

SHOWN_TERMS = 8
SHOWN_PASSED = 3


@dataclass(frozen=True)
class Match:
    """One shared term: how often the chunk holds it, and how many chunks of the store do (0 where that is unknown)."""

    term: str
    times: int
    chunks: int


@dataclass(frozen=True)
class PassedOver:
    """A chunk that scored, and the reason why it was not selected."""

    chunk_id: int
    score: float
    round: int
    reason: str


@dataclass(frozen=True)
class Explanation:
    """Matches by chunk id, and the best of what was passed over."""

    matches: dict[int, tuple[Match, ...]]
    passed: tuple[PassedOver, ...]


def explain(
    selector: Selector, query: Query, candidates: Candidates, selected: Sequence[Selected], shown: int = SHOWN_PASSED
) -> Explanation:
    """Explain a selection that `selector` just made of the same query and candidates."""
    matches: dict[int, tuple[Match, ...]] = {}
    asked: Iterable[str] = query.terms
    most = len(candidates.ordered) * (candidates.common if isinstance(selector, IterativeBm25) else 1)
    for number in sorted({choice.round for choice in selected}):
        added = [choice.chunk_id for choice in selected if choice.round == number]
        matches.update((chunk_id, _matches(set(asked), chunk_id, candidates, most)) for chunk_id in added)
        asked = candidates.query_terms(added)
    if isinstance(selector, IterativeBm25):
        passed = _of_rounds(selector, query, candidates, selected, shown)
    else:
        passed = _of_one_round(selector, query, candidates, selected, shown)
    return Explanation(matches, tuple(passed))


def _matches(asked: set[str], chunk_id: int, candidates: Candidates, most: float) -> tuple[Match, ...]:
    """List the shared terms that at most `most` chunks hold, or all where there are none such."""
    counts = Counter(term for term in candidates.terms(chunk_id) if term in asked)
    holders = getattr(candidates.index, "chunks_with", lambda term: 0)
    found = [Match(term, times, holders(term)) for term, times in counts.items()]
    found = [match for match in found if match.chunks <= most] or found
    return tuple(sorted(found, key=lambda match: (match.chunks, -match.times, match.term))[:SHOWN_TERMS])


def _of_rounds(
    selector: IterativeBm25, query: Query, candidates: Candidates, selected: Sequence[Selected], shown: int
) -> list[PassedOver]:
    """Ask each round again, without what was selected by its end, and keep the best that no later round took."""
    final = {choice.chunk_id for choice in selected}
    found: dict[int, PassedOver] = {}
    asked: Iterable[str] = query.terms
    for number in sorted({choice.round for choice in selected}):
        for hit in round_hits(candidates, asked, shown, final, selector.k1, selector.b):
            found.setdefault(
                hit.chunk_id, PassedOver(hit.chunk_id, hit.score, number, _cap(selector, selected, number))
            )
        added = [choice.chunk_id for choice in selected if choice.round == number]
        asked = candidates.query_terms(added)
    return list(found.values())


def _cap(selector: IterativeBm25, selected: Sequence[Selected], number: int) -> str:
    if number == max(choice.round for choice in selected) and len(selected) >= selector.top_k:
        return f"the {selector.top_k} chunks of --top-k were full"
    if number == 1 and selector.first:
        return f"round 1 takes {selector.first} chunks, and leaves {selector.hop} to later rounds (--hop)"
    return f"round {number} takes {selector.hop} chunks (--hop)"


def _of_one_round(
    selector: Selector, query: Query, candidates: Candidates, selected: Sequence[Selected], shown: int
) -> list[PassedOver]:
    wider: Any = selector
    more = replace(wider, top_k=wider.top_k + shown).select(query, candidates)
    final = {choice.chunk_id for choice in selected}
    reason = f"the {wider.top_k} chunks of --top-k were full"
    return [PassedOver(c.chunk_id, c.score, c.round, reason) for c in more if c.chunk_id not in final]
