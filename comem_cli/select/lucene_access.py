"""Reach Lucene: its classes, a folder as Lucene sees it, and what it throws as errors of comem.

Java starts on first use. Whoever calls Lucene does so within `reading` or `writing`, which hold `JAVA`.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from comem_cli.errors import ComemError, IndexStaleError, NoSpaceError
from comem_cli.select.jvm import JAVA, start_jvm


def lucene_classes() -> Any:
    """Return the declarations of Lucene's classes for searching, which can be imported only once Java runs."""
    start_jvm()
    return importlib.import_module("comem_cli.select.lucene")


def writing_classes() -> Any:
    """Return the declarations of the classes that write and check an index, which a search does without."""
    start_jvm()
    return importlib.import_module("comem_cli.select.lucene_writing")


def open_directory(path: Path) -> Any:
    """Open Lucene's view of a folder, without its lock file: the store has its own lock, and readers write nothing."""
    lucene = lucene_classes()
    return lucene.FSDirectory.open(lucene.File(os.fspath(path.absolute())).toPath(), lucene.NoLockFactory.INSTANCE)


def damaged(path: Path, reason: str) -> IndexStaleError:
    """Return the error that says that an index cannot be used any more."""
    return IndexStaleError(f"the BM25 index at {path} is damaged: {reason}", "comem index STORE")


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Hold Java, and turn whatever Lucene raises while it reads `path` into IndexStaleError (15)."""
    lucene = lucene_classes()
    try:
        with JAVA:
            yield
    except lucene.JavaException as error:
        raise damaged(path, _reason(error)) from error


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Hold Java, and turn what Lucene raises while it writes `path` into NoSpaceError (14) or ComemError (1)."""
    lucene = lucene_classes()
    try:
        with JAVA:
            yield
    except lucene.JavaException as error:
        reason = _reason(error)
        if "No space left" in reason or "Disk quota exceeded" in reason:
            raise NoSpaceError(
                f"no space left for the BM25 index {path}", "free some space: comem index STORE"
            ) from error
        raise ComemError(f"the BM25 index {path} was not written: {reason}", "comem index STORE") from error


def _reason(error: Any) -> str:
    """Return the Java class and the first line of its message."""
    message = (error.innermessage or "").partition("\n")[0]
    return f"{error.classname.rpartition('.')[2]}: {message}" if message else str(error.classname)
