"""Put the explanation of a selection into JSON values, chunks by their citation and terms as people read them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from comem_cli.select.explain import Explanation
from comem_cli.select.selector import Query, Selected
from comem_cli.select.terms import CUT, TermScheme
from comem_cli.store.reader import StoreReader


def selection_json(
    reader: StoreReader,
    scheme: TermScheme,
    query: Query,
    explanation: Explanation,
    selected: Sequence[Selected],
    kept: int,
    room: int,
) -> dict[str, Any]:
    """Return the question's terms, the first `kept` selected chunks with their matches, and what was passed over.

    A question's terms are shown without the rests of its words, which only ever match a word that a border cut.
    room: tokens that the pack holds, the reason why the rest of `selected` was left out.
    """
    dropped = [_entry(reader, choice) | {"reason": f"the pack holds {room} tokens"} for choice in selected[kept:]]
    passed = [_entry(reader, over) | {"reason": over.reason} for over in explanation.passed]

    def matches(choice: Selected) -> list[dict[str, Any]]:
        return [
            {"term": scheme.readable(match.term), "times": match.times, "chunks": match.chunks}
            for match in explanation.matches[choice.chunk_id]
        ]

    return {
        "terms": scheme.name,
        "question_terms": [scheme.readable(term) for term in query.terms if not term.startswith(CUT)],
        "selected": [_entry(reader, choice) | {"matches": matches(choice)} for choice in selected[:kept]],
        "not_selected": [*dropped, *passed],
    }


def _entry(reader: StoreReader, choice: Any) -> dict[str, Any]:
    """Return citation, score and round of a selected chunk or one that was passed over."""
    place = reader.places([choice.chunk_id])[choice.chunk_id][0]
    lines = [place.line_first, place.line_last]
    return {"path": place.path, "lines": lines, "score": choice.score, "round": choice.round}
