"""A reader that opens a store while its index is being replaced asks the newer generation instead of failing."""

from __future__ import annotations

import shutil

import pytest

from comem_cli.errors import IndexStaleError
from comem_cli.read import ask
from comem_cli.read.ask import Asker, AskOptions
from comem_cli.select.store_index import rebuild_index
from comem_cli.select.terms import TOKENS
from comem_cli.store.writer import StoreWriter
from tests.tiny_store import TinyStore, make_store

OPTIONS = AskOptions(max_new_tokens=2, device="cpu").checked()


@pytest.fixture
def store(tmp_path) -> TinyStore:
    return make_store(tmp_path)


def open_asker(store: TinyStore) -> Asker:
    return Asker(store.path, lambda: store.files, OPTIONS, note=lambda line: None, warn=lambda line: None)


def test_an_index_that_is_replaced_after_the_snapshot_began_is_no_error(store, monkeypatch):
    real, before = ask.require_model, []

    def replace_then(fingerprint, identity):
        if not before:
            with StoreWriter.open(store.path) as writer:
                before.append(writer.generation)
                writer.remove_documents(row.id for row in writer.documents() if row.name == "doc1.txt")
                writer.drop_unplaced()
                rebuild_index(writer, TOKENS)
        return real(fingerprint, identity)

    monkeypatch.setattr(ask, "require_model", replace_then)
    with open_asker(store) as asker:
        assert asker.store.generation > before[0]
        _, evidence = asker.prepare("Where is the ledger of the basin?")
        assert {source.places[0].path for source in evidence.sources} == {"doc0.txt"}


@pytest.mark.parametrize("damage", ["missing", "stale"])
def test_an_index_that_stays_away_is_reported(store, monkeypatch, damage):
    slept = []
    monkeypatch.setattr(ask.time, "sleep", slept.append)
    if damage == "missing":
        shutil.rmtree(store.path / "index")
    else:
        with StoreWriter.open(store.path) as writer:
            writer.remove_documents(row.id for row in writer.documents() if row.name == "doc1.txt")
            writer.drop_unplaced()
    with pytest.raises(IndexStaleError) as caught:
        open_asker(store)
    assert caught.value.exit_code == 15
    assert len(slept) == (2 if damage == "missing" else 0)  # a stale one is not replaced within moments
