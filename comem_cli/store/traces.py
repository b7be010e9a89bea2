"""Search raw bytes for traces of what was deleted: many byte strings at once, in bounded memory.

A `Needle` is what must not be found. Files are read in blocks that overlap. The first 8 bytes of each needle (4 of the
shorter ones) are hashed into a table, and so are those at every position of a block: what remains is compared byte by
byte, so that a reported trace is one. Needles of fewer than 4 bytes are not looked for, and those of fewer than 8 not
in residuals and indexes, where chance alone would find them.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from comem_cli.errors import from_os_error

BLOCK_BYTES = 2**20
MOST_TRACES = 100  # that are reported
MARGIN_BYTES = 8192  # around a block: longer than a path can be
_LONG, _SHORT = 8, 4  # bytes that are hashed
_FACTORS = {_LONG: np.uint64(0x9E3779B97F4A7C15), _SHORT: np.uint32(0x9E3779B1)}
_MOST_BITS = 24  # of a table: 16 MiB
Words = npt.NDArray[Any]


@dataclass(frozen=True)
class Needle:
    """Bytes that must not be found; `what` they are and of which document, for the report."""

    raw: bytes
    what: str
    document: str


@dataclass(frozen=True)
class Trace:
    """A needle that was found: in which file (relative to the store) and at which byte."""

    file: str
    offset: int
    what: str
    document: str


@dataclass(frozen=True)
class Scanned:
    """What a scan read, and what it found."""

    files: int
    bytes: int
    traces: tuple[Trace, ...]


Excuse = Callable[[Path, int, Needle, bytes, int], bool]  # file, offset, needle, block, position in the block


def scan(
    store: Path, files: Iterable[Path], needles: Sequence[Needle], excuse: Excuse, numbers: Collection[str] = ()
) -> Scanned:
    """Read every byte of `files`, which lie below `store`, and report up to 100 needles that are there.

    excuse tells whether a find belongs to something that is to stay. numbers: the folders of residuals and indexes.

    Raises: ComemError (1) for a file that cannot be read.
    """
    long = _Table([needle for needle in needles if len(needle.raw) >= _LONG], _LONG)
    short = _Table([needle for needle in needles if _SHORT <= len(needle.raw) < _LONG], _SHORT)
    traces, count, size = list[Trace](), 0, 0
    for path in files:
        relative = path.relative_to(store)
        tables = (long,) if relative.parts[0] in numbers else (long, short)
        count += 1
        for start, block, inner in _blocks(path):
            size += inner.stop - inner.start
            for table in tables:
                for at, needle in table.find(block, inner):
                    offset = start + at - inner.start
                    if len(traces) < MOST_TRACES and not excuse(path, offset, needle, block, at):
                        traces.append(Trace(relative.as_posix(), offset, needle.what, needle.document))
    return Scanned(count, size, tuple(traces))


def files_below(store: Path) -> Iterator[Path]:
    """Yield every regular file below `store`, by name; links are not followed."""
    for folder, names, files in os.walk(store):
        names.sort()
        for name in sorted(files):
            path = Path(folder, name)
            if stat.S_ISREG(path.lstat().st_mode):
                yield path


def _blocks(path: Path) -> Iterator[tuple[int, bytes, range]]:
    """Yield (offset, bytes, the part of them that this block answers for), the rest being margins."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            start = 0
            while True:
                before = min(start, MARGIN_BYTES)
                block = os.pread(fd, before + BLOCK_BYTES + MARGIN_BYTES, start - before)
                inner = range(before, min(before + BLOCK_BYTES, len(block)))
                if not inner:
                    return
                yield start, block, inner
                start += len(inner)
        finally:
            os.close(fd)
    except OSError as error:
        raise from_os_error(error) from error


class _Table:
    """Needles by their first `width` bytes (8 or 4)."""

    def __init__(self, needles: Sequence[Needle], width: int) -> None:
        self._width = width
        self._needles: dict[bytes, list[Needle]] = {}
        for needle in needles:
            self._needles.setdefault(needle.raw[:width], []).append(needle)
        self._known = np.sort(_words(b"".join(self._needles), width, 0))
        self._shift = width * 8 - min(_MOST_BITS, max(16, len(self._known).bit_length() + 7))
        self._seen = np.zeros(1 << (width * 8 - self._shift), dtype=np.bool_)
        self._seen[self._hash(self._known)] = True

    def find(self, block: bytes, inner: range) -> Iterator[tuple[int, Needle]]:
        """Yield the position of each needle that begins within `inner`."""
        if not self._needles:
            return
        for shift in range(self._width):
            words = _words(block, self._width, shift)
            maybe = np.flatnonzero(self._seen[self._hash(words)])
            found = np.searchsorted(self._known, words[maybe]) if len(maybe) else maybe
            found = maybe[self._known[np.minimum(found, len(self._known) - 1)] == words[maybe]]
            for at in (found * self._width + shift).tolist():
                for needle in self._needles[block[at : at + self._width]]:
                    if at in inner and block.startswith(needle.raw, at):
                        yield at, needle

    def _hash(self, words: Words) -> Words:
        hashed: Words = (words * _FACTORS[self._width]) >> words.dtype.type(self._shift)
        return hashed


def _words(raw: bytes, width: int, shift: int) -> Words:
    """View the `width` bytes at shift, shift + width, shift + 2 widths ... as numbers."""
    return np.frombuffer(raw, f"<u{width}", max(len(raw) - shift, 0) // width, shift)
