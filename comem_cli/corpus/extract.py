"""Read one source file safely and turn it into text.

A file is opened without following symlinks at any step below its root and without waiting (a FIFO cannot hang
it), read whole up to a limit, and trusted only if it did not change meanwhile. Nothing in the text is altered:
line ends stay as they are. A line ends after "\\n", "\\r\\n" or a lone "\\r", and nowhere else.
"""

from __future__ import annotations

import errno
import hashlib
import os
import stat
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from comem_cli.corpus.decode import NotText, byte_offsets, decode
from comem_cli.corpus.markup import html_text, is_html, too_nested
from comem_cli.corpus.walk import Skip, SourceFile

MAX_BYTES = 64 << 20
_CLOSED = os.O_NOFOLLOW | os.O_CLOEXEC
_SEARCH = getattr(os, "O_PATH", os.O_RDONLY)  # a folder may be searchable but not readable


@dataclass(frozen=True, slots=True)
class Extracted:
    """Hold the text of one file and what was read.

    encoding: codec of the source file, without its mark (UTF-16 with a mark is utf-16-le or utf-16-be).
    kind: for "text", byte positions and lines are those of the source file in its own encoding, a byte-order
        mark counted in; for "html", they are those of the extracted text in UTF-8.
    sha256, size, mtime_ns: of the raw bytes, as read (hexadecimal, bytes, ns).
    """

    text: str = field(repr=False)
    encoding: str
    kind: Literal["text", "html"]
    sha256: str
    size: int
    mtime_ns: int
    bom: int = 0

    def byte_offsets(self, positions: Sequence[int]) -> list[int]:
        """Map ascending character positions (0 to len(text)) to byte positions; one pass at C speed."""
        if self.kind == "html":
            return byte_offsets(self.text, "utf-8", 0, list(positions))
        return byte_offsets(self.text, self.encoding, self.bom, list(positions))

    def line_numbers(self, positions: Sequence[int]) -> list[int]:
        """Give the 1-based line of each of the ascending character positions; one pass at C speed."""
        numbers, line, previous = [], 1, 0
        for position in positions:
            line += _line_ends(self.text, previous, position)
            previous = position
            numbers.append(line)
        return numbers


@dataclass(frozen=True, slots=True)
class _Snapshot:
    raw: bytes
    mtime_ns: int


def extract(source: SourceFile, *, max_bytes: int = MAX_BYTES) -> Extracted | Skip:
    """Read and decode `source`, or say why not.

    Reasons of a Skip: too-large, changed-while-read, vanished, unreadable, undecodable, too-nested (HTML) and
    symlink (it became one) with failed=True; binary, empty and special-file with failed=False.
    """
    read = _read(source, max_bytes)
    if isinstance(read, Skip) and read.reason == "changed-while-read":
        read = _read(source, max_bytes)
    if isinstance(read, Skip):
        return read
    decoded = decode(read.raw)
    if isinstance(decoded, NotText):
        return _skip(source, decoded.reason, decoded.detail, failed=decoded.reason == "undecodable")
    text, kind = decoded.text, "text"
    if is_html(source.path, text):
        if too_nested(text):
            return _skip(source, "too-nested", "tags nested too deep to parse")
        text, kind = html_text(text), "html"
    if not text or text.isspace():
        return _skip(source, "empty", "no text", failed=False)
    sha256 = hashlib.sha256(read.raw).hexdigest()
    if kind == "html":
        return Extracted(text, decoded.encoding, "html", sha256, len(read.raw), read.mtime_ns)
    return Extracted(text, decoded.encoding, "text", sha256, len(read.raw), read.mtime_ns, decoded.bom)


def _read(source: SourceFile, max_bytes: int) -> _Snapshot | Skip:
    try:
        fd = _open_beneath(source.root, source.path)
        before = os.fstat(fd)
        if not stat.S_ISREG(before.st_mode):
            os.close(fd)
            return _skip(source, "special-file", "a FIFO, socket, device or folder", failed=False)
        with open(fd, "rb") as file:
            if before.st_size > max_bytes:
                return _skip(source, "too-large", f"{before.st_size} bytes, limit {max_bytes}")
            raw = file.read(before.st_size + 1)
            after = os.fstat(fd)
    except OSError as error:
        return _skip(source, _reason(error), (error.strerror or str(error)).lower())
    same = (before.st_size, before.st_mtime_ns) == (after.st_size, after.st_mtime_ns)
    if not same or len(raw) != before.st_size:
        return _skip(source, "changed-while-read", "it was written to during both reads")
    return _Snapshot(raw, after.st_mtime_ns)


def _open_beneath(root: Path, path: str) -> int:
    """Open `path` one component at a time, so that no folder swapped for a symlink leads out of the root."""
    *folders, name = path.split("/")
    at = os.open(root, _SEARCH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for folder in folders:
            inner = os.open(folder, _SEARCH | os.O_DIRECTORY | _CLOSED, dir_fd=at)
            os.close(at)
            at = inner
        return os.open(name, os.O_RDONLY | os.O_NONBLOCK | _CLOSED, dir_fd=at)
    finally:
        os.close(at)


def _reason(error: OSError) -> str:
    if error.errno in (errno.ENOENT, errno.ENOTDIR):
        return "vanished"
    if error.errno == errno.ELOOP:
        return "symlink"
    # Opening a socket or a device without a driver gives ENXIO; it took the file's place since the walk.
    return "special-file" if error.errno == errno.ENXIO else "unreadable"


def _skip(source: SourceFile, reason: str, detail: str, *, failed: bool = True) -> Skip:
    return Skip(source.path, reason, detail, failed, source.root)


def _line_ends(text: str, start: int, stop: int) -> int:
    """Count the line ends whose last character lies in text[start:stop]."""
    # A "\r" is no line end if "\n" follows it, be it at `stop`.
    return text.count("\n", start, stop) + text.count("\r", start, stop) - text.count("\r\n", start, stop + 1)
