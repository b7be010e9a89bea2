"""`check --repair`: the store equals the undisturbed one again, chunk for chunk; what cannot be healed is named."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import faults_on_disk as faults
import pytest

from comem_cli.errors import CorruptStoreError, FingerprintError
from comem_cli.select.check_index import check_store_index
from comem_cli.select.store_repair import store_repair
from comem_cli.store import format
from comem_cli.store.check import CheckOptions, check_store
from comem_cli.store.lock import WriterLock
from comem_cli.store.reader import StoreReader
from comem_cli.store.repair import Repair
from comem_cli.store.rows import ChunkRow
from comem_cli.store.run import IngestRun
from comem_cli.store.setup import WriteOptions
from comem_cli.store.writer import StoreWriter
from tests.commands.cli import residuals, write_documents
from tests.tiny import save_tiny
from tests.tiny_store import TinyStore, make_store

MODES = {"chunk": {}, "overlap": {"overlap": 16}, "document": {"mode": "document"}, "int8": {"residual_dtype": "int8"}}
IGNORED = {name: lambda *args: None for name in ("on_plan", "on_event", "on_bytes", "on_load")}
MORE = 4  # documents of a shard of their own
DEEP = CheckOptions(read_data=True)


def ingest(store: TinyStore, *paths: Path) -> None:
    run = IngestRun(store.path, store.files, WriteOptions(device="cpu"))
    with run.open() as writer:
        run.ingest(writer, list(paths), **IGNORED)


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Callable[[str], TinyStore]:
    """A store in each mode: six documents in five shards."""
    folder = tmp_path_factory.mktemp("made")
    model = save_tiny(folder / "model", initializer_range=0.2)
    done: dict[str, TinyStore] = {}

    def make(mode: str) -> TinyStore:
        if mode not in done:
            store = make_store(folder / mode, model=model, **MODES[mode])
            for number in range(MORE):
                ingest(store, write_documents(folder / mode / f"more{number}", 1, seed=number))
            done[mode] = store
        return done[mode]

    return make


@pytest.fixture
def copy(made, tmp_path) -> Callable[[str], TinyStore]:
    def make(mode: str = "chunk") -> TinyStore:
        store = made(mode)
        shutil.copytree(store.path, tmp_path / mode)
        return replace(store, path=tmp_path / mode)

    return make


def repair(store: TinyStore) -> Repair:
    job = store_repair(store.path, lambda: store.files, device="cpu", note=lambda line: None)
    _, after = job.run()
    assert after.damage == (), after.damage
    return job


def damage_everything(store: Path, rng: random.Random) -> list[str]:
    """Plant 20 faults: flips in two shards, a truncated one, a lost one, both zarr.json, the index."""
    shards = faults.files(store, "shard")
    done = [faults.flip(shards[0], rng) for _ in range(10)]
    done += [faults.flip(shards[1], rng) for _ in range(5)]
    done += [faults.truncate(shards[2], shards[2].stat().st_size // 2), faults.delete(shards[3])]
    done += [faults.delete(store / "zarr.json"), faults.truncate(store / "residuals/zarr.json", 40)]
    return [*done, faults.delete_folder(next((store / "index").iterdir()))]


@pytest.mark.parametrize("mode", MODES)
def test_after_the_repair_of_twenty_faults_every_chunk_is_what_it_was(copy, mode):
    store = copy(mode)
    with_index(store)
    good = residuals(store.path)
    untouched = faults.files(store.path, "shard")[4]
    before = untouched.read_bytes()
    assert len(damage_everything(store.path, random.Random(4))) == 20
    with pytest.raises(CorruptStoreError):
        residuals(store.path)
    job = repair(store)
    assert residuals(store.path) == good
    assert job.done.shards == 4 and job.done.rewritten > 4 and job.done.differing == 0
    assert job.done.indexed == len(good)
    assert untouched.read_bytes() == before
    assert check_store(store.path, DEEP, check_store_index).findings == ()


def with_index(store: TinyStore) -> None:
    from comem_cli.select.store_index import rebuild_index
    from comem_cli.select.terms import TOKENS

    with StoreWriter.open(store.path) as writer:
        rebuild_index(writer, TOKENS)


def _flip(low: int, high: int | None) -> Callable[[Path, random.Random], object]:
    return lambda store, rng: faults.flip(faults.files(store, "shard")[1], rng, low, high)


BLOCK = 32 * 64 * 2
FAULTS: dict[str, Callable[[Path, random.Random], object]] = {
    "data": _flip(0, BLOCK),
    "checksum": _flip(BLOCK, BLOCK + 4),
    "shard index": lambda store, rng: faults.flip(faults.files(store, "shard")[1], rng, -40, -1),
    "deleted": lambda store, rng: faults.delete(faults.files(store, "shard")[0]),
    "folder": lambda store, rng: faults.delete_folder(store / "residuals/c/2"),
    "array folder": lambda store, rng: faults.delete_folder(store / "residuals"),
    "emptied": lambda store, rng: faults.truncate(faults.files(store, "shard")[2], 0),
    "swapped": lambda store, rng: faults.swap(*faults.files(store, "shard")[:2]),
    "longer": lambda store, rng: (store / "residuals/c/0/0").open("ab").write(b"more"),
    "shard row": lambda store, rng: faults.execute(store, "UPDATE shard SET blocks = blocks + 1 WHERE id = 1"),
    "shard rows": lambda store, rng: faults.execute(store, "DELETE FROM shard"),
    "ledger row": lambda store, rng: faults.execute(store, "UPDATE ledger SET tokens = 1"),
    "metadata": lambda store, rng: (store / "residuals/zarr.json").write_text('{"shape": [1e300]}'),
}


@pytest.mark.parametrize("name", FAULTS)
def test_each_fault_is_healed_and_whole_shards_stay_as_they_are(copy, name):
    store = copy()
    good = residuals(store.path)
    files = {path: path.read_bytes() for path in faults.files(store.path, "shard")}
    FAULTS[name](store.path, random.Random(name))
    found = check_store(store.path, DEEP, check_store_index)
    assert found.damage
    broken = found.state.broken_shards if found.state else set()
    job = repair(store)
    assert residuals(store.path) == good and job.done.differing == 0
    for path, before in files.items():
        if path.exists():
            assert path.read_bytes() == before
        else:
            assert int(path.parent.name) in broken, name


def test_a_repair_of_a_whole_store_changes_nothing_and_needs_no_model(copy):
    store = copy()
    with_index(store)
    before = {path: path.read_bytes() for path in faults.all_files(store.path)}
    job = store_repair(store.path, lambda: pytest.fail("no model is needed"), device="cpu", note=pytest.fail)
    first, second = job.run()
    assert first is second and not first.findings
    assert {path: path.read_bytes() for path in faults.all_files(store.path)} == before


def test_metadata_and_index_are_restored_without_a_model(copy):
    store = copy()
    with_index(store)
    faults.delete(store.path / "residuals/zarr.json")
    job = store_repair(store.path, lambda: pytest.fail("no model is needed"), device="cpu", note=lambda line: None)
    assert job.run()[1].findings == ()


def test_another_model_is_refused_and_the_store_stays_as_it_was(copy, tmp_path):
    store = copy()
    faults.flip(faults.files(store.path, "shard")[0], random.Random(1), 0, BLOCK)
    other = replace(store, model=save_tiny(tmp_path / "other", seed=1, initializer_range=0.2))
    before = {path: path.read_bytes() for path in faults.files(store.path, "shard")}
    with pytest.raises(FingerprintError, match="weights"):
        repair(other)
    assert {path: path.read_bytes() for path in faults.files(store.path, "shard")} == before
    repair(store)


def test_a_repair_waits_for_no_writer(copy):
    from comem_cli.errors import LockedError

    store = copy()
    faults.delete(faults.files(store.path, "shard")[0])
    lock = WriterLock(store.path)
    with pytest.raises(LockedError):
        repair(store)
    lock.release()
    repair(store)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    "sql",
    [
        "UPDATE chunk SET ids = x'0102030405060708' WHERE id = 1",
        "UPDATE chunk SET key = 'no key' WHERE id = 2",
        "UPDATE document SET sha256 = 'x' WHERE id = 1",
        "UPDATE document SET path = x'ff' WHERE id = 0",
        "UPDATE placement SET line_last = 99 WHERE document_id = 0 AND number = 1",
        "DELETE FROM placement WHERE document_id = 1 AND number = 0",
        "DELETE FROM chunk WHERE id = 0",
    ],
)
def test_documents_with_damaged_rows_are_ingested_again_and_never_called_unchanged(copy, mode, sql):
    store = copy(mode)
    good = residuals(store.path)
    faults.execute(store.path, sql)
    job = store_repair(store.path, lambda: store.files, device="cpu", note=lambda line: None)
    _, after = job.run()
    assert after.damage  # cannot be healed from inside
    fix = next(finding.fix(store.path) for finding in after.damage if finding.paths or "path" in sql)
    assert fix.startswith("comem ingest ")
    roots = [store.sources, *(store.sources.parent / f"more{number}" for number in range(MORE))]
    ingest(store, *roots)  # a chunk may stand in documents of several roots
    assert residuals(store.path) == good
    assert not check_store(store.path, DEEP, check_store_index).damage


def test_damaged_documents_outside_the_given_paths_are_not_dropped_silently(copy):
    store = copy()
    faults.execute(store.path, "UPDATE document SET sha256 = 'x' WHERE id = 0")
    with pytest.raises(CorruptStoreError, match=r"doc0\.txt") as caught:
        ingest(store, store.sources.parent / "more0")
    assert str(store.sources / "doc0.txt") in caught.value.hint
    assert check_store(store.path, CheckOptions(), check_store_index).damage


def test_a_chunk_whose_context_is_lost_stays_damaged_and_is_named(copy):
    store = copy("document")
    with StoreWriter.open(store.path) as writer:
        first, second = (chunk for _, chunk in writer.document_chunks(0)[:2])
    faults.execute(store.path, f"UPDATE chunk SET ids = x'00' WHERE id = {first.id}")
    at = second.row // 32 * (BLOCK + 4)
    faults.flip(format.shard_path(store.path, second.shard), random.Random(3), at, at + BLOCK)
    job = store_repair(store.path, lambda: store.files, device="cpu", note=lambda line: None)
    _, after = job.run()
    assert {finding.code for finding in after.damage} >= {"residual-damaged", "catalogue-chunk"}
    assert f"chunk {second.key}" in {finding.what for finding in after.damage}
    assert job.done.moved > 0  # its neighbours left the damaged shard


def test_a_damaged_chunk_that_no_document_places_is_dropped(copy):
    store = copy()
    good = residuals(store.path)
    with StoreWriter.open(store.path) as writer:
        ids = os.urandom(64)
        writer.add("ab" * 16, ids, os.urandom(16 * writer.width * 2))
        writer.commit()
        (chunk,) = writer.catalogue.rows(ChunkRow, "WHERE key = ?", ("ab" * 16,))
    faults.flip(format.shard_path(store.path, chunk.shard), random.Random(1), 0, 1000)
    job = repair(store)
    assert (job.done.dropped, job.done.rewritten) == (1, 0)
    assert residuals(store.path) == good


def test_what_a_killed_repair_left_is_swept_by_the_next_although_nothing_is_damaged(copy):
    store = copy()
    with_index(store)
    (store.path / "residuals/c/99").mkdir()
    (store.path / "residuals/c/99/0").write_bytes(b"an orphan")
    with StoreReader(store.path) as reader:
        (store.path / "residuals/zarr.json").write_bytes(format.array_document(reader.layout, reader.capacity, 9))
    before, after = store_repair(store.path, lambda: store.files, device="cpu", note=pytest.fail).run()
    assert {finding.code for finding in before.findings} == {"zarr-shape", "leftover-shard"}
    assert after.findings == ()
