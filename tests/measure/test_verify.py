"""`verify` on tiny real stores: every contract holds, and each sabotage fails the line it belongs to, and no other."""

import json
import math
import shutil

import pytest
from typer.testing import CliRunner

from comem_cli.errors import NoStoreError, UsageError
from comem_cli.measure import store_contracts
from comem_cli.measure.verify import Result, VerifyOptions, verify
from comem_cli.store.reader import StoreReader
from tests.tiny import FAMILIES
from tests.tiny_store import TinyStore, alter_residual, alter_weight, make_store

NAMES = ["partition", "replay", "oracle", "decode", "write", "document", "storage", "selection"]


def run(store: TinyStore, **options) -> dict[str, Result]:
    chosen = VerifyOptions(**{"device": "cpu", "samples": None, **options})
    results = list(verify(store.path, lambda: store.files, chosen, lambda line: None))
    assert [result.name for result in results] == NAMES
    return {result.name: result for result in results}


def failed(results: dict[str, Result]) -> list[str]:
    return [name for name, result in results.items() if not result.passed]


def copy(store: TinyStore, folder) -> TinyStore:
    for name in ("store", "model", "docs"):
        shutil.copytree(store.path.parent / name, folder / name)
    return TinyStore(folder / "store", folder / "model", folder / "docs")


@pytest.fixture(scope="module")
def written(tmp_path_factory) -> TinyStore:
    return make_store(tmp_path_factory.mktemp("verify"))


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_all_contracts_hold_in_every_family(tmp_path, family):
    results = run(make_store(tmp_path, family), samples=2)
    assert failed(results) == []
    assert results["partition"].measured == results["replay"].measured == results["oracle"].measured == 0
    assert 0 < results["selection"].measured <= 1e-5


@pytest.mark.parametrize(
    "options",
    [{"overlap": 16}, {"mode": "document"}, {"split": 0}, {"split": 6}, {"residual_dtype": "int8"}],
    ids=lambda options: "-".join(f"{k}-{v}" for k, v in options.items()),
)
def test_all_contracts_hold_in_every_mode_and_at_both_ends(tmp_path, options):
    assert failed(run(make_store(tmp_path, **options))) == []


def test_all_contracts_hold_in_bf16_and_the_split_stays_exact(tmp_path):
    results = run(make_store(tmp_path, "gemma3_text", dtype="bf16"), dtype="bf16")
    assert failed(results) == []
    assert results["partition"].measured == 0
    assert results["decode"].tolerance > 1e-4


def test_verify_changes_no_file_of_the_store(written):
    before = {
        p: p.read_bytes() for p in written.path.rglob("*") if p.is_file() and not p.name.endswith(("-wal", "-shm"))
    }
    run(written, samples=2)
    assert {p: p.read_bytes() for p in before} == before


@pytest.mark.parametrize("mend", [False, True], ids=["checksum", "re-encoded"])
def test_an_altered_residual_fails_storage_alone(written, tmp_path, mend):
    store = copy(written, tmp_path)
    chunk = alter_residual(store.path, mend=mend)
    results = run(store)
    assert failed(results) == ["storage"]
    if mend:
        assert results["storage"].measured == 1
    else:
        assert results["storage"].measured is None
        assert chunk.key in results["storage"].detail


def test_an_altered_weight_fails_storage_alone_and_names_the_field(written, tmp_path):
    store = copy(written, tmp_path)
    alter_weight(store.model)
    results = run(store)
    assert failed(results) == ["storage"]
    assert "weights" in results["storage"].detail


def test_the_index_of_another_store_fails_selection_alone(written, tmp_path):
    store = copy(written, tmp_path / "a")
    other = make_store(tmp_path / "b", model=store.model, chunk=32)
    swap_index(store, other)
    results = run(store)
    assert failed(results) == ["selection"]


def test_a_query_that_no_chunk_matches_is_agreed_on(written, monkeypatch):
    made = store_contracts.made_queries
    monkeypatch.setattr(store_contracts, "made_queries", lambda *given: [*made(*given), (999_999,)])
    results = run(written)
    assert failed(results) == []
    assert 0 < results["selection"].measured <= 1e-5


def test_an_index_that_lacks_the_last_chunk_fails_selection(written, tmp_path):
    from comem_cli.select.index_write import build_index

    store = copy(written, tmp_path)
    with StoreReader(store.path) as reader:
        chunks = [(chunk.id, chunk.ids) for chunk in reader.iter_chunks()][:-1]
    build_index(next((store.path / "index").iterdir()), chunks)
    results = run(store)
    assert failed(results) == ["selection"]
    assert results["selection"].measured == math.inf
    assert results["selection"].to_json()["measured"] is None


def swap_index(store: TinyStore, other: TinyStore) -> None:
    mine, theirs = (next((s.path / "index").iterdir()) for s in (store, other))
    shutil.rmtree(mine)
    shutil.copytree(theirs, mine)


def test_a_missing_index_fails_selection_alone(written, tmp_path):
    store = copy(written, tmp_path)
    shutil.rmtree(store.path / "index")
    results = run(store)
    assert failed(results) == ["selection"]
    assert results["selection"].measured is None


def test_a_smaller_sample_reads_fewer_chunks(written):
    assert "of 1 chunks" in run(written, samples=1)["storage"].detail


def test_no_store_and_no_samples_are_refused(tmp_path):
    with pytest.raises(NoStoreError):
        list(verify(tmp_path / "none", lambda: None, VerifyOptions(), print))
    with pytest.raises(UsageError, match="below 1"):
        VerifyOptions(samples=0).checked()


def cli(*args: str):
    from comem_cli.app import app

    return CliRunner().invoke(app, ["verify", *args])


def test_the_command_prints_one_json_document(written):
    done = cli(str(written.path), "--model", str(written.model), "--device", "cpu", "--samples", "2", "--json")
    assert done.exit_code == 0
    lines = json.loads(done.stdout)["contracts"]
    assert [line["name"] for line in lines] == NAMES
    assert all({"name", "measured", "tolerance", "passed"} <= line.keys() and line["passed"] for line in lines)


def test_the_command_prints_a_table_and_exits_1_where_a_line_fails(written, tmp_path):
    store = copy(written, tmp_path)
    alter_residual(store.path, mend=True)
    done = cli(str(store.path), "--model", str(store.model), "--device", "cpu", "--all")
    assert done.exit_code == 1
    rows = [line.split("\t") for line in done.stdout.splitlines()]
    assert [row[0] for row in rows] == ["contract", *NAMES]
    assert [row[0] for row in rows if row[3] == "FAILED"] == ["storage"]
    assert "1 of 8 contracts failed: storage" in done.stderr
