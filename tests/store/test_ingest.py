"""Ingest in every mode: what an edit rewrites, what a crash leaves, what the ledger says."""

from __future__ import annotations

import json
import random

import pytest
import torch
from samples import contents

from comem_cli.model import load
from comem_cli.model.split import SplitModel
from comem_cli.store import write_queue
from comem_cli.store.reader import StoreReader
from comem_cli.store.run import IngestRun
from comem_cli.store.setup import WriteOptions, WriteSetup
from tests.tiny import save_tiny

CHUNK = 16
MODES = {"chunk": {}, "overlap": {"overlap": 4}, "wide": {"overlap": 40}, "document": {"mode": "document"}}


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return load.resolve(str(save_tiny(tmp_path_factory.mktemp("model") / "tiny", layers=3)))


@pytest.fixture
def sources(tmp_path):
    """Digits are one token each, so a text of n digits has n tokens and an edit moves no border."""
    folder = tmp_path / "docs"
    folder.mkdir()
    digits = "".join(random.Random(0).choices("0123456789", k=6 * CHUNK + 5))
    (folder / "long.txt").write_text(digits)
    (folder / "twin.txt").write_text(digits[: 2 * CHUNK + 7])
    return folder


def ingest(store, files, sources, events=None, **options):
    chosen = WriteOptions(**{"split": 2, "chunk": CHUNK, "device": "cpu", "dtype": "fp32", **options})
    run = IngestRun(store, files, chosen)
    hooks = {name: lambda *args: None for name in ("on_plan", "on_bytes", "on_load")}
    with run.open() as writer:
        return run.ingest(writer, [sources], on_event=(events if events is not None else []).append, **hooks)


def keys(store) -> list[str]:
    return [key for key, _, _ in contents(store)[next(iter(contents(store)))[0], "long.txt"]]


@pytest.mark.parametrize("name", MODES)
def test_an_edit_rewrites_every_chunk_whose_left_context_holds_it_and_no_other(tmp_path, files, sources, name):
    options, store = MODES[name], tmp_path / "s"
    ingest(store, files, sources, **options)
    text = (sources / "long.txt").read_text()
    for at in (2 * CHUNK + 1, 3 * CHUNK - 1, 4 * CHUNK - 5):
        before = keys(store)
        edited = text[:at] + str((int(text[at]) + 1) % 10) + text[at + 1 :]
        (sources / "long.txt").write_text(edited)
        summary = ingest(store, files, sources)
        after = keys(store)
        reach = len(text) if name == "document" else options.get("overlap", 0)
        starts = range(0, len(text), CHUNK)
        changed = [i for i, start in enumerate(starts) if start - reach <= at < start + CHUNK]
        assert [i for i in range(len(before)) if before[i] != after[i]] == changed
        assert summary.written_chunks == len(changed)
        text = edited
    fresh = tmp_path / "fresh"
    ingest(fresh, files, sources, **options)
    assert contents(store) == contents(fresh)


@pytest.mark.parametrize("name", MODES)
def test_chunks_that_share_their_context_are_stored_once(tmp_path, files, sources, name):
    summary = ingest(tmp_path / "s", files, sources, **MODES[name])
    assert summary.chunks == 7 + 3
    assert summary.written_chunks == 8  # the twin repeats two whole chunks; its short last one is its own


@pytest.mark.parametrize("name", MODES)
def test_an_interrupted_ingest_goes_on_at_the_last_commit_with_the_same_bits(
    tmp_path, files, sources, name, monkeypatch
):
    real, ran = SplitModel.lower, []

    def failing(self, *args, **kwargs):
        ran.append(1)
        if len(ran) > allowed:
            raise KeyboardInterrupt
        return real(self, *args, **kwargs)

    monkeypatch.setattr(write_queue, "COMMIT_SECONDS", 0.0)
    monkeypatch.setattr("comem_cli.store.setup.TOKENS_PER_BATCH", {"cpu": 2 * CHUNK})
    reference = tmp_path / "reference"
    ingest(reference, files, sources, **MODES[name])
    allowed = 3
    monkeypatch.setattr(SplitModel, "lower", failing)
    with pytest.raises(KeyboardInterrupt):
        ingest(tmp_path / "s", files, sources, **MODES[name])
    allowed = 10**6
    with StoreReader(tmp_path / "s") as reader:
        kept = reader.counts().unplaced_chunks + reader.counts().chunks
    assert kept > 0
    summary = ingest(tmp_path / "s", files, sources, **MODES[name])
    assert summary.written_chunks == 8 - kept
    assert contents(tmp_path / "s") == contents(reference)


@pytest.mark.parametrize("name", MODES)
def test_stored_bytes_are_those_of_a_fresh_write_of_the_same_chunk(tmp_path, files, sources, name):
    store = tmp_path / "s"
    ingest(store, files, sources, **MODES[name])
    setup = WriteSetup(store, files, WriteOptions(device="cpu"))
    writer = setup.writer_of(load.load(files, torch.device("cpu"), torch.float32))
    stored = {key: rows for document in contents(store).values() for key, _, rows in document}
    for document in contents(store).values():
        ids = [ids for _, ids, _ in document]
        wanted = [key for key, _, _ in document]
        found = dict(zip(wanted, ids, strict=True))
        names = iter(wanted)
        for chunk in setup.mode.pending(ids, lambda left, ids, names=names: next(names)):
            found.update((done.key, rows) for done, rows in writer.add(chunk))
        found.update((done.key, rows) for done, rows in writer.flush())
        assert found == {key: stored[key] for key in wanted}


@pytest.mark.parametrize(("name", "context"), [("chunk", 0), ("overlap", 4 * 7), ("document", 0)])
def test_the_ledger_names_the_mode_and_counts_the_context(tmp_path, files, sources, name, context):
    events = []
    summary = ingest(tmp_path / "s", files, sources, events, **MODES[name])
    with StoreReader(tmp_path / "s") as reader:
        [row] = reader.ledger()
        digest = reader.fingerprint.digest()
    assert (row.kind, row.chunks, row.tokens) == (f"write:{name}", summary.written_chunks, summary.written_tokens)
    assert json.loads(row.detail) == {"forward_tokens": row.tokens + context, "fingerprint": digest}
    assert 0 < row.forward_ms < row.wall_ms
    assert [event["chunks"] for event in events if event["type"] == "chunk_batch"] == [summary.written_chunks]


def test_a_store_of_split_zero_needs_no_model(tmp_path, files, sources, monkeypatch):
    monkeypatch.setattr(load, "load", None)
    summary = ingest(tmp_path / "s", files, sources, split=0)
    assert summary.written_chunks == 8
    with StoreReader(tmp_path / "s") as reader:
        [row] = reader.ledger()
    assert (row.kind, row.device, row.forward_ms) == ("write:chunk", "none", 0.0)
