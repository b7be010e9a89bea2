"""Ingest in every mode: what an edit rewrites, what a crash leaves, what the ledger says."""

from __future__ import annotations

import json
import os
import random
import signal
import sqlite3
import threading
import time

import pytest
import torch
from samples import contents

from comem_cli.corpus import ahead
from comem_cli.model import load
from comem_cli.model.split import SplitModel
from comem_cli.store import ingest as ingest_module
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


@pytest.fixture
def mixed(sources):
    """Twenty files more: text, a page, another encoding, and some that are skipped."""
    rng = random.Random(1)
    for number in range(16):
        (sources / f"n{number:02}.txt").write_text("".join(rng.choices("0123456789", k=rng.randrange(1, 5 * CHUNK))))
    (sources / "e.txt").write_bytes(b"")
    (sources / "k.bin").write_bytes(bytes(range(256)))
    (sources / "m.html").write_text("<html><body><p>12345<p>678</body></html>")
    (sources / "r.txt").write_bytes("déjà vu à la mer".encode("cp1252") * 3)
    (sources / "u.txt").write_bytes(b"12345\xff\xc3\xa9" + "é".encode() * 40)
    return sources


def catalogued(store) -> dict[str, list[tuple]]:
    """All rows of what a file or a chunk is; the ledger has times in it."""
    names = ("root", "document", "chunk", "placement", "shard")
    with sqlite3.connect(store / "catalog.sqlite") as catalogue:
        return {name: catalogue.execute(f"SELECT * FROM {name} ORDER BY 1, 2").fetchall() for name in names}


@pytest.mark.parametrize("options", [*MODES.values(), {"split": 0}], ids=str)
def test_files_read_ahead_leave_what_files_read_in_their_turn_leave(tmp_path, files, mixed, options, monkeypatch):
    found = {}
    for largest in (-1, 40, ahead.LARGEST):  # -1: all in their turn
        monkeypatch.setattr(ahead, "LARGEST", largest)
        events, store = [], tmp_path / f"s{largest}"
        summary = ingest(store, files, mixed, events, **options)
        shards = {
            str(path.relative_to(store)): path.read_bytes() for path in store.glob("residuals/**/*") if path.is_file()
        }
        found[largest] = (vars(summary), events, catalogued(store), shards)
    assert found[ahead.LARGEST] == found[40] == found[-1]
    assert found[-1][0]["files"] == 20 and [skip.path for skip in found[-1][0]["skips"]] == ["e.txt", "k.bin", "u.txt"]


class Slow:
    """Takes the place of a chunk writer; `before` is called for each chunk."""

    def __init__(self, before):
        self.before = before

    def add(self, chunk):
        self.before(chunk)
        yield chunk, bytes(len(chunk.ids) // 4 * 64 * 2)

    def flush(self):
        yield from ()


def test_the_next_document_is_tokenised_while_the_forward_runs(tmp_path, files, mixed, monkeypatch):
    """Each forward waits until the document after the one it works on is cut: in turns it would wait for ever."""
    cut, real = [], ingest_module.chunk
    done = threading.Condition()

    def noted(extracted, *args):
        chunks = real(extracted, *args)
        with done:
            cut.append({chunk.ids for chunk in chunks})
            done.notify_all()
        return chunks

    def before(chunk):
        mine = next(number for number, ids in enumerate(cut) if chunk.ids in ids)
        with done:
            assert done.wait_for(lambda: len(cut) > min(mine + 1, 19), 20)

    monkeypatch.setattr(ingest_module, "chunk", noted)
    monkeypatch.setattr(WriteSetup, "make_writer", lambda self: Slow(before))
    assert ingest(tmp_path / "s", files, mixed).files == 20


def readers() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("comem-read")]


def test_a_failure_of_the_thread_is_raised_when_its_documents_turn_comes(tmp_path, files, mixed, monkeypatch):
    real, read = ingest_module.chunk, []

    def failing(extracted, *args):
        read.append(extracted.sha256)
        if len(read) == 4:  # e and k are skipped: long, m, n00, then this
            raise MemoryError("the fourth")
        return real(extracted, *args)

    reference = tmp_path / "reference"
    ingest(reference, files, mixed)
    monkeypatch.setattr(ingest_module, "chunk", failing)
    monkeypatch.setattr(write_queue, "COMMIT_SECONDS", 0.0)
    events = []
    with pytest.raises(MemoryError, match="the fourth"):
        ingest(tmp_path / "s", files, mixed, events, split=0)
    assert not readers()
    assert [event["path"] for event in events if event["type"] == "skip"] == ["e.txt", "k.bin"]
    with StoreReader(tmp_path / "s") as reader:
        assert [row.name for row in reader.documents()] == ["long.txt", "m.html", "n00.txt"]
    monkeypatch.setattr(ingest_module, "chunk", real)
    ingest(tmp_path / "s", files, mixed, split=0)
    assert sorted(row[2] for row in catalogued(tmp_path / "s")["document"]) == sorted(
        row[2] for row in catalogued(reference)["document"]
    )


@pytest.mark.parametrize("where", ["forward", "waiting"])
def test_an_interruption_ends_the_thread_and_a_rerun_completes(tmp_path, files, mixed, where, monkeypatch):
    """Ctrl-C in the forward, while the thread tokenises, and where the main thread waits for the thread."""
    reference = tmp_path / "reference"
    ingest(reference, files, mixed)
    real = ingest_module.chunk
    slow, cut = threading.Event(), []

    def slowly(*args):
        cut.append(1)
        if len(cut) == 3:
            slow.set()
            if where == "waiting":
                os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.2)
        return real(*args)

    def interrupted(self, *args, **kwargs):
        assert slow.wait(20)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(ingest_module, "chunk", slowly)
        patched.setattr("comem_cli.store.setup.TOKENS_PER_BATCH", {"cpu": CHUNK})
        if where == "forward":
            patched.setattr(SplitModel, "lower", interrupted)
        with pytest.raises(KeyboardInterrupt):
            ingest(tmp_path / "s", files, mixed)
        assert not readers()
        assert len(cut) <= 4
    ingest(tmp_path / "s", files, mixed)
    assert contents(tmp_path / "s").keys() == contents(reference).keys()
