"""Durable file operations: every write, fsync and rename of a store goes through here.

A file appears whole or not at all: write `NAME.tmp`, fsync it, rename it, fsync the directory. Directories are 0700 and
files 0600. A full disk raises NoSpaceError with the bytes needed and free; other failures raise ComemError. Each step
passes a named fault point before and after, so that a test can stop the process there.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable
from pathlib import Path
from typing import NoReturn

from comem_cli.errors import NoSpaceError, from_os_error

DIR_MODE = 0o700
FILE_MODE = 0o600
TMP_SUFFIX = ".tmp"


def fault_point(name: str) -> None:
    """Do nothing; tests replace this function to fail or kill the process at the step `name`."""


def free_bytes(path: Path) -> int:
    """Return the bytes that this user can still write on the file system of `path`."""
    stat = os.statvfs(path)
    return stat.f_bavail * stat.f_frsize


def no_space(path: Path, needed: int) -> NoSpaceError:
    """Build the error of a full disk: `needed` and free bytes at `path`."""
    free = free_bytes(path)
    return NoSpaceError(
        f"no space left at {path}: {needed:,} bytes needed, {free:,} free",
        f"free at least {max(needed - free, 1):,} bytes and run the same command again",
    )


def raise_os_error(error: OSError, where: Path, needed: int) -> NoReturn:
    """Raise NoSpaceError for a full disk or quota, else ComemError, from an OSError met in directory `where`."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        raise no_space(where, needed) from error
    raise from_os_error(error) from error


def make_dir(path: Path) -> None:
    """Create `path` (0700) unless it is there, and make its name durable.

    Raises: NoSpaceError (14), ComemError (1).
    """
    if path.is_dir():
        return
    try:
        fault_point("mkdir.before")
        path.mkdir(mode=DIR_MODE)
    except OSError as error:
        raise_os_error(error, path.parent, 4096)
    fault_point("mkdir.after")
    sync_dir(path.parent)


def sync_dir(path: Path) -> None:
    """Make the names in directory `path` durable.

    Raises: NoSpaceError (14), ComemError (1).
    """
    try:
        fault_point("dirsync.before")
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
    except OSError as error:
        raise_os_error(error, path, 4096)
    fault_point("dirsync.after")


def write_file(path: Path, parts: Iterable[bytes | bytearray], needed: int | None = None) -> None:
    """Write `parts` one after another as the file `path` (0600), whole or not at all.

    An older file at `path` is replaced. On failure the temporary file is removed, so that its bytes are free again.
    needed: their bytes, or an estimate, where the parts stream.

    Raises: NoSpaceError (14), ComemError (1).
    """
    tmp = path.with_name(path.name + TMP_SUFFIX)
    if needed is None:
        parts = list(parts)
        needed = sum(map(len, parts))
    try:
        _write_synced(tmp, parts)
        fault_point("rename.before")
        os.rename(tmp, path)
        fault_point("rename.after")
    except OSError as error:
        tmp.unlink(missing_ok=True)
        raise_os_error(error, path.parent, needed)
    sync_dir(path.parent)


def _write_synced(tmp: Path, parts: Iterable[bytes | bytearray]) -> None:
    """Write and fsync a temporary file, replacing what a killed writer left there."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
    fd = os.open(tmp, flags, FILE_MODE)
    try:
        for part in parts:
            fault_point("write.before")
            view = memoryview(part)
            while view:
                view = view[os.write(fd, view) :]
            fault_point("write.after")
        fault_point("fsync.before")
        os.fsync(fd)
        fault_point("fsync.after")
    finally:
        os.close(fd)
