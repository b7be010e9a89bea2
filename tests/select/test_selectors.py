"""One matrix over every selector, and what each one does of its own."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from dataclasses import FrozenInstanceError

import pytest
from bm25_reference import ClosedFormula

from comem_cli.errors import NoEvidenceError, UsageError
from comem_cli.select.attention import Attention
from comem_cli.select.bm25 import Bm25, IterativeBm25
from comem_cli.select.choose import SELECTORS, SelectorChoice
from comem_cli.select.dense import Dense
from comem_cli.select.explain import explain
from comem_cli.select.hybrid import RANK_OFFSET, Hybrid
from comem_cli.select.oracle import Oracle
from comem_cli.select.recency import Recency
from comem_cli.select.selector import Candidates, Hit, Query, Selector

# Ids are not in document order: 40 and 10 hold the same words, and 10 comes first.
CHUNKS = {
    30: "the pilots wait at the gate",
    10: "the harbour ledger lies open",
    40: "the harbour ledger lies open",
    20: "a ledger of pilots",
    50: "storm cones",
}
ORDER = list(CHUNKS)
QUESTION = Query("where is the ledger?", ("where", "is", "the", "ledger"))


class WordIndex:
    def __init__(self, chunks: dict[int, str]) -> None:
        self.formula = ClosedFormula({key: text.split() for key, text in chunks.items()})  # type: ignore[misc]

    def search(self, terms: Iterable[str], k: int, exclude: Collection[int], k1: float, b: float) -> list[Hit]:
        scores = self.formula.scores(terms, k1, b)  # type: ignore[arg-type]
        return [Hit(key, float(f"{score:.6g}")) for key, score in scores.items() if key not in exclude]

    def chunks_with(self, term: str) -> int:
        return self.formula.holders[term]  # type: ignore[index]


class WordVectors:
    """Cosine of sets of words: what a vector search gives, without a model."""

    def search(self, text: str, k: int, exclude: Collection[int] = ()) -> list[Hit]:
        asked = {word.strip("?") for word in text.split()}
        hits = []
        for key, chunk in CHUNKS.items():
            words = set(chunk.split())
            hits.append(Hit(key, round(len(asked & words) / math.sqrt(len(asked) * len(words)), 5)))
        return [hit for hit in hits if hit.chunk_id not in exclude]


def candidates(chunks: dict[int, str] = CHUNKS) -> Candidates:
    order = list(chunks)
    return Candidates(WordIndex(chunks), lambda key: chunks[key].split(), order.index, order)


def masses(text: str, chunk_ids: Iterable[int]) -> list[float]:
    return [float("ledger" in CHUNKS[key]) for key in chunk_ids]


def make(name: str, top_k: int) -> Selector:
    return {
        "bm25": lambda: Bm25(top_k),
        "bm25-iterative": lambda: IterativeBm25(top_k, hop=2, rounds=3),
        "recency": lambda: Recency(top_k),
        "oracle": lambda: Oracle(lambda text: {40, 10, 20} if "ledger" in text else (), top_k),
        "attention": lambda: Attention(masses, top_k),
        "dense": lambda: Dense(WordVectors(), top_k),
        "hybrid": lambda: Hybrid((Bm25(9), Dense(WordVectors(), 9)), top_k),
    }[name]()


NAMES = [*SELECTORS, "oracle"]


@pytest.mark.parametrize("name", NAMES)
def test_the_same_question_gives_the_same_chunks_none_twice_and_never_more_than_asked(name: str) -> None:
    whole = make(name, 5).select(QUESTION, candidates())
    assert whole == make(name, 5).select(QUESTION, candidates())
    ids = [choice.chunk_id for choice in whole]
    assert len(set(ids)) == len(ids) and set(ids) <= set(CHUNKS)
    for top_k in (1, 2, 3):
        assert [c.chunk_id for c in make(name, top_k).select(QUESTION, candidates())] == ids[:top_k]


@pytest.mark.parametrize("name", NAMES)
def test_each_round_is_sorted_by_score_and_ties_follow_document_order(name: str) -> None:
    chosen = make(name, 5).select(QUESTION, candidates())
    keys = [(choice.round, -choice.score, ORDER.index(choice.chunk_id)) for choice in chosen]
    assert keys == sorted(keys)
    assert all(choice.score > 0 for choice in chosen)


@pytest.mark.parametrize("name", [name for name in NAMES if name != "recency"])
def test_the_earlier_of_two_equal_chunks_comes_first(name: str) -> None:
    ids = [choice.chunk_id for choice in make(name, 5).select(QUESTION, candidates())]
    assert ids.index(10) < ids.index(40)


@pytest.mark.parametrize("name", NAMES)
def test_an_empty_store_is_no_evidence(name: str) -> None:
    class Nothing:
        def search(self, text: str, k: int, exclude: Collection[int] = ()) -> list[Hit]:
            return []

    empty = {
        "dense": Dense(Nothing()),
        "hybrid": Hybrid((Bm25(), Dense(Nothing()))),
        "oracle": Oracle(lambda text: ()),
    }.get(name) or make(name, 3)
    with pytest.raises(NoEvidenceError) as caught:
        empty.select(QUESTION, candidates({}))
    assert caught.value.exit_code == 4


@pytest.mark.parametrize("name", NAMES)
def test_selectors_are_frozen_and_refuse_counts_below_one(name: str) -> None:
    with pytest.raises(UsageError):
        make(name, 0)
    with pytest.raises(FrozenInstanceError):
        make(name, 3).top_k = 4  # type: ignore[attr-defined]


def test_recency_takes_the_last_chunks_of_document_order() -> None:
    assert [c.chunk_id for c in Recency(3).select(QUESTION, candidates())] == [50, 20, 40]


def test_hybrid_adds_reciprocal_ranks() -> None:
    lists = [[c.chunk_id for c in s.select(QUESTION, candidates())] for s in (Bm25(9), Dense(WordVectors(), 9))]
    chosen = make("hybrid", 5).select(QUESTION, candidates())
    for choice in chosen:
        ranks = [1 + ids.index(choice.chunk_id) for ids in lists if choice.chunk_id in ids]
        assert choice.score == pytest.approx(sum(1 / (RANK_OFFSET + rank) for rank in ranks))
    assert {choice.chunk_id for choice in chosen} == set(lists[0]) | set(lists[1])


def test_attention_sees_all_chunks_in_document_order_or_the_best_of_bm25() -> None:
    seen: list[list[int]] = []

    def scorer(text: str, chunk_ids: Iterable[int]) -> list[float]:
        seen.append(list(chunk_ids))
        return [1.0] * len(seen[-1])

    Attention(scorer, 2, capacity=5).select(QUESTION, candidates())
    Attention(scorer, 2, capacity=2).select(QUESTION, candidates())
    assert seen == [ORDER, [10, 40]]


def test_choices_by_name() -> None:
    built = [SelectorChoice(name, 3).build(WordVectors, masses) for name in SELECTORS]
    assert [type(one).__name__ for one in built] == [
        *("IterativeBm25", "Bm25", "Hybrid", "Dense", "Attention", "Recency")
    ]
    with pytest.raises(UsageError):
        SelectorChoice("nearest")
    with pytest.raises(UsageError):
        SelectorChoice("dense").build()


@pytest.mark.parametrize("name", NAMES)
def test_every_selection_can_be_explained(name: str) -> None:
    selector = make(name, 2)
    chosen = selector.select(QUESTION, candidates())
    told = explain(selector, QUESTION, candidates(), chosen, shown=9)
    assert set(told.matches) == {choice.chunk_id for choice in chosen}
    assert told.matches.keys().isdisjoint(over.chunk_id for over in told.passed)
    assert all("2 chunks of --top-k" in over.reason for over in told.passed)


def test_an_explanation_names_shared_terms_rarest_first_and_the_cap_of_each_round() -> None:
    selector = IterativeBm25(top_k=3, hop=1, rounds=2)
    chosen = selector.select(QUESTION, candidates())
    told = explain(selector, QUESTION, candidates(), chosen, shown=9)
    first, second = (choice.chunk_id for choice in chosen)
    assert [(m.term, m.times, m.chunks) for m in told.matches[first]] == [("ledger", 1, 3), ("the", 1, 3)]
    assert {match.term for match in told.matches[second]} == {"the", "harbour", "ledger", "lies", "open"}
    assert [over.reason for over in told.passed] == ["round 1 takes 1 chunks (--hop)"] * len(told.passed)
    assert {over.chunk_id for over in told.passed} == {20, 30}
    shared = IterativeBm25(top_k=3, hop=1, first=2)
    told = explain(shared, QUESTION, candidates(), shared.select(QUESTION, candidates()), shown=9)
    assert "round 1 takes 2 chunks, and leaves 1 to later rounds (--hop)" in {over.reason for over in told.passed}
