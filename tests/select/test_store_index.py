"""The index of a store: found by content, checked before it is used, and tidied after it is replaced."""

from __future__ import annotations

import pytest

from comem_cli.errors import IndexStaleError
from comem_cli.select.check_index import check_store_index
from comem_cli.select.store_index import (
    IndexFolder,
    built_terms,
    index_path,
    index_scheme,
    open_store_index,
    rebuild_index,
    refresh_index,
)
from comem_cli.select.terms import TOKENS, term_scheme
from comem_cli.store.reader import INDEX_DIR, StoreReader
from comem_cli.store.writer import StoreWriter
from tests.tiny import tiny_tokenizer
from tests.tiny_store import make_store


@pytest.fixture
def store(tmp_path):
    return make_store(tmp_path).path


def test_one_flipped_bit_in_any_file_of_the_index_is_stale(store):
    with StoreReader(store) as reader:
        folder = store / INDEX_DIR / reader.index()[0]
        for file in sorted(folder.iterdir()):
            whole = file.read_bytes()
            file.chmod(0o600)
            end = len(whole) - (file.name == "terms")  # its line's end says nothing
            for at in {0, len(whole) // 2, max(0, end - 12), max(0, end - 5), end - 1}:
                file.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
                with pytest.raises(IndexStaleError):
                    open_store_index(reader).close()
            for cut in (0, 7, end - 1):
                file.write_bytes(whole[:cut])
                with pytest.raises(IndexStaleError):
                    open_store_index(reader).close()
            file.write_bytes(whole)
        open_store_index(reader).close()


def test_a_stray_file_stops_no_rebuild(store):
    (store / INDEX_DIR / ".DS_Store").write_bytes(b"x")
    with StoreWriter.open(store) as writer:
        assert rebuild_index(writer, TOKENS) > 0
    IndexFolder(store, TOKENS).keep_only("none")
    assert [path.name for path in (store / INDEX_DIR).iterdir()] == [".DS_Store"]


def test_an_index_is_used_over_the_terms_it_was_built_over(store):
    with StoreReader(store) as reader:
        assert index_path(reader).is_dir() and built_terms(store) == "folded"
        assert index_path(reader, "folded") == index_path(reader)
        with pytest.raises(IndexStaleError, match="over folded, not over tokens") as caught:
            index_path(reader, "tokens")
        assert caught.value.hint == f"comem index {store} --terms tokens"
    with StoreWriter.open(store) as writer:
        rebuild_index(writer, TOKENS)
    assert built_terms(store) == "tokens"
    with StoreReader(store) as reader:
        index_path(reader, "tokens")


def test_an_index_over_words_without_rests_is_asked_as_it_was_made_and_the_next_build_replaces_it(store):
    tokenizer = tiny_tokenizer()
    with StoreReader(store) as reader:
        file = index_path(reader) / "terms"
        file.write_text("folded 1\n")
        assert index_scheme(reader, tokenizer).identity == "folded 1"
        assert index_path(reader, "folded") == file.parent
        assert check_store_index(reader, set(reader.chunk_ids_in_order()), deep=True) == []
        open_store_index(reader).close()
    assert built_terms(store) == "folded"
    with StoreWriter.open(store) as writer:
        refresh_index(writer, term_scheme("folded", tokenizer))
    with StoreReader(store) as reader:
        assert index_scheme(reader, tokenizer).identity == "folded 2"


@pytest.mark.parametrize("record", [None, "folded 0\n"])
def test_an_index_of_an_older_comem_is_stale_and_a_rebuild_mends_it(store, record):
    with StoreReader(store) as reader:
        file = index_path(reader) / "terms"
        file.unlink()
        if record:
            file.write_text(record)
        with pytest.raises(IndexStaleError, match="older comem") as caught:
            index_path(reader)
        assert caught.value.hint == f"comem index {store}"
    assert built_terms(store) is None
    with StoreWriter.open(store) as writer:
        rebuild_index(writer, TOKENS)
    with StoreReader(store) as reader:
        open_store_index(reader).close()


def test_an_index_that_is_replaced_while_it_is_opened_is_stale_so_that_it_is_opened_again(store, monkeypatch):
    answers = iter(["folded 2", None])
    monkeypatch.setattr("comem_cli.select.store_index.recorded_terms", lambda path: next(answers))
    with StoreReader(store) as reader, pytest.raises(IndexStaleError, match="missing"):
        index_scheme(reader, tiny_tokenizer())
