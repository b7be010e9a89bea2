"""The selectors' rules on an index made of plain Python: rounds, caps, ties, exclusions, zero scores."""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterable
from dataclasses import replace

import pytest
from bm25_reference import ClosedFormula, iterate
from hypothesis import given
from hypothesis import strategies as st

from comem_cli.errors import NoEvidenceError, UsageError
from comem_cli.select.bm25 import Bm25, IterativeBm25
from comem_cli.select.choose import SelectorChoice
from comem_cli.select.selector import Candidates, Hit, Query, Selected
from comem_cli.select.terms import TOKENS


class PlainIndex:
    """Gives every match: more than the contract asks, so the selector must cut by itself."""

    def __init__(self, chunks: dict[int, list[int]]) -> None:
        self.formula = ClosedFormula(chunks)
        self.queries: list[tuple[set[int], int, set[int]]] = []

    def search(
        self, terms: Iterable[str], k: int, exclude: Collection[int], k1: float, b: float, common: float = 1.0
    ) -> list[Hit]:
        ids = {int(term) for term in terms}
        self.queries.append((ids, k, set(exclude)))
        scores = self.formula.scores(ids, k1, b, common)
        return [Hit(c, float(f"{s:.6g}")) for c, s in scores.items() if c not in exclude]


def candidates(chunks: dict[int, list[int]], rank: dict[int, int] | None = None) -> Candidates:
    order = rank or {chunk_id: chunk_id for chunk_id in chunks}
    ordered = sorted(chunks, key=order.__getitem__)
    return Candidates(PlainIndex(chunks), lambda c: TOKENS.terms(chunks[c]), order.__getitem__, ordered)


def ask(ids: Iterable[int]) -> Query:
    return Query("", tuple(TOKENS.terms(ids)))


def test_one_shot_takes_the_best_chunks_in_one_round() -> None:
    found = Bm25(top_k=2).select(ask([1, 2]), candidates({0: [1, 9], 1: [1, 2], 2: [8, 9], 3: [2, 2]}))
    assert [(s.chunk_id, s.round) for s in found] == [(1, 1), (3, 1)]


def test_later_rounds_query_the_ids_of_the_chunks_just_added_over_the_rest() -> None:
    chunks = {0: [1, 2], 1: [2, 3], 2: [3, 4], 3: [4, 5], 4: [99]}
    seen = candidates(chunks)
    found = IterativeBm25(top_k=12, hop=1, rounds=3).select(ask([1]), seen)
    assert [(s.chunk_id, s.round) for s in found] == [(0, 1), (1, 2), (2, 3)]
    assert seen.index.queries == [({1}, 1, set()), ({1, 2}, 1, {0}), ({2, 3}, 1, {0, 1})]


def test_a_later_round_asks_what_its_chunks_ask_for_not_what_they_count() -> None:
    chunks = {0: [1, 2], 1: [2, 3], 2: [5, 6]}
    seen = replace(candidates(chunks), asked=lambda c: [str(chunks[c][0] + 4)])
    found = IterativeBm25(top_k=12, hop=1, rounds=2).select(ask([1]), seen)
    assert [(s.chunk_id, s.round) for s in found] == [(0, 1), (2, 2)]
    assert seen.query_terms([0, 1]) == {"5", "6"}


@pytest.mark.parametrize(("border", "asked"), [(0, {"7", "8"}), (1, {"7", "8", "6"}), (5, {"7", "8", "5", "6"})])
def test_a_chunk_asks_for_the_last_tokens_before_it_as_well(border: int, asked: set[str]) -> None:
    ids = {3: struct.pack("<2I", 5, 6), 9: struct.pack("<2I", 7, 8)}
    before = {3: b"", 9: ids[3]}
    scheme = replace(TOKENS, border=border)
    seen = Candidates.over(PlainIndex({}), scheme, [3, 9], ids.__getitem__, before.__getitem__)
    assert seen.query_terms([9]) == asked
    assert list(seen.terms(9)) == ["7", "8"]
    assert seen.query_terms([3]) == {"5", "6"}
    assert [seen.order(chunk_id) for chunk_id in (3, 9)] == [0, 1]


def test_top_k_caps_the_last_round() -> None:
    chunks = {i: [1, i] for i in range(10, 30)}
    found = IterativeBm25(top_k=6, hop=4, rounds=3).select(ask([1]), candidates(chunks))
    assert [s.round for s in found] == [1] * 4 + [2] * 2


@pytest.mark.parametrize(
    ("top_k", "hop", "shares"),
    [(12, 3, [9, 3]), (12, 4, [8, 4]), (24, 5, [19, 5]), (3, 4, [3]), (5, 3, [3, 2]), (1, 3, [1])],
)
def test_the_question_gets_all_places_but_one_hop_unless_rounds_are_given(
    top_k: int, hop: int, shares: list[int]
) -> None:
    chunks = {i: [1, i] for i in range(10, 60)}
    found = SelectorChoice(top_k=top_k, hop=hop).build().select(ask([1]), candidates(chunks))
    assert [s.round for s in found] == [number for number, share in enumerate(shares, 1) for _ in range(share)]
    paper = SelectorChoice(top_k=top_k, hop=hop, rounds=2).build().select(ask([1]), candidates(chunks))
    assert [s.round for s in paper] == ([1] * hop + [2] * hop)[:top_k]


def test_common_terms_take_no_place_of_a_round_while_rarer_ones_find_something() -> None:
    """Term 1 is in all chunks, 2 in three: the question finds 4 alone, 4 finds 5, 5 finds 6; the rest fills up last."""
    chunks = {0: [1, 9], 1: [1, 8], 2: [1, 7], 3: [1, 6], 4: [1, 2, 3], 5: [1, 3, 4], 6: [1, 4, 5]}
    seen = replace(candidates(chunks), common=0.5)
    found = IterativeBm25(top_k=4, hop=2).select(ask([1, 2]), seen)
    assert [(s.chunk_id, s.round) for s in found] == [(4, 1), (5, 2), (6, 3), (0, 4)]
    everything = IterativeBm25(top_k=4, hop=2).select(ask([1, 2]), candidates(chunks))
    assert [s.chunk_id for s in everything] == [4, 0, 5, 1]
    few = IterativeBm25(top_k=4, hop=2).select(ask([1]), replace(candidates({0: [1], 1: [1]}), common=0.5))
    assert [(s.chunk_id, s.round) for s in few] == [(0, 1), (1, 1)]  # nothing but common terms: they count


def test_ends_early_when_a_round_finds_nothing_new() -> None:
    found = IterativeBm25().select(ask([1]), candidates({0: [1], 1: [2]}))
    assert [(s.chunk_id, s.round) for s in found] == [(0, 1)]


def test_ties_follow_the_document_order_and_not_the_chunk_ids() -> None:
    chunks = {i: [1, 2] for i in range(6)}
    found = Bm25(top_k=3).select(ask([1]), candidates(chunks, {0: 5, 1: 3, 2: 4, 3: 0, 4: 1, 5: 2}))
    assert [s.chunk_id for s in found] == [3, 4, 5]


def test_repeated_and_unknown_question_ids_change_nothing() -> None:
    chunks = {0: [1, 2], 1: [2, 3], 2: [3]}
    plain = IterativeBm25().select(ask([2, 3]), candidates(chunks))
    assert IterativeBm25().select(ask([3, 2, 2, 3, 4_294_967_295]), candidates(chunks)) == plain


class FixedIndex:
    def search(self, terms: Iterable[str], k: int, exclude: Collection[int], k1: float, b: float) -> list[Hit]:
        return [Hit(0, 0.0), Hit(1, 0.5)]


def test_a_chunk_with_score_zero_is_never_selected() -> None:
    found = Bm25().select(ask([1]), Candidates(FixedIndex(), lambda _: (), lambda chunk_id: chunk_id))
    assert found == (Selected(1, 0.5, 1),)


@pytest.mark.parametrize("selector", [Bm25(), IterativeBm25()])
@pytest.mark.parametrize("question", [[], [7]])
def test_no_hit_in_round_one_is_no_evidence(selector: Bm25 | IterativeBm25, question: list[int]) -> None:
    with pytest.raises(NoEvidenceError) as caught:
        selector.select(ask(question), candidates({0: [1], 1: [2]}))
    assert caught.value.exit_code == 4
    assert "comem" in caught.value.hint


@pytest.mark.parametrize("name", ["top_k", "hop", "rounds", "first"])
def test_counts_below_one_are_refused(name: str) -> None:
    with pytest.raises(UsageError):
        IterativeBm25(**{name: 0})


@pytest.mark.parametrize("weights", [{"k1": -0.1}, {"k1": float("nan")}, {"k1": float("inf")}, {"b": 1.1}, {"b": -1}])
def test_impossible_weights_are_refused(weights: dict[str, float]) -> None:
    with pytest.raises(UsageError):
        Bm25(**weights)


@given(
    bodies=st.lists(st.lists(st.integers(0, 6), min_size=1, max_size=8), min_size=1, max_size=12),
    question=st.lists(st.integers(0, 8), min_size=1, max_size=4),
    hop=st.integers(1, 4),
    rounds=st.integers(1, 4),
    top_k=st.integers(1, 9),
    common=st.sampled_from([0.3, 0.5, 1.0]),
    shuffle=st.randoms(use_true_random=False),
)
def test_selection_equals_the_rule_written_out(
    bodies: list[list[int]], question: list[int], hop: int, rounds: int, top_k: int, common: float, shuffle: object
) -> None:
    chunks = dict(enumerate(bodies))
    ranks = list(chunks)
    shuffle.shuffle(ranks)  # type: ignore[attr-defined]
    rank = dict(enumerate(ranks))
    expected = iterate(ClosedFormula(chunks), rank, question, top_k, hop, rounds, common)
    seen = replace(candidates(chunks, rank), common=common)
    try:
        found = IterativeBm25(top_k, hop, rounds).select(ask(question), seen)
    except NoEvidenceError:
        found = ()
    assert [(s.chunk_id, s.round) for s in found] == [(c, r) for c, r, _ in expected]
    assert [s.score for s in found] == pytest.approx([s for _, _, s in expected], rel=1e-5)
