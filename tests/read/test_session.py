"""A session over a real tiny store: both arms against the stock model and against residuals read by tensorstore."""

import json
import threading
import time
from dataclasses import replace

import numpy as np
import pytest
import tensorstore
import torch

from comem_cli.errors import CorruptStoreError, UsageError
from comem_cli.measure.contracts import stock_generate
from comem_cli.model import load
from comem_cli.model.split import SplitModel
from comem_cli.read.ask import Asker, AskOptions
from comem_cli.read.evidence import Evidence, EvidenceFinder
from comem_cli.read.generate import Reader, Sampling
from comem_cli.read.layout import ReadVariant
from comem_cli.read.session import Session
from comem_cli.select.bm25 import IterativeBm25
from comem_cli.store.reader import StoreReader
from tests.read import stock
from tests.tiny import BOS_ID
from tests.tiny_store import CHUNK, SPLIT, alter_residual, make_store

QUESTION = "What does the lighthouse keep?"
NEW = 6


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return make_store(tmp_path_factory.mktemp("session"))


@pytest.fixture(scope="module")
def reader(store):
    with StoreReader(store.path) as opened:
        yield opened


@pytest.fixture(scope="module")
def model(store):
    return load.load(store.files, torch.device("cpu"), torch.float32)


@pytest.fixture(scope="module")
def session(store, reader, model):
    return Session(reader, model, load.identity(store.files), load.tokenizer(store.files))


@pytest.fixture(scope="module")
def evidence(store, reader):
    with EvidenceFinder(reader, load.tokenizer(store.files), IterativeBm25(3, 2, 2)) as finder:
        return finder.find(QUESTION, 512)


def query(store) -> list[int]:
    return load.tokenizer(store.files).encode(QUESTION, add_special_tokens=False).ids


def residuals(store, evidence) -> list[torch.Tensor]:
    """Read each chunk's rows with tensorstore, which knows nothing of comem."""
    spec = {"driver": "zarr3", "kvstore": {"driver": "file", "path": str(store.path / "residuals")}}
    array = tensorstore.open(spec, open=True).result()
    capacity = json.loads((store.path / "residuals/zarr.json").read_text())["chunk_grid"]["configuration"][
        "chunk_shape"
    ][0]
    found = []
    for chunk in evidence.pack:
        first = chunk.shard * capacity + chunk.row
        rows = array[first : first + chunk.n_tokens].read().result()
        found.append(torch.from_numpy(rows.astype(np.float32)))
    return found


@pytest.mark.parametrize("positions", ["fresh", "origin"])
@pytest.mark.parametrize("attention", ["full", "block"])
def test_the_comem_arm_equals_stock_layers_over_residuals_that_tensorstore_reads(
    store, reader, session, model, evidence, positions, attention
):
    sampling, variant = Sampling(max_new_tokens=NEW), ReadVariant(positions, attention)
    got = session.generate(evidence, query(store), "comem", sampling, variant=variant)
    places = reader.places([chunk.id for chunk in evidence.pack])
    starts = [places[chunk.id][0].number * CHUNK for chunk in evidence.pack]
    assert len(evidence.pack) == 3
    wanted = stock.greedy(
        model,
        SPLIT,
        residuals(store, evidence),
        query(store),
        NEW,
        bos=BOS_ID,
        starts=starts if positions == "origin" else None,
        block=attention == "block",
    )
    assert got.ids == wanted


def test_the_replay_arm_equals_stock_generate_over_the_stored_ids(store, session, model, evidence):
    got = session.generate(evidence, query(store), "replay", Sampling(max_new_tokens=NEW))
    ids = [int(i) for chunk in evidence.pack for i in np.frombuffer(chunk.ids, "<u4")]
    wanted = stock_generate(model, torch.tensor([[BOS_ID, *ids, *query(store)]]), NEW)
    assert got.ids == wanted


def test_both_arms_read_the_same_number_of_tokens(store, session, evidence):
    answers = [session.answer(evidence, query(store), arm, Sampling(max_new_tokens=2)) for arm in ("comem", "replay")]
    assert {answer.pack_tokens for answer in answers} == {1 + evidence.tokens + len(query(store))}
    assert [answer.arm for answer in answers] == ["comem", "replay"]
    assert list(answers[0].timing_ms) == ["select", "fetch", "query_write", "read", "decode"]


def test_the_text_arrives_in_pieces_and_is_the_decoded_ids(store, session, evidence):
    pieces = []
    answer = session.answer(evidence, query(store), "comem", Sampling(max_new_tokens=NEW), on_text=pieces.append)
    decoded = load.tokenizer(store.files).decode(list(answer.ids))
    assert "".join(pieces) == decoded
    assert answer.text == decoded.strip()


def test_a_pack_stands_in_document_order_and_the_buffer_is_reused(store, reader, session, evidence):
    order = reader.chunk_ids_in_order()
    ranks = [order.index(chunk.id) for chunk in evidence.pack]
    assert ranks == sorted(ranks)
    sampling = Sampling(max_new_tokens=NEW)
    whole = session.generate(evidence, query(store), "comem", sampling).ids
    session.generate(replace(evidence, pack=evidence.pack[:1]), query(store), "comem", sampling)
    assert session.generate(evidence, query(store), "comem", sampling).ids == whole


def test_what_exceeds_the_window_drops_the_chunks_chosen_last(store, reader):
    with EvidenceFinder(reader, load.tokenizer(store.files), IterativeBm25(4, 2, 2)) as finder:
        whole = finder.find(QUESTION, 512)
        sizes = {f"c-{chunk.key[:12]}": chunk.n_tokens for chunk in whole.pack}
        chosen = [source.key for source in whole.sources]
        assert len(chosen) == 4
        room = sum(sizes[key] for key in chosen[:2]) + sizes[chosen[2]] - 1
        kept = finder.find(QUESTION, room)
        assert [source.key for source in kept.sources] == chosen[:2]
        assert sorted(f"c-{chunk.key[:12]}" for chunk in kept.pack) == sorted(chosen[:2])
        with pytest.raises(UsageError, match="no chunk fits"):
            finder.find(QUESTION, 1)


def test_origin_positions_past_the_window_are_refused(store, session, reader):
    last = reader.chunks(reader.chunk_ids_in_order())[-1]
    evidence = Evidence((last,), (), 0.0)
    with pytest.raises(UsageError, match="window is 512"):
        session.generate(evidence, [5], "comem", Sampling(max_new_tokens=500), variant=ReadVariant("origin"))


def test_a_damaged_residual_is_refused_before_anything_is_read(tmp_path):
    store = make_store(tmp_path)
    alter_residual(store.path, mend=False)
    with StoreReader(store.path) as reader:
        model = load.load(store.files, torch.device("cpu"), torch.float32)
        session = Session(reader, model, load.identity(store.files), load.tokenizer(store.files))
        first = reader.chunks(reader.chunk_ids_in_order()[:1])
        with pytest.raises(CorruptStoreError):
            session.generate(Evidence(tuple(first), (), 0.0), [5], "comem", Sampling())


def test_ask_takes_a_variant_and_reports_it(store):
    options = AskOptions(top_k=2, max_new_tokens=2, device="cpu", read_positions="origin", attention="block").checked()
    with Asker(store.path, lambda: store.files, options, note=lambda line: None, warn=lambda line: None) as asker:
        answer = asker.ask(QUESTION).to_json()
    assert (answer["read_positions"], answer["attention"]) == ("origin", "block")


@pytest.mark.parametrize("wrong", [{"read_positions": "later"}, {"attention": "none"}])
def test_ask_refuses_an_unknown_variant(wrong):
    with pytest.raises(UsageError, match="unknown"):
        AskOptions(**wrong).checked()


@pytest.mark.parametrize("arm", ["comem", "replay"])
def test_a_repeated_pack_is_fetched_and_read_once_and_answered_the_same(
    store, reader, model, session, evidence, arm, monkeypatch
):
    kept = Session(reader, model, load.identity(store.files), load.tokenizer(store.files), pack_cache=10**8)
    fetched, read = [], []
    fetch, prefill = reader.fetch_rows, Reader.prefill
    monkeypatch.setattr(reader, "fetch_rows", lambda chunks, out: (fetched.append(chunks), fetch(chunks, out)))
    monkeypatch.setattr(Reader, "prefill", lambda self, rows: (read.append(len(rows)), prefill(self, rows))[1])
    sampling = Sampling(max_new_tokens=NEW)
    first, again = (kept.answer(evidence, query(store), arm, sampling) for _ in range(2))
    assert read == [evidence.tokens]
    assert len(fetched) == (arm == "comem")
    assert again.timing_ms["fetch"] == 0.0
    other = replace(evidence, pack=evidence.pack[:-1])
    kept.answer(other, query(store), arm, sampling)
    assert read == [evidence.tokens, other.tokens]
    alone = session.answer(evidence, query(store), arm, sampling)
    assert first.ids == again.ids == alone.ids
    assert first.pack_tokens == alone.pack_tokens


def test_other_positions_or_attention_are_never_taken_from_a_kept_pack(store, reader, model, session, evidence):
    kept = Session(reader, model, load.identity(store.files), load.tokenizer(store.files), pack_cache=10**8)
    sampling = Sampling(max_new_tokens=NEW)
    kept.answer(evidence, query(store), "comem", sampling)
    for variant in (ReadVariant("origin", "full"), ReadVariant("fresh", "block")):
        found = kept.answer(evidence, query(store), "comem", sampling, variant=variant)
        assert found.ids == session.answer(evidence, query(store), "comem", sampling, variant=variant).ids


def test_rows_are_fetched_while_the_query_is_written(store, reader, model, session, evidence, monkeypatch):
    """The fetch may end only when the query is written: were it awaited before, this would never end."""
    written = threading.Event()
    fetch, lower = reader.fetch_rows, SplitModel.lower
    monkeypatch.setattr(reader, "fetch_rows", lambda chunks, out: (written.wait(30), fetch(chunks, out)))

    def watched(self, *args, **kwargs):
        h = lower(self, *args, **kwargs)
        written.set()
        return h

    monkeypatch.setattr(SplitModel, "lower", watched)
    began = time.monotonic()
    done = session.answer(evidence, query(store), "comem", Sampling(max_new_tokens=2))
    assert time.monotonic() - began < 30
    assert set(done.timing_ms) == {"select", "fetch", "query_write", "read", "decode"}
