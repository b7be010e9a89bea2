"""The zarr v3 data type "bfloat16" for zarr-python, which has none of its own.

`register()` once, then `zarr.open_array("STORE/residuals", mode="r")` gives NumPy arrays of ml_dtypes.bfloat16.
comem itself reads with `preadv` (fetch.py); this is for the tests and for anyone who reads a store with zarr-python.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import ml_dtypes
import numpy as np
from zarr.core.dtype import data_type_registry
from zarr.core.dtype.common import DataTypeValidationError, HasEndianness, HasItemSize
from zarr.core.dtype.wrapper import ZDType

_NATIVE: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
_WORDS = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


# HasEndianness makes zarr-python write `endian` into the codec "bytes"; tensorstore refuses the array without it.
@dataclass(frozen=True, kw_only=True)
class BFloat16(ZDType[Any, Any], HasItemSize, HasEndianness):
    """Map the data type name "bfloat16" to ml_dtypes.bfloat16."""

    dtype_cls = type(_NATIVE)
    _zarr_v3_name: ClassVar[str] = "bfloat16"

    @classmethod
    def from_native_dtype(cls, dtype: np.dtype[np.generic]) -> BFloat16:
        """Accept ml_dtypes.bfloat16 alone."""
        if dtype != _NATIVE:
            raise DataTypeValidationError(f"{dtype} is not bfloat16")
        return cls()

    def to_native_dtype(self) -> np.dtype[np.generic]:
        """Return the NumPy data type."""
        return _NATIVE

    @classmethod
    def _from_json_v2(cls, data: object) -> BFloat16:
        raise DataTypeValidationError(f"zarr v2 has no bfloat16: {data!r}")

    @classmethod
    def _from_json_v3(cls, data: object) -> BFloat16:
        if data != cls._zarr_v3_name:
            raise DataTypeValidationError(f"{data!r} is not bfloat16")
        return cls()

    def to_json(self, zarr_format: int) -> str:  # type: ignore[override]
        """Return the name that zarr.json holds."""
        if zarr_format != 3:
            raise ValueError("bfloat16 needs zarr format 3")
        return self._zarr_v3_name

    def _check_scalar(self, data: object) -> bool:
        return isinstance(data, (int, float, np.generic))

    def cast_scalar(self, data: object) -> np.generic:
        """Turn a number into a bfloat16 scalar."""
        if not self._check_scalar(data):
            raise TypeError(f"{data!r} is not a number")
        return self._scalar(float(data))  # type: ignore[arg-type]

    def default_scalar(self) -> np.generic:
        """Return zero."""
        return self._scalar(0.0)

    def from_json_scalar(self, data: object, *, zarr_format: int) -> np.generic:
        """Read a fill value: a number, "NaN", "Infinity", "-Infinity" or "0x7fc0" (the bits)."""
        if isinstance(data, str) and data.startswith("0x"):
            bits: np.generic = np.frombuffer(int(data, 16).to_bytes(2, "little"), _NATIVE)[0]
            return bits
        return self._scalar(_WORDS[data] if isinstance(data, str) else float(data))  # type: ignore[arg-type]

    def to_json_scalar(self, data: object, *, zarr_format: int) -> float | str:
        """Write a fill value."""
        number = float(data)  # type: ignore[arg-type]
        if math.isnan(number):
            return "NaN"
        return number if math.isfinite(number) else ("Infinity" if number > 0 else "-Infinity")

    @property
    def item_size(self) -> int:
        """Return the bytes of a value."""
        return 2

    @staticmethod
    def _scalar(number: float) -> np.generic:
        value: np.generic = _NATIVE.type(number)
        return value


def register() -> None:
    """Make zarr-python know the data type; calling it again changes nothing."""
    data_type_registry.register("bfloat16", BFloat16)
