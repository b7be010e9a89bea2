"""The contract functions against independent references, and what they say when something is broken."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from comem_cli.measure import contracts, store_contracts
from comem_cli.measure.bm25_formula import bm25_scores, stored_length
from comem_cli.model.shapes import Shape
from comem_cli.read.generate import Reader
from comem_cli.select.selector import Hit
from comem_cli.store.reader import StoreReader
from tests.select.bm25_reference import ClosedFormula, one_byte_length, pack_ids
from tests.tiny import BOS_ID, tiny_model
from tests.tiny_store import make_store

IDS = [(7 * i * i + 11 * i) % 500 + 3 for i in range(60)]
token_lists = st.lists(st.integers(0, 30), min_size=1, max_size=60)


@pytest.fixture(scope="module")
def model():
    return tiny_model("llama", 4, initializer_range=0.2)


@given(st.dictionaries(st.integers(0, 99), token_lists, min_size=1, max_size=8), st.lists(token_lists, max_size=3))
@settings(deadline=None, max_examples=50)
def test_the_formula_equals_an_independent_one(chunks, queries):
    ours = bm25_scores(((chunk_id, pack_ids(ids)) for chunk_id, ids in chunks.items()), queries)
    reference = ClosedFormula(chunks)
    for query, scores in zip(queries, ours, strict=True):
        wanted = reference.scores(query)
        assert scores.keys() == wanted.keys()
        assert all(math.isclose(scores[c], wanted[c], rel_tol=1e-12) for c in wanted)


@given(st.integers(0, 2**20))
def test_a_stored_length_is_the_one_that_lucene_decodes(length):
    assert stored_length(length) == one_byte_length(length)


class FakeIndex:
    def __init__(self, scores):
        self._hits = sorted((Hit(c, s) for c, s in scores.items()), key=lambda hit: -hit.score)

    def search(self, ids, k, exclude, k1, b):
        return self._hits[:k]


FORMULA = {1: 3.0, 2: 2.0, 3: 1.0}


@pytest.mark.parametrize(
    ("scores", "most", "error"),
    [
        (FORMULA, 3, 0.0),
        (FORMULA, 2, 0.0),
        ({**FORMULA, 2: 2.02}, 3, 0.01),
        ({**FORMULA, 4: 0.5}, 4, math.inf),  # a chunk that matches nothing
        ({1: 3.0, 2: 2.0}, 3, math.inf),  # a chunk is missing
        ({1: 3.0, 3: 1.0}, 2, 1.0),  # a better one was left out
        ({}, 3, math.inf),
    ],
)
def test_the_score_error_sees_wrong_alien_and_missing_chunks(scores, most, error):
    assert store_contracts.score_error(FakeIndex(scores), [7], FORMULA, most) == pytest.approx(error)


def test_tolerances_follow_the_dtype():
    assert contracts.Tolerances.of(torch.float32) == contracts.Tolerances(1e-4, 1e-5)
    assert contracts.Tolerances.of(torch.bfloat16).logits == 2**-4
    assert contracts.Tolerances.of(torch.float16).residuals == 2**-7


def test_the_row_error_is_that_of_the_worst_row_whatever_its_scale():
    reference = torch.tensor([[1000.0, 1.0], [0.01, 0.02]])
    off = torch.tensor([[0.0, 0.5], [0.0, 0.002]])
    assert contracts.row_error(reference + off, reference) == pytest.approx(0.1, rel=1e-4)
    assert contracts.row_error(reference, reference) == 0.0


def test_a_missing_sink_shows_as_replay_and_decode_mismatches(model, monkeypatch):
    monkeypatch.setattr(Reader, "_with_sink", lambda self, rows: rows[None])
    assert contracts.replay_mismatches(model, BOS_ID, IDS[:40], IDS[40:], new_tokens=8) > 0


def test_a_decoder_that_loses_its_cache_shows_in_contract_4(model, monkeypatch):
    read = contracts.SplitModel.upper_last
    monkeypatch.setattr(contracts.SplitModel, "upper_last", lambda self, h, _: read(self, h, self.upper_cache()))
    worst, _ = contracts.decode_error(model, BOS_ID, IDS[:40], IDS[40:], 2, new_tokens=3)
    assert worst > 1e-2


def test_left_padding_shows_in_contract_5(model, monkeypatch):
    good = contracts.run_batch

    def shifted(split, shape, chunks):
        return good(split, shape, chunks).roll(1, dims=1)

    monkeypatch.setattr(contracts, "run_batch", shifted)
    chunk = np.array(IDS[:20], "<u4").tobytes()
    assert contracts.write_error(model, [chunk], [Shape(2, 32)], 2) > 1e-2


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return make_store(tmp_path_factory.mktemp("contracts"))


def test_a_sample_is_in_document_order_and_never_more_than_there_is(store):
    with StoreReader(store.path) as reader:
        order = reader.chunk_ids_in_order()
        assert [chunk.id for chunk in store_contracts.sample_chunks(reader, None)] == order
        assert [chunk.id for chunk in store_contracts.sample_chunks(reader, 99)] == order
        some = [chunk.id for chunk in store_contracts.sample_chunks(reader, 3)]
        assert some == [chunk_id for chunk_id in order if chunk_id in some] and len(some) == 3


def test_queries_come_from_the_chunks_that_were_given(store):
    with StoreReader(store.path) as reader:
        [chunk] = store_contracts.sample_chunks(reader, 1)
    span, whole = store_contracts.made_queries([chunk])
    ids = np.frombuffer(chunk.ids, "<u4").tolist()
    assert any(ids[i : i + len(span)] == list(span) for i in range(len(ids)))
    assert sorted(whole) == sorted(set(ids))


def test_file_states_notice_change_arrival_and_loss_but_not_the_wal(tmp_path):
    for name in ("catalog.sqlite", "catalog.sqlite-wal", "residuals"):
        (tmp_path / name).write_bytes(b"old")
    before = store_contracts.file_states(tmp_path, whole=False)
    assert sorted(before) == ["catalog.sqlite", "residuals"]
    (tmp_path / "catalog.sqlite-wal").write_bytes(b"new")
    assert store_contracts.changed_files(before, store_contracts.file_states(tmp_path, whole=True)) == []
    (tmp_path / "catalog.sqlite").write_bytes(b"new")
    (tmp_path / "residuals").unlink()
    (tmp_path / "stray").touch()
    changed = store_contracts.changed_files(before, store_contracts.file_states(tmp_path, whole=False))
    assert changed == ["catalog.sqlite", "residuals", "stray"]


def test_large_stores_are_compared_by_size_inode_and_times(tmp_path, monkeypatch):
    monkeypatch.setattr(store_contracts, "HASHED_BYTES", 2)
    shard = tmp_path / "residuals" / "c" / "0" / "0"
    shard.parent.mkdir(parents=True)
    shard.write_bytes(b"abc")
    before = store_contracts.file_states(tmp_path, whole=False)
    assert len(store_contracts.file_states(tmp_path, whole=True)["residuals/c/0/0"]) == 64
    shard.write_bytes(b"abd")
    after = store_contracts.file_states(tmp_path, whole=False)
    assert store_contracts.changed_files(before, after) == ["residuals/c/0/0"]
