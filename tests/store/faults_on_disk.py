"""Damage to the files of a store, planted with a seed: flip, delete, truncate, swap, of every kind of file.

Every function says what it did, so that a failure can be read. Nothing here knows how comem detects it.
"""

from __future__ import annotations

import random
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path

KINDS = ("shard", "array.json", "group.json", "catalogue", "index")
Fault = Callable[[Path, random.Random], str]


def files(store: Path, kind: str) -> list[Path]:
    """List the files of one kind, in a fixed order."""
    patterns = {
        "shard": "residuals/c/*/0",
        "array.json": "residuals/zarr.json",
        "group.json": "zarr.json",
        "catalogue": "catalog.sqlite",
        "index": "index/*/*",
    }
    return sorted(path for path in store.glob(patterns[kind]) if path.is_file())


def all_files(store: Path) -> list[Path]:
    """List the files of every kind; the lock file holds nothing."""
    return [path for kind in KINDS for path in files(store, kind)]


def flip(path: Path, rng: random.Random, low: int = 0, high: int | None = None) -> str:
    """Flip one random bit of a file, at an offset in [low, high)."""
    data = bytearray(path.read_bytes())
    at, bit = rng.randrange(low, len(data) if high is None else high), rng.randrange(8)
    data[at] ^= 1 << bit
    _write(path, data)
    return f"flip bit {bit} of byte {at} of {path.name} in {path.parent.name}"


def flip_anywhere(store: Path, rng: random.Random) -> str:
    """Flip one bit of the store, every byte of it as likely as any other."""
    found = all_files(store)
    return flip(rng.choices(found, [path.stat().st_size for path in found])[0], rng)


def flip_in_kind(kind: str) -> Fault:
    """Make the fault that flips one bit of a random file of a kind."""
    return lambda store, rng: flip(rng.choice(files(store, kind)), rng)


def truncate(path: Path, keep: int) -> str:
    """Keep the first bytes of a file."""
    data = path.read_bytes()
    _write(path, data[:keep])
    return f"truncate {path.name} in {path.parent.name} from {len(data)} to {keep}"


def delete(path: Path) -> str:
    """Remove a file."""
    path.unlink()
    return f"delete {path.name} in {path.parent.name}"


def swap(one: Path, other: Path) -> str:
    """Exchange the contents of two files."""
    first, second = one.read_bytes(), other.read_bytes()
    _write(one, second)
    _write(other, first)
    return f"swap {one.name} in {one.parent.name} with {other.name} in {other.parent.name}"


def cuts(path: Path) -> list[int]:
    """Return the lengths that a file is truncated to: nothing, one byte, half, all but one."""
    size = path.stat().st_size
    return sorted({0, 1, size // 2, size - 1})


def delete_folder(path: Path) -> str:
    """Remove a folder with all that is in it."""
    shutil.rmtree(path)
    return f"delete folder {path.name} in {path.parent.name}"


def execute(store: Path, sql: str, values: tuple[object, ...] = ()) -> str:
    """Change the catalogue behind comem's back."""
    connection = sqlite3.connect(store / "catalog.sqlite")
    try:
        connection.execute(sql, values)
        connection.commit()
    finally:
        connection.close()
    return sql


def _write(path: Path, data: bytes | bytearray) -> None:
    path.chmod(0o600)
    path.write_bytes(data)
