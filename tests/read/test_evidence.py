"""What goes into a pack beside the selector's own caps, and the explanation of it."""

from __future__ import annotations

import pytest

from comem_cli.errors import UsageError
from comem_cli.model import load
from comem_cli.read.evidence import EvidenceFinder, Extent
from comem_cli.select.bm25 import Bm25
from comem_cli.store.reader import StoreReader
from tests.tiny_store import make_store

QUESTION = "what does the lighthouse keep at dusk?"


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return make_store(tmp_path_factory.mktemp("evidence"))


def find(store, extent=None, top_k=2, room=10_000, why=False):
    with StoreReader(store.path) as reader:
        args = [reader, load.tokenizer(store.files), Bm25(top_k), *([extent] if extent else [])]
        with EvidenceFinder(*args) as finder:
            return finder.find(QUESTION, room, why=why), {row.id: row for row in reader.iter_chunks()}


def test_a_budget_keeps_the_best_that_fit_and_the_smaller_of_budget_and_room_counts(store):
    whole, _ = find(store, top_k=9)
    assert len(whole.pack) > 3
    ranked = [source.key for source in whole.sources]
    by_key = {f"c-{row.key[:12]}": row.n_tokens for row in whole.pack}
    two = by_key[ranked[0]] + by_key[ranked[1]]
    for extent, room in ((Extent(budget=two), 10_000), (Extent(budget=10_000), two), (None, two)):
        some, _ = find(store, extent, top_k=9, room=room)
        assert [source.key for source in some.sources] == ranked[:2]
        assert some.tokens == two
    with pytest.raises(UsageError, match="no chunk fits"):
        find(store, Extent(budget=1))


def test_neighbours_stand_beside_a_selected_chunk_in_its_document_and_come_last(store):
    alone, _ = find(store, top_k=1)
    wide, _ = find(store, Extent(neighbours=1), top_k=1)
    place = alone.sources[0].places[0]
    assert [source.neighbour for source in wide.sources] == [False] + [True] * (len(wide.sources) - 1)
    assert len(wide.sources) > 1
    for source in wide.sources[1:]:
        beside = source.places[0]
        assert beside.document_id == place.document_id and abs(beside.number - place.number) == 1
        assert source.to_json()["neighbour"] is True and source.score == alone.sources[0].score
    assert "neighbour" not in wide.sources[0].to_json()
    numbers = {source.key: source.places[0].order for source in wide.sources}
    assert [numbers[f"c-{row.key[:12]}"] for row in wide.pack] == sorted(numbers.values())
    none, _ = find(store, Extent(neighbours=1), top_k=1, room=alone.tokens)
    assert [row.id for row in none.pack] == [row.id for row in alone.pack]


@pytest.mark.parametrize("wrong", [{"budget": 0}, {"neighbours": -1}])
def test_impossible_extents_are_refused(wrong):
    with pytest.raises(UsageError):
        Extent(**wrong)


def test_an_explanation_cites_what_was_chosen_with_its_terms_and_what_was_not_with_a_reason(store):
    plain, _ = find(store)
    assert plain.why == {}
    told, _ = find(store, top_k=2, why=True)
    assert told.why["terms"] == "folded"
    assert told.why["question_terms"] == ["what", "does", "the", "lighthouse", "keep", "at", "dusk"]
    for entry, source in zip(told.why["selected"], told.sources, strict=True):
        place = source.places[0]
        assert entry["path"] == place.path and entry["lines"] == [place.line_first, place.line_last]
        assert {match["term"] for match in entry["matches"]} <= set(told.why["question_terms"])
        assert entry["matches"]
    assert {entry["reason"] for entry in told.why["not_selected"]} == {"the 2 chunks of --top-k were full"}
    tight, _ = find(store, Extent(budget=told.pack[0].n_tokens + 1), top_k=2, why=True)
    assert "the pack holds" in tight.why["not_selected"][0]["reason"]
