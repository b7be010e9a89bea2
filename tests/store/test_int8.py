"""Int8 records against a quantiser in plain Python, and what they promise about every value."""

from __future__ import annotations

import struct
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from comem_cli.errors import ModelError
from comem_cli.store import int8
from comem_cli.store.row_layout import INT8, RowLayout

WIDTH = 20
LAYOUT = RowLayout(WIDTH, INT8)
FINITE = st.integers(0, 0x7F7F).flatmap(lambda bits: st.sampled_from([bits, bits | 0x8000]))  # bf16 bit patterns
CLOSE = st.integers(0x3F80, 0x3F88).flatmap(lambda bits: st.sampled_from([bits, bits | 0x8000]))  # many ties
ROWS = st.one_of(
    *(arrays.arrays(np.uint16, st.tuples(st.integers(1, 5), st.just(WIDTH)), elements=e) for e in (FINITE, CLOSE))
)


def floats(bits: np.ndarray) -> np.ndarray:
    return bits.view(ml_dtypes.bfloat16).astype(np.float64)


def drawn(rows: int, width: int, seed: int = 0) -> np.ndarray:
    """Rows as models have them: a few channels far above the others."""
    rng = np.random.default_rng(seed)
    values = rng.normal(size=(rows, width)) * rng.uniform(0.1, 30, size=(rows, 1))
    values[:, rng.choice(width, 4, replace=False)] *= 60
    return values.astype(ml_dtypes.bfloat16).view(np.uint16)


def reference(bits: np.ndarray) -> tuple[bytes, np.ndarray]:
    """Quantise and turn back one row at a time, exactly where it can be."""
    records, back = [], []
    for row, values in zip(bits, floats(bits), strict=True):
        order = sorted(range(WIDTH), key=lambda channel: (-abs(values[channel]), channel))
        channels = sorted(order[:8])
        scale = np.float32(abs(values[order[8]])) / np.float32(127)
        quantised = [0] * WIDTH
        for channel in set(range(WIDTH)) - set(channels):
            ratio = np.float32(values[channel]) / scale if scale else np.float32(0)
            quantised[channel] = round(Fraction(float(ratio)))  # half to even
        parts = struct.pack("<f8H8H", scale, *channels, *row[channels]) + struct.pack(f"{WIDTH}b", *quantised)
        records.append(parts)
        found = (np.float32(scale) * np.array(quantised, np.float32)).astype(ml_dtypes.bfloat16).view(np.uint16)
        found[channels] = row[channels]
        back.append(found)
    return b"".join(records), np.array(back)


def turned_back(records: bytes, rows: int, layout: RowLayout = LAYOUT) -> np.ndarray:
    out = bytearray(rows * layout.width * 2)
    int8.dequantise(bytearray(records), memoryview(out), layout)
    return np.frombuffer(out, np.uint16).reshape(rows, layout.width)


@settings(deadline=None, max_examples=60)
@given(ROWS)
def test_records_and_what_they_give_back_are_those_of_the_reference(bits):
    records, back = reference(bits)
    assert int8.quantise(bits.tobytes(), LAYOUT) == records
    assert (turned_back(records, len(bits)) == back).all()
    assert LAYOUT.encode(bits.tobytes()) == records
    assert LAYOUT.round_trip(bits.tobytes()) == back.tobytes()


def test_outliers_are_exact_and_the_others_within_half_a_step():
    bits = drawn(64, WIDTH)
    back = turned_back(int8.quantise(bits.tobytes(), LAYOUT), 64)
    order = np.argsort(-np.abs(floats(bits)), axis=1, kind="stable")
    assert (np.take_along_axis(back, order[:, :8], 1) == np.take_along_axis(bits, order[:, :8], 1)).all()
    largest = np.abs(np.take_along_axis(floats(bits), order[:, 8:9], 1))
    step = largest / 127
    assert (np.abs(floats(back) - floats(bits)) <= step / 2 + largest * 2.0**-8).all()  # and bf16's own rounding


def test_bytes_do_not_depend_on_how_many_rows_are_turned_at_once(monkeypatch):
    layout = RowLayout(576, INT8)
    bits = drawn(100, 576)
    records = int8.quantise(bits.tobytes(), layout)
    back = turned_back(records, 100, layout)
    assert len(records) == 100 * (576 + 36)
    for at_once in (1, 577, 576 * 7):
        monkeypatch.setattr(int8, "_AT_ONCE", at_once)
        assert int8.quantise(bits.tobytes(), layout) == records
        assert (turned_back(records, 100, layout) == back).all()


def test_relative_errors_are_norms_of_differences_and_zero_for_a_zero_row():
    bits = drawn(16, WIDTH)
    bits[3] = 0
    records = int8.quantise(bits.tobytes(), LAYOUT)
    exact, found = floats(bits), floats(turned_back(records, 16))
    length = np.linalg.norm(exact, axis=1)
    wanted = np.divide(np.linalg.norm(found - exact, axis=1), length, out=np.zeros(16), where=length > 0)
    assert int8.relative_errors(bits.tobytes(), records, LAYOUT) == pytest.approx(wanted, rel=1e-12)
    assert wanted[3] == 0 < wanted[4] < 0.02


def test_a_record_of_a_channel_that_no_row_has_is_refused_by_its_number():
    records = bytearray(int8.quantise(drawn(9, WIDTH).tobytes(), LAYOUT))
    struct.pack_into("<H", records, 6 * LAYOUT.row_bytes + 4 + 2 * 3, WIDTH)
    with pytest.raises(int8.NoRecordError, match="no row has") as caught:
        turned_back(bytes(records), 9)
    assert caught.value.row == 6
    assert turned_back(b"", 0).shape == (0, WIDTH)


@pytest.mark.parametrize("odd", [0x7F80, 0xFF80, 0x7FC0], ids=["inf", "-inf", "nan"])
def test_what_is_not_finite_is_refused(odd):
    bits = drawn(4, WIDTH)
    bits[2, 5] = odd
    with pytest.raises(ModelError, match="infinite or no number"):
        int8.quantise(bits.tobytes(), LAYOUT)
    assert RowLayout(WIDTH).encode(bits.tobytes()) == bits.tobytes()  # bf16 keeps whatever it is given


@pytest.mark.parametrize(
    ("width", "dtype", "row_bytes"), [(576, "bfloat16", 1152), (576, INT8, 612), (4096, INT8, 4132)]
)
def test_the_bytes_of_a_row(width, dtype, row_bytes):
    layout = RowLayout(width, dtype)
    assert layout.row_bytes == row_bytes
    assert row_bytes * 8 / width == pytest.approx({"bfloat16": 16, INT8: 8 + 288 / width}[dtype])
