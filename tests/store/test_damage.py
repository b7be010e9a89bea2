"""Damage of every kind is detected when it is read: never wrong bytes, never zeros."""

from __future__ import annotations

import random
import shutil
import sqlite3

import pytest
from samples import contents, open_store, put, sample

from comem_cli.errors import CorruptStoreError
from comem_cli.store import format
from comem_cli.store.reader import StoreReader
from comem_cli.store.row_layout import RowLayout
from comem_cli.store.rows import ROW_TYPES


@pytest.fixture
def store(tmp_path):
    path = tmp_path / "s"
    with open_store(path) as writer:
        for seed in range(2):
            put(writer, f"d{seed}", [sample(seed), sample(seed + 10, 40)])
            writer.commit()
    return path


def refused(path, *words):
    with pytest.raises(CorruptStoreError) as caught:
        contents(path)
    assert caught.value.exit_code == 13 and caught.value.hint.count("comem ") == 1
    for word in words:
        assert word in caught.value.message
    return caught.value


def test_any_flipped_bit_of_a_chunks_blocks_is_detected(store):
    file = format.shard_path(store, 0)
    whole = file.read_bytes()
    blocks = 4 * (format.block_bytes(RowLayout(8)) + 4)
    rng = random.Random(7)
    for _ in range(100):
        data = bytearray(whole)
        data[rng.randrange(blocks)] ^= 1 << rng.randrange(8)
        file.write_bytes(data)
        refused(store, str(file), "chunk ")
    file.write_bytes(whole)
    assert len(contents(store)) == 2


@pytest.mark.parametrize("keep", [0, 1, 700, 4 * (8 * 64 + 4) - 1])
def test_a_truncated_shard_is_short(store, keep):
    file = format.shard_path(store, 0)
    file.write_bytes(file.read_bytes()[:keep])
    refused(store, "is short", sample(0).key if keep < 1000 else sample(10, 40).key)


def test_a_deleted_shard_is_missing(store):
    shutil.rmtree(format.shard_path(store, 1).parent)
    refused(store, "is missing", sample(1).key)


def test_swapped_shards_are_detected_although_each_is_valid(store):
    one, two = format.shard_path(store, 0), format.shard_path(store, 1)
    first, second = one.read_bytes(), two.read_bytes()
    one.write_bytes(second)
    two.write_bytes(first)
    refused(store, "does not match its checksum")


def test_a_shard_that_is_a_symlink_is_not_followed(store, tmp_path):
    file = format.shard_path(store, 0)
    file.rename(tmp_path / "elsewhere")
    file.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(Exception, match="symbolic"):
        contents(store)


COLUMNS = [(kind.table, column) for kind in ROW_TYPES for column in kind.columns() if kind.table != "ledger"]


@pytest.mark.parametrize(("table", "column"), COLUMNS)
def test_a_changed_column_of_any_row_is_detected(store, table, column):
    connection = sqlite3.connect(store / "catalog.sqlite")
    (value,) = connection.execute(f"SELECT {column} FROM {table} LIMIT 1").fetchone()
    other = value + 77 if isinstance(value, int) else value[:-1] + (b"\x01" if isinstance(value, bytes) else "~")
    where = f"{column} = (SELECT {column} FROM {table} LIMIT 1)"
    connection.execute(f"UPDATE {table} SET {column} = ? WHERE {where}", (other,))
    connection.commit()
    connection.close()

    def read_all():
        with StoreReader(store) as reader:
            for kind in ROW_TYPES:
                list(reader._catalogue.rows(kind))

    with pytest.raises(CorruptStoreError, match=f"table {table}"):
        read_all()


def test_a_flipped_bit_of_the_catalogue_never_gives_other_bytes(store):
    file = store / "catalog.sqlite"
    whole = file.read_bytes()
    good = contents(store)
    rng = random.Random(3)
    detected = 0
    for _ in range(150):
        data = bytearray(whole)
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        file.write_bytes(data)
        try:
            found = contents(store)
        except Exception as error:
            assert getattr(error, "exit_code", None) in (1, 10, 12, 13), repr(error)
            detected += 1
            continue
        for name, chunks in found.items():
            assert set(chunks) <= set(good.get(name, [])) or name not in good
    assert detected > 10


def test_a_lost_meta_row_is_named(store):
    connection = sqlite3.connect(store / "catalog.sqlite")
    connection.execute("DELETE FROM meta WHERE key = 'width'")
    connection.commit()
    connection.close()
    refused(store, "lacks width")


@pytest.mark.parametrize("data", [b"not a database at all" * 100, b"SQLite format 3\0" + b"\0" * 4000])
def test_a_catalogue_that_is_no_database_is_corrupt(store, data):
    (store / "catalog.sqlite").write_bytes(data)
    refused(store)
    with pytest.raises(CorruptStoreError):
        open_store(store)
