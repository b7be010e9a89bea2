"""Locks of a store: one writer at a time, and a lease that keeps a reader's shards on disk.

Both are flock locks, which the kernel frees when their process ends, however it ends: a lock file that a killed process
left is no lock. `writer.lock` holds "PID COMMAND" of the writer, for the message to a second one. Readers hold a shared
lock on the store directory itself, which writes nothing; bytes of dropped shards are unlinked only while there is none.
"""

from __future__ import annotations

import fcntl
import os
import shlex
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType

from comem_cli.errors import LockedError, from_os_error
from comem_cli.store import durable

LOCK_NAME = "writer.lock"
_MAX_HOLDER = 200  # bytes of "PID COMMAND" kept in the lock file
_TRIES, _TRY_SECONDS = 20, 0.005


class WriterLock:
    """Hold the store's writer lock from construction to `release`; `holder` is told to a second writer.

    Raises: LockedError (11) naming the holder, ComemError (1) where the file cannot be opened.
    """

    def __init__(self, store: Path, holder: str | None = None) -> None:
        path = store / LOCK_NAME
        try:
            flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
            self._fd = os.open(path, flags, durable.FILE_MODE)
        except OSError as error:
            durable.raise_os_error(error, store, 4096)
        try:
            self._take(store)
            command = holder or shlex.join([os.path.basename(sys.argv[0]), *sys.argv[1:]])
            os.ftruncate(self._fd, 0)
            os.pwrite(self._fd, f"{os.getpid()} {command}".encode(errors="surrogateescape")[:_MAX_HOLDER], 0)
        except OSError as error:
            os.close(self._fd)
            durable.raise_os_error(error, store, 4096)
        except LockedError:
            os.close(self._fd)
            raise

    def _take(self, store: Path) -> None:
        """Take the lock, or say who has it: a writer signs a moment after it took it, and one that ends gives it up."""
        found = ""
        for _ in range(_TRIES):
            try:
                fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                found = os.pread(self._fd, _MAX_HOLDER, 0).decode(errors="replace")
                pid = found.partition(" ")[0]
                if pid.isdigit() and _alive(int(pid)):
                    break
                time.sleep(_TRY_SECONDS)
        raise _locked(store, found)

    def release(self) -> None:
        """Free the lock; the file stays, empty, since removing it would race with the next writer."""
        os.ftruncate(self._fd, 0)
        os.close(self._fd)


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        pass  # another user's; or no pid at all, which no waiting mends
    return True


@contextmanager
def undone_on_error(undo: Callable[[], None]) -> Iterator[None]:
    """Call `undo` if the block fails; else what the block has opened stays open."""
    try:
        yield
    except BaseException:
        undo()
        raise


def _locked(store: Path, holder: str) -> LockedError:
    pid, _, command = holder.partition(" ")
    who = f"process {pid} ({command})" if pid.isdigit() else "another process"
    return LockedError(f"{store} is being written by {who}", "wait until it ends, then run the same command again")


class ReaderLease:
    """Keep every shard of the snapshot that is opened next on disk, from construction to `release`.

    Raises: ComemError (1) where the directory cannot be opened.
    """

    def __init__(self, store: Path) -> None:
        try:
            self._fd = os.open(store, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            fcntl.flock(self._fd, fcntl.LOCK_SH)
        except OSError as error:
            raise from_os_error(error) from error

    def release(self) -> None:
        """Allow dropped shards to be unlinked."""
        os.close(self._fd)


class NoReaders:
    """Try to keep readers out for a moment: `with NoReaders(store) as alone:` tells whether there is none."""

    def __init__(self, store: Path) -> None:
        self._fd = os.open(store, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    def __enter__(self) -> bool:
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._fd)
