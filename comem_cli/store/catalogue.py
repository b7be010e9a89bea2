"""The catalogue `catalog.sqlite`: what a store holds, and the sole commit point.

Writers use WAL with synchronous=FULL and secure_delete; readers open read-only, or immutable where nothing can be
written. Every row is checked against its digest when it is read, and for values that it cannot mean: CorruptStoreError
(13) names the table and the row. Views, triggers, and links out of the store are refused before anything is read.
Only the standard library is used, so that `comem stats` stays light.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

from comem_cli.errors import ComemError, CorruptStoreError, FingerprintError, LockedError, NoStoreError
from comem_cli.store import durable
from comem_cli.store.format import ARRAY_NAME, FORMAT_VERSION
from comem_cli.store.plausible import facts_flaw, row_flaw
from comem_cli.store.rows import SCHEMA, MetaRow, Row, Value, row_digest

CATALOGUE_NAME = "catalog.sqlite"
_BUSY_SECONDS = 10.0
_VARIABLES = 500  # values in one IN (...): below every SQLite build's limit
_MAX_VALUE = 2**26  # bytes of one value; the largest that comem writes are the ids of a chunk
_LINKABLE = (CATALOGUE_NAME, f"{CATALOGUE_NAME}-wal", f"{CATALOGUE_NAME}-shm", ARRAY_NAME, f"{ARRAY_NAME}/c", "index")
# A damaged schema puts undecodable bytes into SQLite's message, and sqlite3 then raises UnicodeDecodeError instead.
SQLITE_ERRORS = (sqlite3.Error, UnicodeDecodeError)
_CANNOT_WRITE = {
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_READONLY,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_PERM,
}

R = TypeVar("R", bound=Row)


class Catalogue:
    """One SQLite connection with typed, verified rows. Built by `open_writable` and `open_readable`."""

    def __init__(self, store: Path, connection: sqlite3.Connection) -> None:
        self.store = store
        self._connection = connection

    def close(self) -> None:
        """Close the connection; the last one of a store also folds the -wal file into the catalogue."""
        self._connection.close()

    def execute(self, sql: str, values: Sequence[Value] = ()) -> sqlite3.Cursor:
        """Run one statement.

        Raises: CorruptStoreError (13), NoSpaceError (14), LockedError (11), ComemError (1).
        """
        try:
            return self._connection.execute(sql, values)
        except SQLITE_ERRORS as error:
            raise self.translate(error) from error

    def rows(self, kind: type[R], where: str = "", values: Sequence[Value] = ()) -> Iterator[R]:
        """Stream the rows of a table, each checked against its digest; `where` may also order them.

        Raises: CorruptStoreError (13) naming table and row.
        """
        for found, flaw in self.scan(kind, where, values):
            if flaw:
                raise self.corrupt(f"catalogue table {kind.table}, {kind.columns()[0]} {found[0]!r}: {flaw}")
            yield kind(*found)

    def scan(
        self, kind: type[Row], where: str = "", values: Sequence[Value] = ()
    ) -> Iterator[tuple[tuple[Any, ...], str | None]]:
        """Stream the columns of a table's rows, each with what is wrong with it, None for a sound one.

        Raises: CorruptStoreError (13) where SQLite cannot go on.
        """
        columns = kind.columns()
        cursor = self.execute(f"SELECT {', '.join(columns)}, digest FROM {kind.table} {where}", values)
        while True:
            try:
                found = cursor.fetchone()
            except SQLITE_ERRORS as error:
                raise self.translate(error) from error
            if found is None:
                return
            row = found[:-1]
            sound = row_digest(kind.table, row) == found[-1]
            yield row, row_flaw(kind, row) if sound else "digest mismatch"

    def rows_in(self, kind: type[R], column: str, wanted: Iterable[Value], also: str = "") -> Iterator[R]:
        """Stream the rows whose `column` is one of `wanted`, in no order; `also` is a further condition."""
        for part in _parts(list(dict.fromkeys(wanted))):
            yield from self.rows(kind, f"WHERE {column} IN ({', '.join('?' * len(part))}) {also}", part)

    def has_tables(self) -> bool:
        """Tell whether the catalogue's first transaction was committed."""
        return self._first("SELECT 1 FROM sqlite_master WHERE name = 'meta'") is not None

    def require_plain_schema(self) -> None:
        """Refuse what a catalogue of comem never holds, and what could run for ever: views, triggers, virtual tables.

        Raises: CorruptStoreError (13).
        """
        odd = "type NOT IN ('table', 'index') OR sql LIKE 'CREATE VIRTUAL%'"
        found = self._first(f"SELECT type, name FROM sqlite_master WHERE {odd} LIMIT 1")
        if found:
            raise self.corrupt(f"the catalogue holds a {found[0]} {found[1]!r}, which comem never writes")

    def integers(self, sql: str, values: Sequence[Value] = ()) -> tuple[int, ...]:
        """Return the one row of integers that `sql` gives (NULL counts as 0)."""
        return tuple(int(value or 0) for value in self._first(sql, values) or ())

    def _first(self, sql: str, values: Sequence[Value] = ()) -> tuple[Any, ...] | None:
        cursor = self.execute(sql, values)
        try:
            row: tuple[Any, ...] | None = cursor.fetchone()
        except SQLITE_ERRORS as error:
            raise self.translate(error) from error
        return row

    def insert(self, row: Row) -> None:
        """Insert a row with its digest, replacing one of the same primary key in table meta."""
        verb = "INSERT OR REPLACE" if isinstance(row, MetaRow) else "INSERT"
        values = row.values()
        marks = ", ".join("?" * (len(values) + 1))
        self.execute(f"{verb} INTO {row.table} VALUES ({marks})", (*values, row.digest()))

    def delete_in(self, table: str, column: str, doomed: Iterable[Value]) -> None:
        """Delete the rows whose `column` is one of `doomed`."""
        for part in _parts(list(doomed)):
            self.execute(f"DELETE FROM {table} WHERE {column} IN ({', '.join('?' * len(part))})", part)

    def meta(self) -> dict[str, str]:
        """Read every named fact.

        Raises: FingerprintError (12) for a store of another format version, CorruptStoreError (13).
        """
        facts = {row.key: row.value for row in self.rows(MetaRow)}
        version = facts.get("format_version", "")
        if version.isdigit() and int(version) > FORMAT_VERSION:
            raise FingerprintError(
                f"{self.store} has store format {version}; this comem reads format {FORMAT_VERSION}",
                "pip install --upgrade comem",
            )
        missing = sorted(META_KEYS.difference(facts))
        if missing:
            raise self.corrupt(f"catalogue table meta lacks {', '.join(missing)}")
        flaw = facts_flaw(facts)
        if flaw:
            raise self.corrupt(f"catalogue table meta: {flaw}")
        return facts

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Make what the block does durable as a whole, or undo it. This COMMIT is the store's sole commit point."""
        self.execute("BEGIN IMMEDIATE")
        try:
            yield
            durable.fault_point("commit.before")
            self.execute("COMMIT")
        except BaseException:
            if self._connection.in_transaction:
                self._connection.rollback()
            raise
        durable.fault_point("commit.after")

    def checkpoint(self) -> bool:
        """Fold the -wal file into the catalogue and empty it: deleted token ids stay in it until then.

        Returns False where a reader's snapshot needs it: it is then left for a later writer.
        """
        self.execute("PRAGMA busy_timeout=0")  # do not wait for readers
        busy, *_ = self.integers("PRAGMA wal_checkpoint(TRUNCATE)")
        self.execute(f"PRAGMA busy_timeout={_BUSY_SECONDS * 1000:.0f}")
        return not busy

    def vacuum(self) -> None:
        """Write the catalogue anew from its rows, without free pages and the gaps inside pages.

        secure_delete clears deleted cells, but not the copies that SQLite leaves in a page's gap when it moves cells
        to a neighbour.

        Raises: NoSpaceError (14), CorruptStoreError (13), ComemError (1).
        """
        durable.fault_point("vacuum.before")
        self.execute("VACUUM")
        durable.fault_point("vacuum.after")

    def corrupt(self, what: str) -> CorruptStoreError:
        """Build the error for damage found in this store; `comem check` names all of it, and what mends it."""
        return CorruptStoreError(f"{self.store}: {what}", f"comem check {self.store}")

    def translate(self, error: Exception) -> ComemError:
        """Turn SQLite's error into comem's."""
        code = _primary_code(error)
        if code == sqlite3.SQLITE_FULL or (code == sqlite3.SQLITE_IOERR and durable.free_bytes(self.store) < 2**20):
            return durable.no_space(self.store, 2**20)
        if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            return LockedError(f"{self.store}: the catalogue is busy", "wait a moment and run the same command again")
        if code in _CANNOT_WRITE:
            return ComemError(f"{self.store}: the catalogue cannot be written: {error}", "check its permissions")
        return self.corrupt(f"the catalogue cannot be read: {error}")


META_KEYS = frozenset(
    (
        *("format_version", "store_id", "generation", "width", "capacity", "fingerprint", "recorded"),
        *("next_shard", "next_chunk", "next_document", "content", "index_name", "index_content"),
    )
)


def open_writable(store: Path) -> Catalogue | None:
    """Open the catalogue to write, under the writer lock; None if its tables were never committed.

    Raises: CorruptStoreError (13) where there are residuals but no catalogue.
    """
    _refuse_links(store)
    if (store / CATALOGUE_NAME).is_file():
        catalogue = _connect_writable(store)
        if catalogue.has_tables():
            return _plain(catalogue)
        catalogue.close()
    _refuse_lost_catalogue(store)
    return None


def create(store: Path, facts: dict[str, str]) -> Catalogue:
    """Create the catalogue of generation 0, whole or not at all; `facts` holds every meta key.

    Raises: NoSpaceError (14), ComemError (1).
    """
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        os.close(os.open(store / CATALOGUE_NAME, flags, durable.FILE_MODE))
    except OSError as error:
        durable.raise_os_error(error, store, 4096)
    catalogue = _connect_writable(store)
    try:
        with catalogue.transaction():
            for statement in SCHEMA.split(";\n"):
                catalogue.execute(statement)
            for key, value in facts.items():
                catalogue.insert(MetaRow(key, value))
    except BaseException:
        catalogue.close()
        raise
    return catalogue


def open_readable(store: Path) -> Catalogue:
    """Open the catalogue and begin a read transaction: a snapshot for the connection's whole life.

    Where SQLite cannot write its -shm file (read-only mount, full disk), the catalogue is opened immutable, provided
    that no -wal file holds commits.

    Raises: NoStoreError (10), CorruptStoreError (13), ComemError (1).
    """
    _refuse_links(store)
    if not (store / CATALOGUE_NAME).is_file():
        _refuse_lost_catalogue(store)
        raise _no_store(store)
    try:
        catalogue = _connect_readable(store, "mode=ro")
    except SQLITE_ERRORS as error:
        catalogue = _open_immutable(store, error)
    if not catalogue.has_tables():
        catalogue.close()
        _refuse_lost_catalogue(store)
        raise _no_store(store)
    return _plain(catalogue)


def _plain(catalogue: Catalogue) -> Catalogue:
    try:
        catalogue.require_plain_schema()
    except BaseException:
        catalogue.close()
        raise
    return catalogue


def _refuse_links(store: Path) -> None:
    """Refuse a store with parts that lie elsewhere: sweeping or writing there would touch what is not the store's."""
    for name in _LINKABLE:
        if (store / name).is_symlink():
            raise CorruptStoreError(f"{store / name} is a symbolic link, not a part of the store", _write_again(store))


def _open_immutable(store: Path, error: Exception) -> Catalogue:
    if _primary_code(error) not in _CANNOT_WRITE:
        reason = CorruptStoreError(f"{store}: the catalogue cannot be read: {error}", _write_again(store))
        raise reason from error
    wal = store / f"{CATALOGUE_NAME}-wal"
    if wal.exists() and wal.stat().st_size:
        raise ComemError(
            f"{store} cannot be written, and {wal.name} holds commits that are not folded in yet",
            f"free some space or make it writable, then run: comem index {store}",
        ) from error
    try:
        return _connect_readable(store, "immutable=1")
    except SQLITE_ERRORS as second:
        reason = CorruptStoreError(f"{store}: the catalogue cannot be read: {second}", _write_again(store))
        raise reason from second


def _write_again(store: Path) -> str:
    """Name the way out of a damaged catalogue: there is nothing beside it to mend it from."""
    return f"restore {store} from a copy, or write another one: comem ingest PATH --store DIR"


def _connect_readable(store: Path, options: str) -> Catalogue:
    connection = _connect(store, options)
    try:
        connection.execute("BEGIN")
        connection.execute("SELECT COUNT(*) FROM sqlite_master").fetchone()  # the first read takes the snapshot
    except SQLITE_ERRORS:
        connection.close()
        raise
    return Catalogue(store, connection)


def _connect(store: Path, options: str) -> sqlite3.Connection:
    connection = sqlite3.connect(_uri(store, options), uri=True, isolation_level=None, timeout=_BUSY_SECONDS)
    connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _MAX_VALUE)
    connection.text_factory = _text
    return connection


def _text(raw: bytes) -> str:
    return raw.decode(errors="surrogateescape")  # damage shows in the row's digest, and the rows after it are read


def _connect_writable(store: Path) -> Catalogue:
    connection = _connect(store, "mode=rw")
    catalogue = Catalogue(store, connection)
    try:
        for pragma in ("journal_mode=WAL", "synchronous=FULL", "secure_delete=ON", "foreign_keys=ON"):
            catalogue.execute(f"PRAGMA {pragma}")
    except ComemError:
        connection.close()
        raise
    return catalogue


def _refuse_lost_catalogue(store: Path) -> None:
    """Refuse a store whose residuals are there but whose catalogue is gone: sweeping it would delete them all."""
    if any((store / ARRAY_NAME / "c").glob("*")):
        raise CorruptStoreError(f"{store}: {CATALOGUE_NAME} is missing or empty", _write_again(store))


def _no_store(store: Path) -> NoStoreError:
    return NoStoreError(f"no store at {store}", f"comem ingest PATH --store {store}")


def _uri(store: Path, options: str) -> str:
    return f"file:{quote(os.fsencode(store.absolute() / CATALOGUE_NAME))}?{options}"


def _primary_code(error: Exception) -> int:
    """Return SQLite's primary result code, 0 where Python raised the error by itself."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF


def _parts(values: list[Value]) -> Iterator[list[Value]]:
    for start in range(0, len(values), _VARIABLES):
        yield values[start : start + _VARIABLES]
