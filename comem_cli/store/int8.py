"""Int8 residual rows: quantise what Write gives, turn it back into bf16 on a fetch, and measure the difference.

Of each row h (d values, rounded to bf16 before) the 8 values of largest magnitude are kept exact, ties going to the
lower channel. The others share the scale s = max|h| / 127 (float32, over these others) and are stored as
round(h / s), half to even; an outlier's own int8 is 0. Back: bf16(s * q), and the outliers as they were. This is the
vector-wise absmax quantisation with outliers apart of LLM.int8() (Dettmers et al. 2022), by row and with a fixed count.

The same bf16 rows give the same bytes everywhere: the outliers are found by integer keys, and the rest is one IEEE
division and one rounding a value.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from comem_cli.errors import ModelError
from comem_cli.store.row_layout import OUTLIERS, RowLayout

LEVELS = 127
_INFINITY = 0x7F80  # the bits of a bf16 infinity; above it are NaNs
_MAGNITUDE = 0x7FFF
_LAST_CHANNEL = 0xFFFF
_AT_ONCE = 2**18  # values that are turned at once: their float32 then stay in the processor's cache
Bits = npt.NDArray[np.uint16]


class NoRecordError(ValueError):
    """Say that record `row` names a channel that no row has."""

    def __init__(self, row: int) -> None:
        super().__init__("holds an int8 record of a channel that no row has")
        self.row = row


def quantise(rows: bytes, layout: RowLayout) -> bytes:
    """Quantise (n, d) bf16 rows into n records.

    Raises: ModelError for a value that is not finite.
    """
    bits = np.frombuffer(rows, "<u2").reshape(-1, layout.width)
    records = np.empty(len(bits), _record(layout))
    step = max(1, _AT_ONCE // layout.width)
    for start in range(0, len(bits), step):
        _quantise(bits[start : start + step], records[start : start + step])
    return records.tobytes()


def _quantise(bits: Bits, records: npt.NDArray[Any]) -> None:
    magnitude = bits & _MAGNITUDE
    if magnitude.max(initial=0) >= _INFINITY:
        raise ModelError(
            "a residual is infinite or no number, which int8 cannot hold",
            "write with --residual-dtype bf16, or compute with --dtype fp32",
        )
    kept = bits.shape[1] - OUTLIERS - 1  # after the partition: the largest of those that are not outliers
    # bf16 bits order as their magnitudes do; the channel makes every key different, the lower one larger.
    keys = magnitude.astype(np.uint32) << 16 | (_LAST_CHANNEL - np.arange(bits.shape[1], dtype=np.uint32))
    keys.partition(kept, axis=1)
    channels = np.sort(_LAST_CHANNEL - (keys[:, kept + 1 :] & _LAST_CHANNEL), axis=1).astype(np.int64)
    scale = _floats((keys[:, kept] >> 16).astype(np.uint16)) / np.float32(LEVELS)
    values = _floats(bits)
    np.put_along_axis(values, channels, np.float32(0), 1)  # first: an outlier over a tiny scale would overflow
    values /= np.where(scale > 0, scale, np.float32(1))[:, None]
    records["scale"] = scale
    records["channels"] = channels
    records["outliers"] = np.take_along_axis(bits, channels, 1)
    records["values"] = np.rint(values, out=values)


def dequantise(records: bytearray | npt.NDArray[np.uint8], out: memoryview, layout: RowLayout) -> None:
    """Turn n records back into `out`: (n, d) bf16. Both are writable memory, as torch wants it.

    Raises: NoRecordError.
    """
    held = np.frombuffer(records, _record(layout))
    channels = held["channels"]
    if channels.max(initial=0) >= layout.width:
        raise NoRecordError(int((channels >= layout.width).any(axis=1).argmax()))
    bits = np.frombuffer(out, np.int16)
    rows = torch.from_numpy(bits).view(torch.bfloat16).view(-1, layout.width)
    scale = torch.from_numpy(np.ascontiguousarray(held["scale"]))[:, None]
    step = max(1, _AT_ONCE // layout.width)
    buffer = torch.empty(min(step, len(held)), layout.width)
    for start in range(0, len(held), step):
        part = slice(start, start + step)
        values = torch.from_numpy(held["values"][part])
        wide = buffer[: len(values)].copy_(values)  # first: a product of int8 and float32 is slower
        rows[part].copy_(wide.mul_(scale[part]))
    bits[np.arange(len(held))[:, None] * layout.width + channels] = held["outliers"].view(np.int16)


def relative_errors(rows: bytes, records: bytes, layout: RowLayout) -> npt.NDArray[np.float64]:
    """Return |h - h'| / |h| (Euclidean) of each row: (n,), h as Write gave it, h' as a fetch gives it; 0 for h = 0."""
    back = bytearray(len(rows))
    dequantise(bytearray(records), memoryview(back), layout)
    exact, found = (
        torch.frombuffer(bytearray(each), dtype=torch.bfloat16).view(-1, layout.width).double() for each in (rows, back)
    )
    length = torch.linalg.vector_norm(exact, dim=1)
    error = torch.linalg.vector_norm(found.sub_(exact), dim=1)
    ratio: npt.NDArray[np.float64] = (error / torch.where(length > 0, length, 1.0)).numpy()
    return ratio


def _record(layout: RowLayout) -> np.dtype[np.void]:
    return np.dtype(
        {
            "names": ["scale", "channels", "outliers", "values"],
            "formats": ["<f4", ("<u2", OUTLIERS), ("<u2", OUTLIERS), ("i1", layout.width)],
            "offsets": [0, layout.channels_offset, layout.outliers_offset, layout.values_offset],
            "itemsize": layout.row_bytes,
        }
    )


def _floats(bits: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
    """Widen bf16 bits to float32, exactly."""
    wide: npt.NDArray[np.float32] = (bits.astype(np.uint32) << 16).view(np.float32)
    return wide
