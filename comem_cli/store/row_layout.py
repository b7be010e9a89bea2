"""The bytes of one residual row on disk: d bf16 values, or an int8 record of d + 36 bytes.

    bfloat16   d x 2 bytes
    int8       scale (float32) | numbers of the 8 outlier channels (uint16) | their values (bf16) | d x int8

A row's record is one fixed-width piece of an array, so that shards, checksums, digests, repair and deletion work on row
bytes whatever they mean. All numbers are little-endian. Only the standard library is used until rows are turned.
"""

from __future__ import annotations

from dataclasses import dataclass

from comem_cli.store.fingerprint import Fingerprint

BF16, INT8 = "bfloat16", "int8"
DTYPES = {"bf16": BF16, "int8": INT8}  # what the user says -> what the fingerprint holds
NO_QUANTISER, QUANTISER = "none", "row-absmax-top8"
BF16_BYTES = 2
OUTLIERS = 8  # channels of a row that are kept exact
SCALE_BYTES, CHANNEL_BYTES = 4, 2
NARROWEST, WIDEST = OUTLIERS + 1, 2**16  # d for int8: something is left to quantise, and uint16 names every channel


@dataclass(frozen=True)
class RowLayout:
    """Say how a residual row of `width` = d values lies on disk; `dtype` is the fingerprint's residual_dtype."""

    width: int
    dtype: str = BF16

    @classmethod
    def of(cls, fingerprint: Fingerprint, width: int) -> RowLayout:
        """Return the layout of a store."""
        return cls(width, fingerprint.residual_dtype)

    @property
    def quantised(self) -> bool:
        """Tell whether rows are int8 records."""
        return self.dtype == INT8

    @property
    def columns(self) -> int:
        """Return the elements of a row of the array: d values, or the bytes of a record."""
        return self.values_offset + self.width if self.quantised else self.width

    @property
    def row_bytes(self) -> int:
        """Return the bytes of a row: 2d, or d + 36."""
        return self.columns if self.quantised else self.columns * BF16_BYTES

    @property
    def channels_offset(self) -> int:
        """Return the byte of an int8 record at which the outliers' channel numbers begin; the scale is before them."""
        return SCALE_BYTES

    @property
    def outliers_offset(self) -> int:
        """Return the byte of an int8 record at which the outliers' values begin."""
        return self.channels_offset + OUTLIERS * CHANNEL_BYTES

    @property
    def values_offset(self) -> int:
        """Return the byte of an int8 record at which the d int8 values begin."""
        return self.outliers_offset + OUTLIERS * BF16_BYTES

    def attributes(self) -> dict[str, object]:
        """Describe an int8 record for those who read the array without comem; nothing for bf16."""
        if not self.quantised:
            return {}
        record = [
            {"name": "scale", "data_type": "float32", "count": 1, "offset": 0},
            {"name": "channels", "data_type": "uint16", "count": OUTLIERS, "offset": self.channels_offset},
            {"name": "outliers", "data_type": "bfloat16", "count": OUTLIERS, "offset": self.outliers_offset},
            {"name": "values", "data_type": "int8", "count": self.width, "offset": self.values_offset},
        ]
        return {"record": record, "quantiser": QUANTISER}

    def encode(self, rows: bytes) -> bytes:
        """Turn rows as Write gives them, (n, d) bf16, into rows as they lie on disk.

        Raises: ModelError for values that are not finite, which no int8 record can hold.
        """
        if not self.quantised:
            return rows
        from comem_cli.store.int8 import quantise  # numpy

        return quantise(rows, self)

    def round_trip(self, rows: bytes) -> bytes:
        """Return what a fetch gives back of rows that Write gave: (n, d) bf16 both.

        Raises: as `encode`.
        """
        if not self.quantised:
            return rows
        from comem_cli.store.int8 import dequantise, quantise

        found = bytearray(len(rows))
        dequantise(bytearray(quantise(rows, self)), memoryview(found), self)
        return bytes(found)


def quantiser_of(dtype: str) -> str:
    """Return the fingerprint's quantiser of a residual dtype."""
    return QUANTISER if dtype == INT8 else NO_QUANTISER
