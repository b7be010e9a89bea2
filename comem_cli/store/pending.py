"""What is being forgotten, kept durably until a scan has found nothing of it: STORE/forget.pending.

The file is written before the first document leaves the catalogue and removed after the last scan, so a killed `forget`
is finished by the next one. It holds what the scan looks for: until it is gone, so is nothing. One JSON line a
document, bytes in base64.
"""

from __future__ import annotations

import json
import os
import stat
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

from comem_cli.errors import CorruptStoreError, from_os_error
from comem_cli.store import durable, format
from comem_cli.store.row_layout import RowLayout
from comem_cli.store.rows import ChunkRow
from comem_cli.store.traces import Needle
from comem_cli.store.unshared import narrow, runs

PENDING_NAME = "forget.pending"
RESIDUAL = "residual rows"  # the one kind of needle that lies in shards
IDS_32, IDS_16 = "token ids, 32 bit", "token ids, 16 bit"
WINDOW = 32  # bytes of text that are looked for as one
_WINDOWS = 64  # a document, evenly spread
_ROW_BYTES = 64  # of a chunk's first and last row
_LEAST_DISTINCT = 8  # byte values: blanks and zeros are no trace of anybody


@dataclass(frozen=True)
class ForgottenChunk:
    """A chunk that no other document has: its key, token ids (uint32 LE), and bytes of its residual."""

    key: str
    ids: bytes
    residual: tuple[bytes, ...] = ()


@dataclass(frozen=True)
class Forgotten:
    """A document that is being forgotten, with windows of its text."""

    root: bytes
    path: bytes
    sha256: str
    text: tuple[bytes, ...] = ()
    chunks: tuple[ForgottenChunk, ...] = field(default=())

    @property
    def absolute(self) -> bytes:
        """Return the path of its source."""
        return os.path.join(self.root, self.path)

    @property
    def name(self) -> str:
        """Return the path relative to its root, for the report."""
        return os.fsdecode(self.path)

    def needles(self) -> Iterator[Needle]:
        """Yield what must not be found: path, digest, text, keys, runs of token ids and residual bytes."""
        yield Needle(self.path, "path", self.name)
        yield Needle(self.sha256.encode(), "digest of the source", self.name)
        for window in self.text:
            yield Needle(window, "text", self.name)
        for chunk in self.chunks:
            yield Needle(chunk.key.encode(), "chunk key", self.name)
            for rows in chunk.residual:
                yield Needle(rows, RESIDUAL, self.name)
            for run in runs(chunk.ids):
                yield Needle(run, IDS_32, self.name)
                short = narrow(run)
                if short:
                    yield Needle(short, IDS_16, self.name)


def load(store: Path) -> Iterator[Forgotten]:
    """Stream what an unfinished `forget` left; nothing where there is none.

    Raises: CorruptStoreError (13) for one that cannot be read or names no document, ComemError (1).
    """
    path = store / PENDING_NAME
    try:
        with path.open("rb") as lines:
            first = lines.readline()
            for line in chain((first,), lines):
                yield _decode(json.loads(line))
    except FileNotFoundError:
        return
    except OSError as error:
        raise from_os_error(error) from error
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise CorruptStoreError(f"{path} cannot be read: {error}", f"remove it, then: comem check {store}") from error


def save(store: Path, forgotten: Iterable[Forgotten], needed: int) -> None:
    """Write the intent durably, replacing an older one; `needed`: the bytes it may take, for the error.

    Raises: NoSpaceError (14), ComemError (1).
    """
    lines = (json.dumps(_encode(one), separators=(",", ":")).encode() + b"\n" for one in forgotten)
    durable.write_file(store / PENDING_NAME, lines, needed)


def room(documents: int, chunks: int, tokens: int) -> int:
    """Return the most bytes that so many documents take in the file: base64 makes 3 bytes 4."""
    windows = _WINDOWS * (WINDOW * 4 // 3 + 8)
    return documents * (windows + 8192) + chunks * 512 + tokens * 6


def exists(store: Path) -> bool:
    """Tell whether a `forget` is unfinished."""
    return (store / PENDING_NAME).exists()


def remove(store: Path) -> None:
    """Remove the intent: everything in it is gone.

    Raises: ComemError (1).
    """
    try:
        durable.fault_point("unlink.before")
        (store / PENDING_NAME).unlink(missing_ok=True)
    except OSError as error:
        raise from_os_error(error) from error
    durable.fault_point("unlink.after")
    durable.sync_dir(store)


def source_windows(path: bytes) -> tuple[bytes, ...]:
    """Return up to 64 windows of 32 bytes, evenly spread over a source file; none where it is not there any more."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return ()  # gone, or not ours to read: the ids are looked for all the same
    try:
        facts = os.fstat(fd)
        size = facts.st_size if stat.S_ISREG(facts.st_mode) else 0
        return _spread(size, lambda at: os.pread(fd, WINDOW, at))
    finally:
        os.close(fd)


def text_windows(text: bytes) -> tuple[bytes, ...]:
    """Return the same of a text in memory."""
    return _spread(len(text), lambda at: text[at : at + WINDOW])


def residual_windows(store: Path, chunk: ChunkRow, layout: RowLayout) -> tuple[bytes, ...]:
    """Return the first 64 bytes of a chunk's first row and the last 64 of its last; none where they cannot be read."""
    if chunk.shard is None or chunk.row is None:
        return ()
    row_bytes = layout.row_bytes
    block = format.block_bytes(layout)
    last = chunk.row + chunk.n_tokens - 1
    part = min(_ROW_BYTES, row_bytes)
    try:
        fd = format.open_shard(store, chunk.shard)
    except OSError:
        return ()  # a shard that is not there holds nothing
    try:
        found = [
            os.pread(fd, part, row // format.ROWS_PER_BLOCK * (block + format.CRC_BYTES) + at)
            for row, at in (
                (chunk.row, 0),
                (last, last % format.ROWS_PER_BLOCK * row_bytes + row_bytes - part),
            )
        ]
    finally:
        os.close(fd)
    return tuple(rows for rows in found if _telling(rows, part))


def _spread(size: int, read: Callable[[int], bytes]) -> tuple[bytes, ...]:
    step = max(WINDOW, size // _WINDOWS)
    found = (read(at) for at in range(0, size - WINDOW + 1, step))
    return tuple(dict.fromkeys(window for window in found if _telling(window, WINDOW)))


def _telling(raw: bytes, size: int) -> bool:
    return len(raw) == size and len(set(raw)) >= _LEAST_DISTINCT


def _encode(one: Forgotten) -> dict[str, Any]:
    return {
        "root": _to_text(one.root),
        "path": _to_text(one.path),
        "sha256": one.sha256,
        "text": [_to_text(window) for window in one.text],
        "chunks": [[chunk.key, _to_text(chunk.ids), *map(_to_text, chunk.residual)] for chunk in one.chunks],
    }


def _decode(line: dict[str, Any]) -> Forgotten:
    chunks = (ForgottenChunk(key, b64decode(ids), tuple(map(b64decode, rows))) for key, ids, *rows in line["chunks"])
    text = tuple(map(b64decode, line["text"]))
    return Forgotten(b64decode(line["root"]), b64decode(line["path"]), line["sha256"], text, tuple(chunks))


def _to_text(raw: bytes) -> str:
    return b64encode(raw).decode()
