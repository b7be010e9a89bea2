"""A store that came from elsewhere: valid digests over absurd values, links, other files. A clear error, no more."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import faults_on_disk as faults
import pytest
from samples import contents, open_store, put, sample
from samples import ledger as cost

from comem_cli.errors import ComemError, CorruptStoreError, NoStoreError
from comem_cli.select.check_index import check_store_index
from comem_cli.select.store_index import rebuild_index
from comem_cli.select.terms import TOKENS
from comem_cli.store.check import CheckOptions, check_store
from comem_cli.store.mend import MendingWriter
from comem_cli.store.reader import StoreReader
from comem_cli.store.rows import row_digest
from comem_cli.store.writer import StoreWriter


@pytest.fixture
def store(tmp_path):
    path = tmp_path / "s"
    with open_store(path) as writer:
        put(writer, "a", [sample(1), sample(2, 40)])
        writer.commit(cost())
        rebuild_index(writer, TOKENS)
    return path


def forge(store: Path, table: str, column: str, value: object) -> None:
    """Set a column of every row and sign the rows, as an attacker would."""
    import sqlite3

    connection = sqlite3.connect(store / "catalog.sqlite")
    names = [row[1] for row in connection.execute(f"PRAGMA table_info({table})")][:-1]
    keys = ("document_id", "number") if table == "placement" else ("at",) if table == "ledger" else (names[0],)
    for row in connection.execute(f"SELECT {', '.join(names)} FROM {table}").fetchall():
        old = dict(zip(names, row, strict=True))
        new = {**old, column: value}
        where = " AND ".join(f"{key} = ?" for key in keys)
        sql = f"UPDATE {table} SET {column} = ?, digest = ? WHERE {where}"
        connection.execute(sql, (value, row_digest(table, new.values()), *(old[key] for key in keys)))
        if table == "root":
            break
    connection.commit()
    connection.close()


def forge_fact(store: Path, key: str, value: str) -> None:
    faults.execute(
        store, "UPDATE meta SET value = ?, digest = ? WHERE key = ?", (value, row_digest("meta", (key, value)), key)
    )


def refused(store: Path, *codes: int) -> None:
    """Whatever opens the store says so in one line; nothing beside it is touched."""
    before = outside(store)
    for use in (contents, StoreWriter.open, MendingWriter.open, open_store):
        with pytest.raises(ComemError) as caught:
            use(store)
        assert caught.value.exit_code in codes, (use, caught.value)
        assert "\n" not in caught.value.message
    assert outside(store) == before


def outside(store: Path) -> dict[str, bytes]:
    return {
        str(path): path.read_bytes() for path in store.parent.rglob("*") if path.is_file() and store not in path.parents
    }


FACTS = {
    "width": ["1000000000000", "0", "-1", "8.5", "9" * 5000, "\u0661", ""],
    "capacity": ["1000000000000", "0", "31", "eight"],
    "generation": ["x", "9" * 20],
    "next_shard": ["../../up", "-1"],
    "next_chunk": ["1e9"],
    "content": ["../x", "zz"],
    "index_name": ["../../up", "a/b", "..", "x" * 100],
    "recorded": ["[]", '{"compute_dtype": 5}', "[" * 100_000, "\x00"],
    "fingerprint": ["null", "{}", "[" * 100_000],
}


@pytest.mark.parametrize(("key", "value"), [(key, value) for key, values in FACTS.items() for value in values])
def test_absurd_facts_are_refused(store, key, value):
    forge_fact(store, key, value)
    refused(store, 13)


@pytest.mark.parametrize(
    "change",
    [
        {"chunk": 10**12},
        {"chunk": "64"},
        {"split": -1},
        {"overlap": 2**40},
        {"mode": "other"},
        {"mode": "overlap"},
        {"shapes": "[[1000000,1000000]]"},
        {"shapes": "{}"},
        {"shapes": 5},
        {"more": 1},
        {"chunk": True},
    ],
)
def test_absurd_fingerprints_are_refused(store, change):
    with StoreReader(store) as reader:
        values = reader.fingerprint.to_dict()
    forge_fact(store, "fingerprint", json.dumps({**values, **change}))
    refused(store, 13)


ROWS = [
    ("chunk", "n_tokens", 10**12),
    ("chunk", "n_tokens", "many"),
    ("chunk", "row", 2**52),
    ("chunk", "row", 5),
    ("chunk", "shard", None),
    ("chunk", "shard", -1),
    ("chunk", "crcs", b""),
    ("chunk", "ids", "text"),
    ("document", "path", b"../../../etc/passwd"),
    ("document", "path", b"/etc/passwd"),
    ("document", "path", "text"),
    ("document", "path", b"a\0b"),
    ("document", "size", -5),
    ("document", "mtime_ns", 1.5),
    ("placement", "byte_end", -1),
    ("placement", "line_first", "one"),
    ("root", "path", b"relative"),
]


@pytest.mark.parametrize(("table", "column", "value"), ROWS)
def test_absurd_rows_are_refused_and_named_by_check(store, table, column, value):
    forge(store, table, column, value)
    with pytest.raises(CorruptStoreError, match=f"table {table}"):
        contents(store)
    report = check_store(store, CheckOptions(read_data=True), check_store_index)
    assert f"catalogue-{table}" in {finding.code for finding in report.damage}


@pytest.mark.parametrize("shard", ["../../up", 10**15, 7])
def test_a_shard_number_leads_nowhere_else(store, tmp_path, shard):
    (tmp_path / "up").mkdir()
    faults.execute(store, "PRAGMA foreign_keys=OFF")
    forge(store, "chunk", "shard", shard)
    with pytest.raises(CorruptStoreError):
        contents(store)
    assert check_store(store, CheckOptions(), check_store_index).damage


@pytest.mark.parametrize(
    "sql",
    [
        "CREATE TRIGGER t AFTER INSERT ON chunk BEGIN DELETE FROM document; END",
        "CREATE VIEW v AS WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT x FROM n",
    ],
)
def test_views_and_triggers_are_refused(store, sql):
    faults.execute(store, sql)
    refused(store, 13)
    (finding,) = check_store(store, CheckOptions(), check_store_index).findings
    assert finding.code == "catalogue-unreadable"


def test_a_view_in_the_place_of_a_table_cannot_run_for_ever(store):
    faults.execute(store, "ALTER TABLE meta RENAME TO other")
    endless = (
        "WITH RECURSIVE n(x) AS (SELECT 'k' UNION ALL SELECT x FROM n) SELECT x AS key, x AS value, x AS digest FROM n"
    )
    faults.execute(store, f"CREATE VIEW meta AS {endless}")
    start = time.monotonic()
    refused(store, 13)
    assert time.monotonic() - start < 5


@pytest.mark.parametrize("name", ["residuals", "residuals/c", "index", "catalog.sqlite"])
def test_parts_that_are_links_are_refused_and_nothing_behind_them_is_touched(store, tmp_path, name):
    elsewhere = tmp_path / "elsewhere"
    (store / name).rename(elsewhere)
    if elsewhere.is_dir():
        for victim in ("precious/file", "7/0", "x.tmp"):
            (elsewhere / victim).parent.mkdir(exist_ok=True)
            (elsewhere / victim).write_text("keep me")
    (store / name).symlink_to(elsewhere)
    refused(store, 13)
    assert check_store(store, CheckOptions(), check_store_index).damage


@pytest.mark.parametrize("name", ["residuals/c/0", "residuals/c/0/0"])
def test_a_shard_that_is_a_link_is_damage(store, tmp_path, name):
    (store / name).rename(tmp_path / "elsewhere")
    (store / name).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(CorruptStoreError, match="symbolic link"):
        contents(store)
    codes = [finding.code for finding in check_store(store, CheckOptions(), check_store_index).damage]
    assert codes == ["shard-missing"]


def test_a_link_where_the_next_shard_goes_is_not_followed(store, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (store / "residuals/c/1").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ComemError), open_store(store) as writer:
        put(writer, "b", [sample(5)])
        writer.commit()
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_a_fifo_in_the_place_of_a_shard_does_not_block(store):
    shard = store / "residuals/c/0/0"
    shard.unlink()
    os.mkfifo(shard)
    with pytest.raises(CorruptStoreError, match="no regular file"):
        contents(store)
    assert check_store(store, CheckOptions(read_data=True), check_store_index).damage


@pytest.mark.parametrize(
    "document",
    [
        {"shape": [10**18, 8]},
        {"codecs": [{"name": "unknown"}]},
        {"data_type": "float64"},
        {"chunk_key_encoding": {"name": "default", "configuration": {"separator": "../"}}},
    ],
)
def test_a_forged_zarr_json_is_found_changes_no_answer_and_is_restored(store, document):
    path = store / "residuals/zarr.json"
    good, held = path.read_bytes(), contents(store)
    path.write_text(json.dumps({**json.loads(good), **document}))
    assert [f.code for f in check_store(store, CheckOptions(), check_store_index).damage] == ["zarr-metadata"]
    assert contents(store) == held
    open_store(store).close()
    assert path.read_bytes() == good


def test_deeply_nested_and_huge_metadata_is_found_without_reading_it(store):
    path = store / "residuals/zarr.json"
    for text in ("[" * 60_000, '{"shape": [' + "9" * 10_000 + "]}"):
        path.write_text(text)
        assert check_store(store, CheckOptions(), check_store_index).damage
    with path.open("wb") as file:
        file.truncate(2**40)  # sparse
    assert check_store(store, CheckOptions(), check_store_index).damage


@pytest.mark.parametrize("size", [0, 1, 100, 4096, 20_000])
def test_a_truncated_catalogue_is_damage(store, size):
    faults.truncate(store / "catalog.sqlite", size)
    refused(store, 13)
    assert check_store(store, CheckOptions(), check_store_index).damage


def test_a_folder_that_is_no_store_is_none(tmp_path):
    for use in (StoreReader, StoreWriter.open, lambda path: check_store(path, CheckOptions(), check_store_index)):
        with pytest.raises(NoStoreError):
            use(tmp_path)


MEMORY = """import resource, sys
from pathlib import Path
from comem_cli.select.check_index import check_store_index
from comem_cli.store.check import CheckOptions, check_store
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
report = check_store(Path(sys.argv[1]), CheckOptions(read_data=True), lambda *args: [])
assert report.damage
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


def test_a_hostile_store_takes_little_memory(store, tmp_path):
    """A shard row of a terabyte over a sparse file, an enormous value, and a wide array."""
    shard = store / "residuals/c/0/0"
    with shard.open("r+b") as file:
        file.truncate(2**40)
    forge(store, "shard", "bytes", 2**40)
    forge(store, "shard", "blocks", 2**31)
    other = Path(shutil.copytree(store, tmp_path / "other", ignore=lambda *_: ["c"]))
    faults.execute(other, f"UPDATE chunk SET ids = zeroblob({2**27})")
    for path in (store, other):
        done = subprocess.run([sys.executable, "-c", MEMORY, path], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert int(done.stdout) < 200 * 1024, done.stdout  # KiB
