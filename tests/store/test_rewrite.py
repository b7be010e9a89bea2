"""A rewrite gives what a fresh ingest in that mode gives; killed anywhere, the store is in the old mode or the new."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest
from killed_rewrite import BATCH, DOCUMENTS, MODES, FileIndexes, residual, rewrite, target, write_samples
from samples import contents
from test_faults import check_exact_layout, passages

from comem_cli.errors import FingerprintError, NoStoreError, UsageError
from comem_cli.model import load
from comem_cli.store import write_queue
from comem_cli.store.fingerprint import chunk_key
from comem_cli.store.reader import StoreReader
from comem_cli.store.rewrite_run import RewriteRun
from comem_cli.store.run import IngestRun
from comem_cli.store.setup import WriteOptions
from tests.tiny import save_tiny
from tests.tiny_store import write_sources

SCRIPT = Path(__file__).with_name("killed_rewrite.py")


def expected(mode: str):
    """Say what a store in this mode holds, from the definition of its keys and of the hash that stands for a model."""
    digest, found = target(mode).digest(), {}
    for name, document in DOCUMENTS.items():
        chunks = MODES[mode].pending(document, lambda left, ids: chunk_key(digest, left, ids))
        found["/src", name] = [(chunk.key, chunk.ids, residual(chunk)) for chunk in chunks]
    return found


def state(path: Path) -> str:
    """Return the mode that a store answers in, after checking that everything in it is of that mode."""
    with StoreReader(path) as reader:
        mode = reader.fingerprint.mode
        assert reader.fingerprint == target(mode)
        name, fresh = reader.index()
        assert fresh and name == reader.content
        listed = json.loads((path / "index" / name).read_text())
        assert listed == sorted(chunk.id for chunk in reader.iter_chunks())  # also checks the content digest
    assert contents(path) == expected(mode)
    return mode


def killed(path: Path, mode: str, point: str, number: int, log: Path, after: float | None = None) -> int:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    process = subprocess.Popen([sys.executable, SCRIPT, path, mode, point, str(number), log], env=environment)
    if after is not None:
        time.sleep(after)
        process.kill()
    return process.wait(timeout=60)


def finish(path: Path, mode: str, log: Path) -> int:
    """Run the same rewrite to its end; return how many chunks both runs computed."""
    rewrite(path, mode, log)
    assert state(path) == mode
    check_exact_layout(path)
    with StoreReader(path) as reader:
        assert reader.counts().unplaced_chunks == 0
    assert len(list((path / "index").iterdir())) == 1
    computed = Counter(log.read_text().split()) if log.exists() else Counter()
    return sum(computed.values()) - len(computed)


@pytest.fixture
def base(tmp_path):
    write_samples(tmp_path / "base", "chunk")
    assert state(tmp_path / "base") == "chunk"
    return tmp_path / "base"


@pytest.mark.parametrize("end", ["overlap", "document", "chunk"])
@pytest.mark.parametrize("start", ["chunk", "overlap", "document"])
def test_a_rewrite_leaves_what_a_fresh_write_in_that_mode_gives(tmp_path, start, end):
    path = tmp_path / "s"
    write_samples(path, start)
    rewrite(path, end)
    assert state(path) == end
    check_exact_layout(path)


def test_killed_at_any_fault_point_the_store_is_in_one_mode_and_the_rerun_completes(base, tmp_path, monkeypatch):
    monkeypatch.setattr(write_queue, "COMMIT_SECONDS", 0.0)
    shutil.copytree(base, tmp_path / "count")
    counted = passages(tmp_path / "count", lambda path: rewrite(path, "overlap"))
    assert {name.split(".")[0] for name in counted} >= {"write", "fsync", "rename", "dirsync", "commit", "unlink"}
    seen = Counter()
    for point, times in counted.items():
        for number in sorted({1, times}):
            path, log = tmp_path / f"{point}-{number}", tmp_path / f"{point}-{number}.log"
            shutil.copytree(base, path)
            assert killed(path, "overlap", point, number, log) == -9
            seen[state(path)] += 1
            assert finish(path, "overlap", log) <= BATCH
    assert seen["chunk"] > 5 and seen["overlap"] > 1


def test_killed_at_random_times_the_store_is_in_one_mode_and_the_rerun_completes(base, tmp_path, monkeypatch):
    monkeypatch.setattr(write_queue, "COMMIT_SECONDS", 0.0)
    shutil.copytree(base, tmp_path / "timed")
    start = time.monotonic()
    assert killed(tmp_path / "timed", "document", "-", 0, tmp_path / "timed.log") == 0
    whole = time.monotonic() - start
    draw = random.Random(0)
    for number in range(12):
        path, log = tmp_path / str(number), tmp_path / f"{number}.log"
        shutil.copytree(base, path)
        killed(path, "document", "-", 0, log, after=draw.uniform(0.2, 1.05) * whole)
        assert state(path) in ("chunk", "document")
        assert finish(path, "document", log) <= BATCH


def test_an_open_snapshot_keeps_its_mode_and_its_bytes_through_a_rewrite(base):
    with StoreReader(base) as reader:
        order = reader.chunk_ids_in_order()
        rewrite(base, "overlap")
        assert reader.fingerprint.mode == "chunk"
        wanted = {key: rows for document in expected("chunk").values() for key, _, rows in document}
        for row in reader.chunks(order):
            out = bytearray(len(wanted[row.key]))
            reader.fetch([row.id], memoryview(out))
            assert out == wanted[row.key]
    assert state(base) == "overlap"
    rewrite(base, "overlap")  # the next writer unlinks what the snapshot held
    check_exact_layout(base)


def test_an_abandoned_rewrite_is_swept_by_a_rewrite_into_the_old_mode(base, tmp_path):
    assert killed(base, "overlap", "commit.after", 2, tmp_path / "log") == -9
    with StoreReader(base) as reader:
        assert reader.counts().unplaced_chunks > 0
    rewrite(base, "chunk")
    assert state(base) == "chunk"
    check_exact_layout(base)
    with StoreReader(base) as reader:
        assert reader.counts().unplaced_chunks == 0


# With a model


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return load.resolve(str(save_tiny(tmp_path_factory.mktemp("model") / "tiny")))


def quiet(*names):
    return {name: lambda *args: None for name in names}


def ingest(store: Path, files, sources: Path, **options):
    chosen = WriteOptions(**{"split": 2, "chunk": 24, "device": "cpu", "dtype": "fp32", **options})
    run = IngestRun(store, files, chosen)
    with run.open() as writer:
        return run.ingest(writer, [sources], **quiet("on_plan", "on_event", "on_bytes", "on_load"))


def run_rewrite(store: Path, files, **options) -> RewriteRun:
    run = RewriteRun(store, lambda: files, WriteOptions(device="cpu", **options))
    run.run(FileIndexes(store), **quiet("on_event", "on_tokens", "on_load", "on_index"))
    return run


@pytest.mark.parametrize("options", [{"overlap": 8}, {"overlap": 60}, {"mode": "document"}], ids=str)
@pytest.mark.parametrize("dtype", ["bf16", "int8"])
def test_a_rewritten_store_holds_the_bytes_of_a_fresh_ingest_and_needs_no_source(tmp_path, files, options, dtype):
    sources = write_sources(tmp_path / "docs")
    ingest(tmp_path / "fresh", files, sources, residual_dtype=dtype, **options)
    ingest(tmp_path / "s", files, sources, residual_dtype=dtype)
    before = contents(tmp_path / "s")
    shutil.rmtree(sources)
    run_rewrite(tmp_path / "s", files, **options)
    assert contents(tmp_path / "s") == contents(tmp_path / "fresh")
    run_rewrite(tmp_path / "s", files, mode="chunk")
    assert contents(tmp_path / "s") == before


def test_the_plan_and_the_cost_count_tokens_with_their_context(tmp_path, files):
    sources = write_sources(tmp_path / "docs")
    ingest(tmp_path / "s", files, sources)
    run = RewriteRun(tmp_path / "s", lambda: files, WriteOptions(overlap=8, device="cpu"))
    plan = run.plan()
    with StoreReader(tmp_path / "s") as reader:
        lengths = [[row.n_tokens for row in reader.document_chunks(d.id)] for d in reader.documents()]
    assert plan.tokens == sum(map(sum, lengths))
    assert plan.forward_tokens == plan.tokens + sum(8 * (len(some) - 1) for some in lengths)
    assert (plan.documents, plan.ready) == (len(lengths), 0)
    assert plan.bytes_per_token == 128
    assert 1 < plan.forward_tokens / plan.tokens < plan.flop_ratio
    assert plan.estimate_s is not None and plan.estimate_s > 0
    run.run(FileIndexes(tmp_path / "s"), **quiet("on_event", "on_tokens", "on_load", "on_index"))
    cost = run.cost()
    assert cost["new"]["tokens"] == cost["old"]["tokens"] == plan.tokens
    assert cost["forward_ratio"] > 0
    with StoreReader(tmp_path / "s") as reader:
        [row] = [row for row in reader.ledger() if row.kind == "write:overlap"]
    assert json.loads(row.detail)["forward_tokens"] == plan.forward_tokens


def test_a_second_rewrite_into_the_same_mode_computes_nothing(tmp_path, files):
    ingest(tmp_path / "s", files, write_sources(tmp_path / "docs"))
    run_rewrite(tmp_path / "s", files, overlap=8)
    run = RewriteRun(tmp_path / "s", lambda: files, WriteOptions(overlap=8, device="cpu"))
    assert run.done
    loaded = []
    hooks = quiet("on_event", "on_tokens", "on_index") | {"on_load": lambda: loaded.append(1)}
    assert run.run(FileIndexes(tmp_path / "s"), **hooks) == 0
    assert not loaded


def test_a_rewrite_that_cannot_be_is_refused(tmp_path, files):
    with pytest.raises(NoStoreError):
        RewriteRun(tmp_path / "none", lambda: files, WriteOptions(overlap=8))
    sources = write_sources(tmp_path / "docs")
    ingest(tmp_path / "ids", files, sources, split=0)
    with pytest.raises(UsageError, match="no residuals to rewrite"):
        RewriteRun(tmp_path / "ids", lambda: files, WriteOptions(overlap=8))
    ingest(tmp_path / "s", files, sources)
    with pytest.raises(FingerprintError, match="compute_dtype fp32, not bf16"):
        RewriteRun(tmp_path / "s", lambda: files, WriteOptions(overlap=8, dtype="bf16"))
    with pytest.raises(UsageError, match=r"outside 0\.\.488"):
        RewriteRun(tmp_path / "s", lambda: files, WriteOptions(overlap=489))
    other = load.resolve(str(save_tiny(tmp_path / "other", seed=1)))
    with pytest.raises(FingerprintError, match="weights"):
        RewriteRun(tmp_path / "s", lambda: other, WriteOptions(overlap=8))
