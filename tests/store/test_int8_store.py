"""A store of int8 residuals: the array as others read it, fetch, settings, what is recorded, rewrites and deletion."""

from __future__ import annotations

import json
import shutil
import struct
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import tensorstore
import zarr
from killed_forget import forget
from samples import CHUNK, RECORDED, Sample, fingerprint, put, sample
from test_reclaim import check_exact_bytes

from comem_cli.errors import CorruptStoreError, FingerprintError, UsageError
from comem_cli.select.check_index import check_store_index
from comem_cli.store import format
from comem_cli.store.check import CheckOptions, check_store
from comem_cli.store.doomed import find_doomed
from comem_cli.store.facts import residual_error
from comem_cli.store.fingerprint import chunk_key
from comem_cli.store.int8 import dequantise
from comem_cli.store.plausible import facts_flaw
from comem_cli.store.reader import StoreReader
from comem_cli.store.reclaim import compact, with_dead_rows
from comem_cli.store.row_layout import INT8, QUANTISER, RowLayout
from comem_cli.store.rows import LedgerRow
from comem_cli.store.setup import WriteOptions, WriteSetup
from comem_cli.store.writer import StoreWriter
from tests.commands.cli import residuals
from tests.tiny import WIDTH
from tests.tiny_store import TinyStore, make_store

D = 16
LAYOUT = RowLayout(D, INT8)
FIELDS = {"format_version": 2, "residual_dtype": INT8, "quantiser": QUANTISER}
DEEP = CheckOptions(read_data=True)


def record(seed: int, n_tokens: int = CHUNK) -> Sample:
    """A chunk whose residual is a valid record a token, of drawn rows."""
    rng = np.random.default_rng(seed)
    rows = (rng.normal(size=(n_tokens, D)) * 9).astype("<f4").view("<u4") >> 16
    ids = sample(seed, n_tokens).ids
    key = chunk_key(fingerprint(**FIELDS).digest(), b"", ids)
    return Sample(key, ids, LAYOUT.encode(rows.astype("<u2").tobytes()))


@pytest.fixture
def store(tmp_path) -> tuple[Path, list[Sample]]:
    """Three shards of records."""
    chunks = [record(1), record(2, 5), record(3, 33), record(4), record(5, 64)]
    path = tmp_path / "s"
    with StoreWriter.create_or_open(path, fingerprint(**FIELDS), D, RECORDED) as writer:
        for name, some in {"a": chunks[:2], "b": chunks[2:4], "c": chunks[4:]}.items():
            put(writer, name, some)
            writer.commit()
    return path, chunks


@pytest.fixture(scope="module")
def written(tmp_path_factory) -> TinyStore:
    """A store of int8 residuals that a tiny model wrote, with its index."""
    return make_store(tmp_path_factory.mktemp("int8"), residual_dtype="int8")


@pytest.fixture(scope="module")
def exact(written, tmp_path_factory) -> TinyStore:
    """The same documents and model, kept in bf16."""
    return make_store(tmp_path_factory.mktemp("bf16"), model=written.model)


def test_zarr_python_and_tensorstore_read_the_records_as_they_are(store):
    path, chunks = store
    array = zarr.open_group(path, mode="r")["residuals"]
    spec = {"driver": "zarr3", "kvstore": {"driver": "file", "path": f"{path}/residuals/"}}
    same = tensorstore.open(spec, open=True, read=True).result()
    assert array.dtype == np.uint8 and array.shape == same.shape
    with StoreReader(path) as reader:
        assert array.shape == (3 * reader.capacity, D + 36)
        rows = {row.key: row for row in reader.iter_chunks()}
        for chunk in chunks:
            row = rows[chunk.key]
            start = row.shard * reader.capacity + row.row
            for part in (array[start : start + row.n_tokens], same[start : start + row.n_tokens].read().result()):
                assert np.asarray(part).tobytes() == chunk.residual
    (last,) = (one for one in array.attrs["record"] if one["name"] == "values")
    assert (last["offset"], last["count"], last["data_type"]) == (36, D, "int8")


def test_an_array_that_zarr_python_writes_has_the_same_metadata(tmp_path):
    shape = {"shape": (192, D + 36), "shards": (96, D + 36), "chunks": (32, D + 36)}
    array = zarr.create_array(tmp_path / "z", **shape, dtype="uint8", compressors=zarr.codecs.Crc32cCodec())
    values = np.random.default_rng(0).integers(1, 256, (192, D + 36), np.uint8)
    array[:] = values
    theirs = json.loads((tmp_path / "z" / "zarr.json").read_bytes())
    ours = json.loads(format.array_document(LAYOUT, 96, 2))
    ours["attributes"] = {}
    assert {key: theirs[key] for key in ours} == ours
    builder = format.ShardBuilder(LAYOUT, 96)
    builder.add(memoryview(values[:96].tobytes()))
    assert (tmp_path / "z" / "c" / "0" / "0").read_bytes() == b"".join(map(bytes, builder.parts()))


def test_a_fetch_gives_the_records_of_several_chunks_back_as_bf16(store):
    path, chunks = store
    wanted = [chunks[3], chunks[1], chunks[2]]
    with StoreReader(path) as reader:
        ids = {row.key: row.id for row in reader.iter_chunks()}
        out = bytearray(sum(chunk.n_tokens for chunk in wanted) * D * 2 + 6)
        assert reader.fetch([ids[chunk.key] for chunk in wanted], memoryview(out)) == [64, 5, 33]
        found = b""
        for chunk in wanted:
            rows = bytearray(chunk.n_tokens * D * 2)
            dequantise(bytearray(chunk.residual), memoryview(rows), LAYOUT)
            found += rows
            assert reader.stored_rows(ids[chunk.key]) == chunk.residual
        assert out == found + bytes(6)
        with pytest.raises(ValueError, match="the buffer holds"):
            reader.fetch([ids[chunks[0].key]], memoryview(bytearray(CHUNK * D * 2 - 1)))


def test_a_chunk_that_is_read_in_several_parts_is_the_same(store, monkeypatch):
    path, chunks = store
    whole = residuals(path)
    monkeypatch.setattr("comem_cli.store.fetch._READ_BYTES", 1)  # a block at once
    assert residuals(path) == whole and len(whole) == len(chunks)


def test_a_record_that_is_none_names_its_chunk_although_its_checksum_is_right(tmp_path):
    good, bad, path = record(1), record(2, 5), tmp_path / "s"
    rows = bytearray(bad.residual)
    struct.pack_into("<H", rows, 4 * LAYOUT.row_bytes + 4, D)  # the first outlier of the last row
    with StoreWriter.create_or_open(path, fingerprint(**FIELDS), D, RECORDED) as writer:
        put(writer, "a", [good, replace(bad, residual=bytes(rows)), record(3)])
        writer.commit()
    with StoreReader(path) as reader:
        out = memoryview(bytearray(200 * D * 2))
        with pytest.raises(CorruptStoreError, match=f"chunk {bad.key}: .*int8 record"):
            reader.fetch(reader.chunk_ids_in_order(), out)
        assert reader.fetch([], out) == []


def test_any_flipped_bit_is_detected_and_a_whole_store_has_no_findings(store):
    path, _ = store
    assert [f.code for f in check_store(path, DEEP, check_store_index).findings] == ["index-none"]
    file = format.shard_path(path, 1)
    whole = file.read_bytes()
    for at in np.random.default_rng(0).integers(0, 4 * (32 * (D + 36) + 4), 40):
        data = bytearray(whole)
        data[at] ^= 0x10
        file.write_bytes(data)
        with pytest.raises(CorruptStoreError, match="checksum"):
            residuals(path)
        assert any(f.damage for f in check_store(path, DEEP, check_store_index).findings)


def test_what_is_dropped_leaves_no_byte_and_the_disk_holds_what_is_expected(store):
    path, chunks = store
    check_exact_bytes(path)
    with StoreWriter.open(path) as writer:
        writer.remove_documents([document.id for document in writer.documents() if document.name == "a"])
        put(writer, "b", chunks[2:3])
        writer.commit()
        writer.drop_unplaced()
        compact(writer, with_dead_rows(writer.catalogue))
    check_exact_bytes(path)
    data = b"".join(file.read_bytes() for file in path.rglob("*") if file.is_file())
    gone, kept = (chunks[0], chunks[1], chunks[3]), (chunks[2], chunks[4])
    assert not any(chunk.residual[:52] in data or chunk.residual[-52:] in data for chunk in gone)
    assert all(chunk.residual[:52] in data and chunk.residual[-52:] in data for chunk in kept)


def test_absurd_facts_are_named(store):
    path, _ = store
    with StoreReader(path) as reader:
        facts = reader.catalogue.meta()
    assert facts_flaw(facts) is None

    def flaw(**fields: object) -> str | None:
        changed = {**json.loads(facts["fingerprint"]), **fields}
        return facts_flaw({**facts, "fingerprint": json.dumps(changed)})

    assert "quantiser" in (flaw(quantiser="none") or "")
    assert "int4" in (flaw(residual_dtype="int4") or "")
    assert "format 2" in (flaw(residual_dtype="bfloat16", quantiser="none") or "")
    assert "width 70,000" in (facts_flaw({**facts, "width": "70000"}) or "")
    assert "format 1" in (facts_flaw({**facts, "format_version": "1"}) or "")


def test_a_store_that_lost_everything_may_become_int8(tmp_path):
    path = tmp_path / "s"
    StoreWriter.create_or_open(path, fingerprint(), D, RECORDED).close()
    assert json.loads((path / "zarr.json").read_bytes())["attributes"] == {"comem_format": 1}
    with StoreWriter.create_or_open(path, fingerprint(**FIELDS), D, RECORDED) as writer:
        put(writer, "a", [record(1)])
        writer.commit()
    assert json.loads((path / "zarr.json").read_bytes())["attributes"] == {"comem_format": 2}
    assert [f.code for f in check_store(path, DEEP, check_store_index).findings] == ["index-none"]
    assert len(residuals(path)) == 1


# With a model


def test_a_store_holds_the_quantised_bytes_of_what_bf16_keeps(written, exact):
    layout = RowLayout(WIDTH, INT8)
    with StoreReader(written.path) as reader, StoreReader(exact.path) as plain:
        assert reader.layout == layout and reader.fingerprint.format_version == 2
        ours = [row for number in reader.chunk_ids_in_order() for row in reader.chunks([number])]
        theirs = [row for number in plain.chunk_ids_in_order() for row in plain.chunks([number])]
        assert [row.ids for row in ours] == [row.ids for row in theirs] and len(ours) > 3
        for one, other in zip(ours, theirs, strict=True):
            assert reader.stored_rows(one.id) == layout.encode(plain.stored_rows(other.id))
        blocks = sum(format.blocks_of(row.n_tokens) for row in ours)
        saved = plain.counts().residual_bytes - reader.counts().residual_bytes
        assert saved == blocks * 32 * (2 * WIDTH - WIDTH - 36)


def test_the_ledger_has_the_relative_error_of_all_rows(written, exact):
    kept, plain = residuals(written.path), residuals(exact.path)
    with StoreReader(written.path) as reader, StoreReader(exact.path) as other:
        keys = {row.ids: row.key for row in reader.iter_chunks()}
        pairs = [(kept[keys[row.ids]], plain[row.key]) for row in other.iter_chunks()]
        ledger = reader.ledger()
        found = residual_error(ledger, reader.fingerprint.digest())
        assert residual_error(ledger, "0" * 32) is None
        assert residual_error(other.ledger(), other.fingerprint.digest()) is None
        tokens = reader.counts().tokens
    errors = []
    for ours, theirs in pairs:
        back, exactly = ((np.frombuffer(raw, "<u2").astype("<u4") << 16).view("<f4") for raw in (ours, theirs))
        back, exactly = (each.reshape(-1, WIDTH).astype(float) for each in (back, exactly))
        errors += list(np.linalg.norm(back - exactly, axis=1) / np.linalg.norm(exactly, axis=1))
    assert found is not None and found.rows == tokens == len(errors)
    assert (found.mean, found.max) == pytest.approx((np.mean(errors), np.max(errors)), rel=1e-9)
    assert 0 < found.mean < 0.02


def test_errors_of_several_commits_are_weighted_by_their_tokens():
    def row(tokens: int, total: float, largest: float) -> LedgerRow:
        detail = {"fingerprint": "f", "relative_error": {"sum": total, "max": largest}}
        return LedgerRow(0.0, "write:chunk", 1, tokens, 1.0, 1.0, 0.0, "cpu", "fp32", json.dumps(detail))

    found = residual_error([row(10, 0.1, 0.02), row(30, 0.6, 0.05)], "f")
    assert found is not None and vars(found) == {"rows": 40, "mean": pytest.approx(0.0175), "max": 0.05}


def test_an_existing_store_keeps_its_dtype_and_refuses_the_other_by_name(written, exact):
    def setup(store: TinyStore, dtype: str | None) -> WriteSetup:
        return WriteSetup(store.path, store.files, WriteOptions(device="cpu", residual_dtype=dtype))

    for store, own, other in ((written, "int8", "bf16"), (exact, "bf16", "int8")):
        for dtype in (None, own):
            again = setup(store, dtype)
            assert again.fingerprint == again.stored.fingerprint
        with pytest.raises(FingerprintError) as caught:
            setup(store, other)
        for word in ("residual_dtype", "quantiser", "int8", "bfloat16", QUANTISER):
            assert word in caught.value.message
        assert "--residual-dtype" in caught.value.hint
    with pytest.raises(FingerprintError, match="split"):  # another field as well: each is named
        WriteSetup(exact.path, exact.files, WriteOptions(device="cpu", split=3, residual_dtype="int8"))


def test_there_must_be_something_to_quantise(tmp_path, written):
    with pytest.raises(UsageError, match="token ids only"):
        WriteSetup(tmp_path / "s", written.files, WriteOptions(device="cpu", split=0, residual_dtype="int8"))
    setup = WriteSetup(tmp_path / "s", written.files, WriteOptions(device="cpu"))
    setup.identity = replace(setup.identity, width=8)
    setup._options = WriteOptions(device="cpu", residual_dtype="int8")
    with pytest.raises(UsageError, match="width"):
        setup._residual_dtype(2, None)


def test_forgotten_documents_leave_no_trace(tmp_path, written):
    store = replace(written, path=Path(shutil.copytree(written.path, tmp_path / "s")))
    before = residuals(store.path)
    with StoreReader(store.path) as reader:
        gone = {row.key: reader.stored_rows(row.id) for row in reader.document_chunks(0)}
        rows_bytes = find_doomed(reader.catalogue, ["doc0.txt"]).rows_bytes
        assert rows_bytes == sum(-(-len(rows) // 3200) * (3200 + 4) for rows in gone.values())  # 32 rows of 100 bytes
    report = forget(store.path, "doc0.txt")
    assert report.done and report.needles > len(gone)
    data = b"".join(file.read_bytes() for file in store.path.rglob("*") if file.is_file())
    after = residuals(store.path)
    assert after == {key: rows for key, rows in before.items() if key not in gone} and after
    assert not any(rows[-64:] in data for rows in gone.values())
    check_exact_bytes(store.path)
