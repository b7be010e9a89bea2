"""Every error that comem raises on purpose, with its exit code and the next step to take.

ComemError (1)
├── UsageError (2)               bad argument, path or range
├── PartialError (3)             some sources could not be read; the rest is stored
├── NoEvidenceError (4)          no chunk shares a term with the question
├── NoStoreError (10)            no store at that path
├── LockedError (11)             another process writes this store
├── FingerprintError (12)        store, model or adapter do not belong together
├── CorruptStoreError (13)       stored bytes do not match the catalogue
├── NoSpaceError (14)            the disk is full
├── IndexStaleError (15)         BM25 index missing or older than the store
├── StaleSourcesError (16)       sources newer than the store (`--fail-stale`)
└── ModelError (1)               the model is not there or cannot be run

130 and 143 stand for SIGINT and SIGTERM. A message is one line; `hint` names the exact next command.
This module imports nothing heavy: it is on the path of `comem --help`.
"""

from __future__ import annotations

import errno


class ComemError(Exception):
    """Report a failure in one line, with a hint that names the next command."""

    exit_code = 1

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class UsageError(ComemError):
    """Reject an argument, a path or a range."""

    exit_code = 2


class PartialError(ComemError):
    """Say that some sources could not be read although the command did the rest."""

    exit_code = 3


class NoEvidenceError(ComemError):
    """Say that no chunk shares a term with the question."""

    exit_code = 4


class NoStoreError(ComemError):
    """Say that there is no store at a path."""

    exit_code = 10


class LockedError(ComemError):
    """Say that another process is writing the store."""

    exit_code = 11


class FingerprintError(ComemError):
    """Refuse a model, tokenizer, split or adapter that did not write the store."""

    exit_code = 12


class CorruptStoreError(ComemError):
    """Refuse bytes that do not match the catalogue."""

    exit_code = 13


class NoSpaceError(ComemError):
    """Say that the disk is full, with the bytes needed and the bytes free."""

    exit_code = 14


class IndexStaleError(ComemError):
    """Say that the BM25 index is missing or does not match the store."""

    exit_code = 15


class StaleSourcesError(ComemError):
    """Say that a cited source changed after it was ingested."""

    exit_code = 16


class ModelError(ComemError):
    """Say that a model is not there or cannot be run."""


def from_os_error(error: OSError) -> ComemError:
    """Turn an operating-system error into the comem error that users can act on."""
    where = f": {error.filename}" if error.filename else ""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return NoSpaceError(f"no space left on the disk{where}", "free some space and run the same command again")
    reason = error.strerror or type(error).__name__
    return ComemError(f"{reason[:1].lower()}{reason[1:]}{where}", "check the path and its permissions")
