from __future__ import annotations

import json
import struct

import google_crc32c
import ml_dtypes
import numpy as np
import pytest
import tensorstore
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st
from samples import CHUNK, RECORDED, WIDTH, contents, expected, fingerprint, open_store, put, sample

from comem_cli.store import bf16, format
from comem_cli.store.catalogue import open_readable
from comem_cli.store.row_layout import RowLayout
from comem_cli.store.rows import ChunkRow
from comem_cli.store.writer import StoreWriter


@given(st.integers(1, 9000), st.integers(1, 9000))
def test_a_shard_holds_whole_padded_chunks_and_about_32_mib_or_32768_rows(width, chunk):
    rows = format.shard_capacity(RowLayout(width), chunk)
    padded = -(-chunk // 32) * 32
    assert rows % padded == 0 and rows >= padded
    assert rows == padded or (rows * width * 2 <= 32 * 2**20 and rows <= 32768)
    assert (rows + padded) * width * 2 > 32 * 2**20 or rows + padded > 32768


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(1, CHUNK), max_size=6), st.integers(1, 12))
def test_a_shard_file_is_blocks_with_checksums_and_an_index(lengths, width):
    capacity = 6 * CHUNK
    builder = format.ShardBuilder(RowLayout(width), capacity)
    chunks = [sample(seed, n, width) for seed, n in enumerate(lengths)]
    rows = [builder.add(memoryview(chunk.residual)) for chunk in chunks]
    data = b"".join(bytes(part) for part in builder.parts())
    size = 32 * width * 2
    count = sum(-(-n // 32) for n in lengths)
    assert len(data) == format.shard_file_bytes(RowLayout(width), count, capacity)
    index = data[count * (size + 4) :]
    assert struct.unpack("<I", index[-4:])[0] == google_crc32c.value(index[:-4])
    entries = list(struct.iter_unpack("<QQ", index[:-4]))
    assert entries == [(i * (size + 4), size + 4) for i in range(count)] + [(2**64 - 1,) * 2] * (12 - count)
    for chunk, (row, crcs) in zip(chunks, rows, strict=True):
        blocks = -(-chunk.n_tokens // 32)
        raw = [data[(row // 32 + i) * (size + 4) :][: size + 4] for i in range(blocks)]
        assert b"".join(block[:-4] for block in raw) == chunk.residual.ljust(blocks * size, b"\0")
        assert b"".join(block[-4:] for block in raw) == crcs
        assert crcs == b"".join(struct.pack("<I", google_crc32c.value(block[:-4])) for block in raw)


def _stored_rows(path, read_rows):
    """Check that `read_rows(start, stop)` gives the bytes of every chunk, by the catalogue's shard and row."""
    catalogue = open_readable(path)
    capacity = int(catalogue.meta()["capacity"])
    found = {}
    for chunk in catalogue.rows(ChunkRow):
        start = chunk.shard * capacity + chunk.row
        found[chunk.key] = read_rows(start, start + chunk.n_tokens)
    catalogue.close()
    return found


@pytest.fixture
def store_of_three_shards(tmp_path):
    path = tmp_path / "s"
    chunks = [sample(1), sample(2, 5), sample(3, 33), sample(4), sample(5, 64)]
    with open_store(path) as writer:
        put(writer, "a", chunks[:2])
        writer.commit()
        put(writer, "b", chunks[2:4])
        writer.commit()
        put(writer, "c", chunks[4:])
        writer.commit()
    return path, chunks


def test_zarr_python_reads_equal_bytes(store_of_three_shards):
    path, chunks = store_of_three_shards
    bf16.register()
    array = zarr.open_group(path, mode="r")["residuals"]
    assert array.dtype == ml_dtypes.bfloat16
    capacity = format.shard_capacity(RowLayout(WIDTH), CHUNK)
    assert array.shape == (3 * capacity, WIDTH)
    found = _stored_rows(path, lambda a, b: np.asarray(array[a:b]).tobytes())
    assert found == {chunk.key: chunk.residual for chunk in chunks}
    assert contents(path)["/src", "a"] == expected(chunks[:2])


def test_tensorstore_reads_equal_bytes(store_of_three_shards):
    path, chunks = store_of_three_shards
    spec = {"driver": "zarr3", "kvstore": {"driver": "file", "path": f"{path}/residuals/"}}
    array = tensorstore.open(spec, open=True, read=True).result()
    found = _stored_rows(path, lambda a, b: array[a:b].read().result().tobytes())
    assert found == {chunk.key: chunk.residual for chunk in chunks}


def test_both_libraries_detect_a_flipped_bit(store_of_three_shards):
    path, _ = store_of_three_shards
    file = format.shard_path(path, 0)
    data = bytearray(file.read_bytes())
    data[100] ^= 0x10
    file.write_bytes(data)
    bf16.register()
    with pytest.raises(ValueError, match="checksum"):
        zarr.open_array(path / "residuals", mode="r")[0:64]
    spec = {"driver": "zarr3", "kvstore": {"driver": "file", "path": f"{path}/residuals/"}}
    with pytest.raises(ValueError, match="Digest mismatch"):
        tensorstore.open(spec, open=True, read=True).result()[0:64].read().result()


def test_an_array_that_zarr_python_writes_has_the_same_metadata(tmp_path):
    bf16.register()
    array = zarr.create_array(
        tmp_path / "z",
        shape=(192, 4),
        shards=(96, 4),
        chunks=(32, 4),
        dtype="bfloat16",
        compressors=zarr.codecs.Crc32cCodec(),
    )
    values = np.arange(192 * 4, dtype=np.float32).reshape(192, 4).astype(ml_dtypes.bfloat16)
    array[:] = values
    theirs = json.loads((tmp_path / "z" / "zarr.json").read_bytes())
    ours = json.loads(format.array_document(RowLayout(4), 96, 2))
    assert {key: theirs[key] for key in ours} == ours
    builder = format.ShardBuilder(RowLayout(4), 96)
    builder.add(memoryview(values[:96].view(np.uint16)).cast("B"))
    assert (tmp_path / "z" / "c" / "0" / "0").read_bytes() == b"".join(bytes(part) for part in builder.parts())


@pytest.mark.parametrize(("value", "word"), [(0.0, 0.0), (1.5, 1.5), (np.inf, "Infinity"), (-np.inf, "-Infinity")])
def test_fill_values_survive_json(value, word):
    kind = bf16.BFloat16()
    assert kind.to_json_scalar(kind.cast_scalar(value), zarr_format=3) == word
    assert kind.from_json_scalar(word, zarr_format=3) == value
    assert np.isnan(float(kind.from_json_scalar("NaN", zarr_format=3)))
    assert float(kind.from_json_scalar("0x3fc0", zarr_format=3)) == 1.5


def test_a_thousand_short_chunks_stay_within_a_quarter_of_their_bytes(tmp_path):
    width = 64
    path = tmp_path / "s"
    with StoreWriter.create_or_open(path, fingerprint(chunk=512), width, RECORDED) as writer:
        for seed in range(1000):
            put(writer, f"f{seed}", [sample(seed, 200, width)])
        writer.commit()
    total = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
    assert total <= 1.25 * 1000 * 200 * width * 2
