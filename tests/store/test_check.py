"""`check` finds every planted fault, names it by a stable code, and writes nothing."""

from __future__ import annotations

import itertools
import random
import re
import shutil
from pathlib import Path

import faults_on_disk as faults
import pytest
from samples import contents, open_store, put, sample
from samples import ledger as cost

from comem_cli.select.check_index import check_store_index
from comem_cli.select.store_index import rebuild_index
from comem_cli.select.terms import TOKENS
from comem_cli.store.check import CheckOptions, Report, check_store
from comem_cli.store.findings import CODES
from comem_cli.store.lock import WriterLock
from comem_cli.store.rows import ROW_TYPES

FAST, DEEP = CheckOptions(), CheckOptions(read_data=True)
README = Path(__file__).parents[2] / "stores" / "README.md"


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Three shards, four documents, two of them sharing a chunk; with its index."""
    path = tmp_path_factory.mktemp("whole") / "s"
    with open_store(path) as writer:
        for seed in range(3):
            put(writer, f"d{seed}", [sample(seed), sample(seed + 10, 40)])
            writer.commit(cost())
        put(writer, "again", [sample(1)])
        writer.commit()
        writer.drop_unplaced()
        rebuild_index(writer, TOKENS)
    return path


@pytest.fixture
def store(whole, tmp_path):
    return Path(shutil.copytree(whole, tmp_path / "s"))


def check(store: Path, options: CheckOptions = FAST) -> Report:
    return check_store(store, options, check_store_index)


def codes(store: Path, options: CheckOptions = DEEP) -> set[str]:
    return {finding.code for finding in check(store, options).damage}


@pytest.mark.parametrize("options", [FAST, DEEP, CheckOptions(sample=2)])
def test_a_whole_store_has_no_finding_and_is_left_as_it_was(store, options):
    before = {path: path.read_bytes() for path in faults.all_files(store)}
    lock = WriterLock(store)  # a writer at work is no obstacle
    report = check(store, options)
    lock.release()
    assert report.findings == ()
    assert (report.documents, report.chunks, report.shards) == (4, 6, 3)
    assert {path: path.read_bytes() for path in faults.all_files(store)} == before
    size = sum(path.stat().st_size for path in faults.files(store, "shard"))
    assert (report.bytes_read == size) == options.read_data


def test_any_flipped_bit_is_found_or_changes_no_readable_row(store, tmp_path):
    good = contents(store)
    rng = random.Random(11)
    found = 0
    for number in range(60):
        path = Path(shutil.copytree(store, tmp_path / str(number)))
        what = faults.flip_anywhere(path, rng)
        if check(path, DEEP).findings:
            found += 1
        else:
            assert contents(path) == good, what
        shutil.rmtree(path)
    assert found > 20


@pytest.mark.parametrize("kind", faults.KINDS)
def test_flips_in_each_kind_of_file_are_found_or_harmless(store, kind, tmp_path):
    good = contents(store)
    rng = random.Random(kind)
    for number in range(12):
        path = Path(shutil.copytree(store, tmp_path / str(number)))
        what = faults.flip_in_kind(kind)(path, rng)
        if not check(path, DEEP).findings:
            assert kind in ("catalogue", "index"), what  # every other byte is accounted for
            assert contents(path) == good, what


@pytest.mark.parametrize("kind", faults.KINDS)
def test_a_deleted_or_truncated_file_of_any_kind_is_found_by_the_fast_check(store, kind, tmp_path):
    for file in faults.files(store, kind):
        for keep in [None, *faults.cuts(file)]:
            path = Path(shutil.copytree(store, tmp_path / "copy"))
            victim = path / file.relative_to(store)
            what = faults.delete(victim) if keep is None else faults.truncate(victim, keep)
            try:
                assert check(path).damage, what
            except Exception as error:
                assert getattr(error, "exit_code", None) in (10, 13), (what, error)
            shutil.rmtree(path)


@pytest.mark.parametrize("kind", ["shard", "index"])
def test_two_files_of_a_kind_that_change_places_are_found(store, kind, tmp_path):
    found = faults.files(store, kind)
    for number, (one, other) in enumerate(itertools.pairwise(found)):
        path = Path(shutil.copytree(store, tmp_path / str(number)))
        what = faults.swap(path / one.relative_to(store), path / other.relative_to(store))
        assert check(path, DEEP).damage, what


def test_the_two_metadata_files_in_each_others_place_are_found(store):
    faults.swap(store / "zarr.json", store / "residuals/zarr.json")
    assert [finding.code for finding in check(store).damage] == ["zarr-metadata"] * 2


def test_faults_of_every_kind_at_once_are_all_named(store):
    with open_store(store) as writer:
        put(writer, "last", [sample(30), sample(31)])
        writer.commit()
    rng = random.Random(5)
    shards = faults.files(store, "shard")
    faults.flip(shards[0], rng, 0, 1000)
    faults.truncate(shards[1], 100)
    faults.delete(shards[2])
    (store / "zarr.json").write_text("{}")
    faults.execute(store, "UPDATE chunk SET ids = x'00' WHERE id = 6")
    faults.execute(store, "UPDATE ledger SET tokens = tokens + 1 WHERE rowid = 1")
    shutil.rmtree(store / "index")
    report = check(store, DEEP)
    found = [(finding.code, finding.what) for finding in report.damage]
    assert ("residual-damaged", f"chunk {sample(0).key}") in found
    assert ("shard-size", "residuals/c/1/0") in found and ("shard-missing", "residuals/c/2/0") in found
    assert ("zarr-metadata", "zarr.json") in found
    assert ("catalogue-chunk", f"chunk '{sample(30).key}'") in found
    assert ("catalogue-ledger", "ledger 1.5") in found
    (row,) = [finding for finding in report.damage if finding.code == "catalogue-chunk"]
    assert row.paths == ("/src/last",) and row.fix(store) == f"comem ingest /src/last --store {store}"
    assert [finding.code for finding in report.findings if not finding.damage] == ["index-stale"]
    assert all(finding.fix(store) for finding in report.findings)


@pytest.mark.parametrize("kind", [kind for kind in ROW_TYPES if kind.table != "meta"])
def test_every_damaged_row_of_a_table_is_named_not_only_the_first(store, kind):
    column = {"root": "path", "document": "sha256", "shard": "blocks", "chunk": "crcs", "placement": "line_last"}
    name = column.get(kind.table, "tokens")
    with_more = f"{name} + 1" if name in ("blocks", "line_last", "tokens") else f"{name} || x'01'"
    faults.execute(store, f"UPDATE {kind.table} SET {name} = {with_more}")
    report = check(store)
    hits = [finding for finding in report.damage if finding.code == f"catalogue-{kind.table}"]
    expected = {"root": 1, "document": 4, "shard": 3, "chunk": 6, "placement": 7, "ledger": 3}
    assert len([finding for finding in hits if "digest" in finding.detail]) == expected[kind.table]


def test_lost_rows_are_found(store):
    faults.execute(store, "DELETE FROM document WHERE id = 3")  # its placement goes on without it
    assert "catalogue-document" in codes(store, FAST)
    faults.execute(store, "DELETE FROM placement WHERE document_id = 3")
    assert "catalogue-content" not in codes(store)  # the chunk is placed elsewhere: nothing that can be told is lost
    faults.execute(store, "DELETE FROM placement WHERE document_id = 0 AND number = 1")
    assert "catalogue-content" in codes(store)


def test_leftovers_of_a_killed_writer_and_strange_files_are_notes(store):
    for name in (
        "zarr.json.tmp",
        "residuals/c/7/0",
        "residuals/c/8/0.tmp",
        "index/.x.building/f",
        "NOTES",
        "index/n",
        "forget.pending",
    ):
        (store / name).parent.mkdir(exist_ok=True)
        (store / name).touch()
    with open_store(store.with_name("other")) as writer:
        put(writer, "d", [sample(0)])
        writer.commit()
    report = check(store)
    assert report.damage == ()
    assert {(finding.code, finding.what) for finding in report.findings} == {
        ("leftover-file", "zarr.json.tmp"),
        ("leftover-shard", "residuals/c/7"),
        ("leftover-shard", "residuals/c/8"),
        ("leftover-index", "index/.x.building"),
        ("stranger", "NOTES"),
        ("stranger", "index/n"),
        ("forget-pending", "forget.pending"),
    }
    open_store(store).close()
    assert {finding.code for finding in check(store).findings} == {"leftover-index", "stranger", "forget-pending"}


def test_chunks_of_an_interrupted_ingest_are_a_note(store):
    with open_store(store) as writer:
        lone = sample(40)
        writer.add(lone.key, lone.ids, lone.residual)
        writer.commit(cost())
    report = check(store, DEEP)
    assert report.damage == () and [finding.code for finding in report.findings] == ["leftover-chunks"]


def test_a_sample_reads_random_chunks_and_finds_what_it_meets(store):
    for shard in faults.files(store, "shard"):
        data = bytearray(shard.read_bytes())
        for at in range(0, 4 * (8 * 64 + 4), 8 * 64 + 4):
            data[at] ^= 1
        shard.write_bytes(data)
    assert check(store).damage == ()
    assert len(check(store, CheckOptions(sample=2)).damage) == 2
    one, other = (check(store, CheckOptions(sample=2, seed=seed)).damage for seed in (1, 2))
    assert one == check(store, CheckOptions(sample=2, seed=1)).damage != other


def test_a_writer_that_commits_meanwhile_is_no_damage(store):
    """The index that the snapshot names is gone when the check comes to it: the next attempt sees the new one."""
    calls = []

    def index_is_replaced(reader, live, deep):
        calls.append(reader.generation)
        if len(calls) == 1:
            with open_store(store) as writer:
                put(writer, "new", [sample(50)])
                writer.commit()
                rebuild_index(writer, TOKENS)
        return check_store_index(reader, live, deep)

    assert check_store(store, FAST, index_is_replaced).findings == ()
    assert len(calls) == 2 and calls[1] > calls[0]


def test_every_code_is_documented_and_only_those():
    listed = README.read_text().partition("### Reason codes")[2].partition("\n#")[0]
    assert set(re.findall(r"^\| `([a-z-]+)` \|", listed, re.MULTILINE)) == set(CODES)
