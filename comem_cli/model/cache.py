"""The user's cache: converted models, converted tokenizers and remembered file digests.

It lies at $COMEM_CACHE, else where the system keeps caches (`platformdirs`). Everything in it can be deleted: it is
made again when it is needed. A directory in it is built aside, flushed and renamed under a lock, so whoever sees it
sees it whole. Imports neither torch nor numpy.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

Progress = Callable[[str, int, int], None]
"""Hear `(stage, done, total)`; total is 0 where it is not known."""


def no_progress(stage: str, done: int, total: int) -> None:
    """Ignore progress."""


def cache_directory() -> Path:
    """Return the root of the cache: $COMEM_CACHE, else the system's cache directory for comem; it may not exist yet."""
    chosen = os.environ.get("COMEM_CACHE")
    if chosen:
        return Path(chosen).expanduser()
    from platformdirs import user_cache_path

    return user_cache_path("comem")


def file_sha256(path: Path) -> str:
    """Hash a file: sha256 of its bytes, in hex.

    The digest is remembered under path, size, inode, mtime and ctime, so that gigabytes are hashed once; any change of
    the file changes one of these and the file is hashed again. Raises OSError when the file cannot be read.
    """
    path = path.resolve()
    seen = path.stat()
    stamp = [str(path), seen.st_size, seen.st_ino, seen.st_mtime_ns, seen.st_ctime_ns]
    record = cache_directory() / "digests" / f"{hashlib.sha256(os.fsencode(path)).hexdigest()[:32]}.json"
    remembered = _read_record(record)
    if remembered.get("stamp") == stamp and isinstance(remembered.get("sha256"), str):
        return str(remembered["sha256"])
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    # Not being able to remember (a read-only home) costs time only.
    with contextlib.suppress(OSError):
        _write_record(record, {"stamp": stamp, "sha256": digest})
    return digest


def build_once(target: Path, build: Callable[[Path], None], waiting: Callable[[], None]) -> Path:
    """Return the directory `target`, built by `build(empty directory)` where it is not there yet.

    Of several processes one builds while the others wait: each of them hears `waiting()` once, and then finds the
    directory. What an interrupted process left behind is removed first. Raises whatever `build` raises.
    """
    if target.is_dir():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with _exclusive(target.parent / f".{target.name}.lock", waiting):
        if target.is_dir():
            return target
        part = target.parent / f".{target.name}.part"
        if part.exists():
            shutil.rmtree(part)
        part.mkdir(mode=0o700)
        try:
            build(part)
            _flush(part)
            part.rename(target)
            _sync(target.parent)
        finally:
            shutil.rmtree(part, ignore_errors=True)  # gone already after a rename
    return target


@contextlib.contextmanager
def _exclusive(lock: Path, waiting: Callable[[], None]) -> Iterator[None]:
    with lock.open("w") as file:  # closing it, or dying, frees the lock
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            waiting()
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _flush(directory: Path) -> None:
    for path in directory.iterdir():
        _sync(path)
    _sync(directory)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _read_record(record: Path) -> dict[str, object]:
    """Read a remembered digest; a missing or damaged record is no record."""
    try:
        found = json.loads(record.read_bytes())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _write_record(record: Path, content: dict[str, object]) -> None:
    record.parent.mkdir(parents=True, exist_ok=True)
    aside = record.with_name(f"{record.name}.{os.getpid()}")
    aside.write_text(json.dumps(content), encoding="utf-8")
    aside.replace(record)
