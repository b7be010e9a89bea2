"""Rows 16 and 21: stores that came from elsewhere, with valid digests over absurd values; golden and newer stores."""

from __future__ import annotations

import json
import resource
import shutil
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path

from comem_cli.errors import ComemError
from comem_cli.store.check import CheckOptions, check_store
from comem_cli.store.format import FORMAT_VERSION
from comem_cli.store.mend import MendingWriter
from comem_cli.store.reader import StoreReader
from comem_cli.store.rows import ROW_TYPES, row_digest
from comem_cli.store.writer import StoreWriter
from tests.commands.cli import residuals
from tests.faults import jobs
from tests.faults.case import Outcome, Prepared, Row, must, numbered
from tests.faults.child import in_child
from tests.store import faults_on_disk as faults

SECONDS, MEBIBYTES = 1.0, 200
GOLDEN = Path(__file__).parents[2] / "stores" / "golden"


def forge(store: Path, table: str, column: str, value: object, at: int = 0) -> str:
    """Set a column of the `at`-th row and sign the row, as an attacker would."""
    connection = sqlite3.connect(store / "catalog.sqlite")
    names = [row[1] for row in connection.execute(f"PRAGMA table_info({table})")][:-1]
    rows = connection.execute(f"SELECT {', '.join(names)} FROM {table}").fetchall()
    old = dict(zip(names, rows[at % len(rows)], strict=True))
    where = " AND ".join(f"{name} IS ?" for name in names)
    try:
        digest = row_digest(table, {**old, column: value}.values())  # type: ignore[arg-type,type-var]
        connection.execute(f"UPDATE {table} SET {column} = ?, digest = ? WHERE {where}", (value, digest, *old.values()))
        connection.commit()
    except (sqlite3.IntegrityError, OverflowError) as error:
        return f"not possible: {error}"
    finally:
        connection.close()
    return f"{table}.{column} = {str(value)[:60]!r}"


def _fact(key: str, value: str) -> Callable[[Path], object]:
    sql = "UPDATE meta SET value = ?, digest = ? WHERE key = ?"
    return lambda store: faults.execute(store, sql, (value, row_digest("meta", (key, value)), key))


def _terabyte(store: Path) -> None:
    with (store / "residuals/c/0/0").open("r+b") as file:
        file.truncate(2**40)
    forge(store, "shard", "bytes", 2**40)
    forge(store, "shard", "blocks", 2**31)


def _codec(store: Path) -> None:
    path = store / "residuals/zarr.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "shape": [10**18, 16], "codecs": [{"name": "evil"}]}))


def _endless(store: Path) -> None:
    faults.execute(store, "ALTER TABLE meta RENAME TO other")
    rows = (
        "WITH RECURSIVE n(x) AS (SELECT 'k' UNION ALL SELECT x FROM n) SELECT x AS key, x AS value, x AS digest FROM n"
    )
    faults.execute(store, f"CREATE VIEW meta AS {rows}")


TRAPS: dict[str, Callable[[Path], object]] = {
    "huge-width": _fact("width", "1000000000000"),
    "huge-shard": _terabyte,
    "unknown-codec": _codec,
    "path-out": lambda store: forge(store, "document", "path", b"../../../etc/passwd"),
    "index-out": _fact("index_name", "../../up"),
    "huge-value": lambda store: faults.execute(store, f"UPDATE chunk SET ids = zeroblob({2**27}) WHERE id = 1"),
    "endless-view": _endless,
    "deep-json": _fact("fingerprint", "[" * 100_000),
}
VALUES = (
    0,
    -1,
    2**31,
    2**52,
    2**63 - 1,
    1.5,
    None,
    "",
    "../../up",
    "x" * 10**5,
    b"",
    b"/etc/passwd",
    b"\0" * 99,
    "9" * 5000,
)


def _cases(prepared: Prepared) -> list[str]:
    return [*TRAPS, *numbered("fuzzed", 3000 if prepared.full else 40)]


def run(prepared: Prepared, case: str, folder: Path) -> Outcome:
    """Open a forged store in every way: refused with 13 within a second and 200 MiB, or read as it was."""
    store = Path(shutil.copytree(prepared.folder / "before", folder / "store"))
    if case in TRAPS:
        what = TRAPS[case](store)
    else:
        rng = prepared.rng(16, case)
        kind = rng.choice(ROW_TYPES)
        value = rng.choice([*VALUES, rng.randrange(2**62), rng.randbytes(rng.randrange(99)), rng.random()])
        what = forge(store, kind.table, rng.choice(kind.columns()), value, rng.randrange(99))
    held = jobs.read_state(prepared.folder / "before")
    return in_child(lambda: _open_in_every_way(store, folder, case, str(what), held))


def _open_in_every_way(store: Path, folder: Path, case: str, what: str, held: object) -> Outcome:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    beside = sorted(path for path in folder.rglob("*") if store not in path.parents)
    uses: tuple[Callable[[Path], object], ...] = (
        jobs.read_state,
        lambda path: check_store(path, CheckOptions(read_data=True), jobs.no_index_check).damage,
        lambda path: StoreWriter.open(path).close(),
        lambda path: MendingWriter.open(path).close(),
    )
    codes = []
    for use in uses:
        begin = time.process_time()
        try:
            found = use(store)
            if use is uses[0]:
                must(case not in TRAPS or found == held, f"{what}: reads something else")
            codes.append(13 if use is uses[1] and found else 0)
        except ComemError as error:
            must(error.exit_code in (10, 12, 13), f"{what}: exit code {error.exit_code}, {error.message[:300]}")
            must("\n" not in error.message, f"{what}: more than a line")
            codes.append(error.exit_code)
        must(time.process_time() - begin < SECONDS, f"{what}: {time.process_time() - begin:.1f} s")
    taken = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024
    must(taken < MEBIBYTES, f"{what}: {taken} MiB")
    must(sorted(path for path in folder.rglob("*") if store not in path.parents) == beside, f"{what}: wrote elsewhere")
    if case in TRAPS:
        must(codes[1] in (12, 13), f"{what}: check says {codes[1]}")
    return Outcome(True, f"{what}: {codes}, {taken} MiB")


def _golden(prepared: Prepared) -> list[str]:
    return [f"{path.name}:{what}" for path in sorted(GOLDEN.iterdir()) for what in ("open", "newer")]


def run_golden(prepared: Prepared, case: str, folder: Path) -> Outcome:
    """Open a store that another version wrote: whole, or refused by number where it is newer."""
    name, _, what = case.partition(":")
    store = Path(shutil.copytree(GOLDEN / name, folder / "store"))
    if what == "open":
        from comem_cli.select.check_index import check_store_index

        report = check_store(store, CheckOptions(read_data=True), check_store_index)
        must(not report.findings, f"check finds {report.findings}")
        must(residuals(store), "it holds nothing")
        StoreWriter.open(store).close()
        return Outcome(True, f"{report.chunks} chunks")
    _fact("format_version", str(FORMAT_VERSION + 1))(store)
    for use in (StoreReader, StoreWriter.open, MendingWriter.open):
        try:
            use(store)  # type: ignore[operator]
        except ComemError as error:
            said = f"format {FORMAT_VERSION + 1}; this comem reads format {FORMAT_VERSION}"
            must(error.exit_code == 12 and said in error.message, error.message)
        else:
            must(False, "a newer format was opened")
    return Outcome(True, "refused by number")


ROWS = (
    Row(16, "hostile stores", _cases, run, ("jobs",), 10),
    Row(21, "golden stores, and a newer format", _golden, run_golden),
)
