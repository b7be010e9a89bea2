"""What a power cut would lose: the files and names that were written and not flushed, as the system calls tell.

A shim around `os` records, below one store, which files were written since their last fsync, which names were made,
moved or replaced since the last fsync of their folder, and how long SQLite's -wal was at the last COMMIT (SQLite
flushes it there; its -shm is memory). `lose` then damages exactly that in one of the six ways that Lucene's tests use:
deleted, zeroed, halved, unchanged, one bit flipped, emptied.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

WAYS = ("deleted", "zeroed", "halved", "unchanged", "flipped", "emptied")


@dataclass
class Unsynced:
    """Watches one store in this process."""

    store: Path
    dirty: set[str] = field(default_factory=set)  # files whose bytes may be lost
    names: dict[str, bytes | None] = field(default_factory=dict)  # path whose name may be lost -> what was there before
    wal: int = 0  # bytes of the -wal that are flushed

    def __post_init__(self) -> None:
        self.passed("commit.after")

    def passed(self, point: str) -> None:
        """Take note of a COMMIT."""
        if point == "commit.after":
            self.wal = self._wal_size()
            for name in filter(_of_sqlite, list(self.names)):  # the first flush of a -wal flushes its folder too
                del self.names[name]

    def kinds(self) -> Iterator[str]:
        """Yield what kinds of file could lose something now."""
        for path in self.dirty | self.names.keys():
            if os.path.exists(path):
                yield _kind(os.path.relpath(path, self.store))
        if self._wal_size() > self.wal:
            yield "wal"

    def _wal_size(self) -> int:
        try:
            return os.stat(self.store / "catalog.sqlite-wal").st_size
        except OSError:
            return 0

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Record what the block does."""
        real = {name: getattr(os, name) for name in ("write", "fsync", "rename", "mkdir", "open")}
        try:
            for name, call in real.items():
                setattr(os, name, getattr(self, f"_{name}")(call))
            yield
        finally:
            for name, call in real.items():
                setattr(os, name, call)

    def _below(self, path: Any) -> str:
        full = os.path.abspath(os.fsdecode(path))
        return full if full.startswith(f"{self.store}/") else ""

    def _open(self, real: Callable[..., int]) -> Callable[..., int]:
        def call(path: Any, flags: int, *args: Any, **kwargs: Any) -> int:
            full = "" if kwargs.get("dir_fd") is not None else self._below(path)
            new = bool(full) and flags & os.O_CREAT and not os.path.exists(full)
            fd = real(path, flags, *args, **kwargs)
            if new:
                self.names[full] = None
                if not _of_sqlite(full):
                    self.dirty.add(full)
            return fd

        return call

    def _write(self, real: Callable[..., int]) -> Callable[..., int]:
        def call(fd: int, data: Any) -> int:
            full = self._below(os.readlink(f"/proc/self/fd/{fd}"))
            if full:
                self.dirty.add(full)
            return real(fd, data)

        return call

    def _fsync(self, real: Callable[..., None]) -> Callable[..., None]:
        def call(fd: int) -> None:
            real(fd)
            path = os.path.abspath(os.readlink(f"/proc/self/fd/{fd}"))
            self.dirty.discard(path)
            for name in [name for name in self.names if os.path.dirname(name) == path]:
                del self.names[name]

        return call

    def _rename(self, real: Callable[..., None]) -> Callable[..., None]:
        def call(source: Any, target: Any, **kwargs: Any) -> None:
            old, new = self._below(source), self._below(target)
            before = Path(new).read_bytes() if new and os.path.isfile(new) else None
            real(source, target, **kwargs)
            self.names.pop(old, None)
            self.names[new] = before
            if old in self.dirty:
                self.dirty.discard(old)
                self.dirty.add(new)

        return call

    def _mkdir(self, real: Callable[..., None]) -> Callable[..., None]:
        def call(path: Any, *args: Any, **kwargs: Any) -> None:
            real(path, *args, **kwargs)
            if self._below(path):
                self.names[self._below(path)] = None

        return call

    def lost(self) -> tuple[list[str], dict[str, bytes | None], int]:
        """Return what `lose` needs, for another process."""
        return sorted(self.dirty), self.names, self.wal


def _of_sqlite(path: str) -> bool:
    return os.path.basename(path).startswith("catalog.sqlite")


def _kind(name: str) -> str:
    parts = ["N" if part.isdigit() else part for part in name.split("/")]
    if parts[0] == "index":
        return "index folder" if len(parts) < 3 else "index file"
    return "/".join(parts)


def lose(store: Path, lost: tuple[list[str], dict[str, bytes | None], int], way: str, rng: random.Random) -> list[str]:
    """Do to everything unflushed what a power cut may do, in one way; return what was touched."""
    dirty, names, wal = lost
    touched = []
    for path in sorted(map(Path, {*dirty, *names}), reverse=True):  # what is in a folder before the folder
        if not path.exists():
            continue
        touched.append(str(path.relative_to(store)))
        if path.is_dir():
            if way == "deleted" and not any(path.iterdir()):
                path.rmdir()
        elif str(path) in dirty:
            _damage(path, 0, way, rng)
        elif way == "deleted":  # flushed, but its name is not: the old file is there again, or none
            old = names[str(path)]
            path.unlink()
            if old is not None:
                path.write_bytes(old)
    log = store / "catalog.sqlite-wal"
    (store / "catalog.sqlite-shm").unlink(missing_ok=True)
    if log.exists() and log.stat().st_size > wal:
        touched.append(f"{log.name} from {wal}")
        if way == "deleted" and wal == 0:
            log.unlink()
        else:
            _damage(log, wal, "emptied" if way == "deleted" else way, rng)
    return touched


def _damage(path: Path, start: int, way: str, rng: random.Random) -> None:
    raw = path.read_bytes()
    tail = bytearray(raw[start:])
    if way == "deleted":
        path.unlink()
        return
    if way == "zeroed":
        tail = bytearray(len(tail))
    elif way == "halved":
        tail = tail[: len(tail) // 2]
    elif way == "emptied":
        tail = bytearray()
    elif way == "flipped" and tail:
        tail[rng.randrange(len(tail))] ^= 1 << rng.randrange(8)
    path.write_bytes(raw[:start] + tail)
