"""Rows 6, 7, 8 and 22: damage to the bytes of a store at rest is found, named, and, where it can be, mended."""

from __future__ import annotations

import itertools
import json
import shutil
from pathlib import Path

from comem_cli.errors import ComemError
from comem_cli.select.check_index import check_store_index
from comem_cli.select.store_repair import store_repair
from comem_cli.store import format
from comem_cli.store.check import CheckOptions, Report, check_store
from comem_cli.store.reader import StoreReader
from tests.faults import jobs
from tests.faults.bases import place
from tests.faults.case import Outcome, Prepared, Row, must, numbered
from tests.store import faults_on_disk as faults

DEEP = CheckOptions(read_data=True)
REFUSED = (10, 12, 13)  # exit codes of a store that says it cannot be used


def _copy(prepared: Prepared, folder: Path) -> Path:
    return Path(shutil.copytree(prepared.folder / "indexed", folder / "store"))


def _found(store: Path) -> tuple[str, ...]:
    """Return the codes of the damage that `check --read-data` names; ("refused",) where the store cannot be opened."""
    try:
        report = check_store(store, DEEP, check_store_index)
    except ComemError as error:
        must(error.exit_code in REFUSED, f"check ended with {error.exit_code}: {error.message}")
        return ("refused",)
    return tuple(finding.code for finding in report.findings)


def _read(prepared: Prepared, store: Path) -> str:
    """Read everything: it is what it was, or the reader refuses; anything else is a silent lie."""
    try:
        found = jobs.read_state(store)
    except ComemError as error:
        must(error.exit_code in REFUSED, f"reading ended with {error.exit_code}: {error.message}")
        return "refused"
    if found == (-1, {}):
        return "refused"
    must(found == prepared.kept["indexed"], f"reads {jobs.difference(found[1], prepared.kept['indexed'][1])}")  # type: ignore[index]
    return "equal"


def _judge(prepared: Prepared, store: Path, what: str, *, harmless: bool) -> Outcome:
    codes, read = _found(store), _read(prepared, store)
    must(codes or (harmless and read == "equal"), f"{what}: not detected, reading is {read}")
    if not codes:
        _same_answers(prepared, store, what)
    return Outcome(True, f"{what}: {', '.join(sorted(set(codes))) or 'harmless'}")


def _same_answers(prepared: Prepared, store: Path, what: str) -> None:
    must(searches(store) == prepared.kept["searches"], f"{what}: not detected, and a search gives something else")


def searches(store: Path) -> list[list[tuple[int, float]]]:
    """Return the hits of some words."""
    from comem_cli.select.store_index import open_store_index

    with StoreReader(store) as reader, open_store_index(reader) as index:
        return [
            sorted((hit.chunk_id, hit.score) for hit in index.search([word], 50, (), 1.5, 0.75))
            for word in ("harbour", "berth", "storm", "7", "gate")
        ]


def _flips(prepared: Prepared) -> list[str]:
    return numbered("flip", 10_000 if prepared.full else 300)


def run_flip(prepared: Prepared, case: str, folder: Path) -> Outcome:
    """Flip one bit; every byte of the store is as likely as any other, in one case of three every kind of file."""
    store, rng = _copy(prepared, folder), prepared.rng(6, case)
    number = int(case.rpartition("-")[2])
    plant = faults.flip_in_kind(faults.KINDS[number // 3 % 5]) if number % 3 == 0 else faults.flip_anywhere
    return _judge(prepared, store, plant(store, rng), harmless=True)


def _cuts(prepared: Prepared) -> list[str]:
    store = prepared.folder / "indexed"
    found = []
    for path in faults.all_files(store):
        name = path.relative_to(store)
        found += [f"{name}:{keep}" for keep in ["delete", *faults.cuts(path)]]
    return found


def run_cut(prepared: Prepared, case: str, folder: Path) -> Outcome:
    """Truncate or delete one file."""
    store = _copy(prepared, folder)
    name, _, keep = case.rpartition(":")
    what = faults.delete(store / name) if keep == "delete" else faults.truncate(store / name, int(keep))
    return _judge(prepared, store, what, harmless=False)


EDITS: dict[str, dict[str, object]] = {
    "dtype": {"data_type": "uint16"},
    "shape": {"shape": [10**6, 16]},
    "fill": {"fill_value": 1.0},
    "codecs": {"codecs": [{"name": "bytes", "configuration": {"endian": "little"}}]},
    "separator": {"chunk_key_encoding": {"name": "default", "configuration": {"separator": "."}}},
}


def _swaps(prepared: Prepared) -> list[str]:
    store = prepared.folder / "indexed"
    pairs = [
        f"swap:{one.relative_to(store)}:{other.relative_to(store)}"
        for kind in ("shard", "index")
        for one, other in itertools.pairwise(faults.files(store, kind))
        if one.read_bytes() != other.read_bytes()
    ]
    pairs.append("swap:zarr.json:residuals/zarr.json")
    foreign = [f"foreign:{number}" for number in range(len(faults.files(store, "shard")))]
    edits = [f"edit:{name}" for name in EDITS]
    return [*pairs, *foreign, *edits, *numbered("block", 1000 if prepared.full else 20)]


def run_swap(prepared: Prepared, case: str, folder: Path) -> Outcome:
    """Exchange files, put in one of another store, edit zarr.json, or move whole blocks with their checksums."""
    store, (kind, *names) = _copy(prepared, folder), case.split(":")
    rng = prepared.rng(8, case)
    if kind == "swap":
        what = faults.swap(store / names[0], store / names[1])
    elif kind == "foreign":
        path = faults.files(store, "shard")[int(names[0])]
        path.write_bytes((prepared.folder / "other" / path.relative_to(store)).read_bytes())
        what = f"shard {path.parent.name} of another store"
    elif kind == "edit":
        document = json.loads((store / "residuals/zarr.json").read_text())
        (store / "residuals/zarr.json").write_text(json.dumps({**document, **EDITS[names[0]]}, indent=2) + "\n")
        what = f"edit {names[0]}"
    else:
        what = _move_blocks(store, rng)
        if what == "the blocks are equal":
            return Outcome(True, what)
    return _judge(prepared, store, what, harmless=False)


def _move_blocks(store: Path, rng: object) -> str:
    """Exchange two blocks with their checksums, within a shard or between two."""
    one, other = (rng.choice(faults.files(store, "shard")) for _ in range(2))  # type: ignore[attr-defined]
    with StoreReader(store) as reader:
        step = format.block_bytes(reader.layout) + format.CRC_BYTES
        index = len(format.shard_index(reader.layout, 0, reader.capacity))
    at, to = (rng.randrange((path.stat().st_size - index) // step) * step for path in (one, other))  # type: ignore[attr-defined]
    first, second = one.read_bytes()[at : at + step], other.read_bytes()[to : to + step]
    if first == second:
        return "the blocks are equal"
    for path, offset, raw in ((one, at, second), (other, to, first)):
        data = bytearray(path.read_bytes())
        data[offset : offset + step] = raw
        path.write_bytes(data)
    return f"block {at} of shard {one.parent.name} and {to} of {other.parent.name} exchanged"


def _planted(prepared: Prepared) -> list[str]:
    return numbered("planted", 50 if prepared.full else 1)


def run_planted(prepared: Prepared, case: str, folder: Path) -> Outcome:
    """Plant 20 faults at once; check names all, and after `check --repair` the store equals the undisturbed one."""
    store, rng = _copy(prepared, folder), prepared.rng(22, case)
    shards = faults.files(store, "shard")
    rng.shuffle(shards)
    planted = [faults.flip(shards[number % 3], rng, 0, 900) for number in range(12)]
    planted += [faults.truncate(shards[3], rng.randrange(shards[3].stat().st_size)), faults.delete(shards[4])]
    planted += [faults.truncate(shards[5], 0), faults.swap(shards[6], shards[7])]
    planted += [faults.delete(store / "zarr.json"), faults.truncate(store / "residuals/zarr.json", 40)]
    planted += [faults.execute(store, "UPDATE ledger SET tokens = tokens + 1 WHERE rowid = 1")]
    planted += [faults.delete(faults.files(store, "index")[0])]
    must(len(planted) == 20, f"{len(planted)} faults")
    wanted = {f"residuals/c/{path.parent.name}/0" for path in shards[3:8]} | {"zarr.json", "residuals/zarr.json"}
    report = check_store(store, DEEP, check_store_index)
    hints = {finding.fix(store) for finding in report.damage}
    must(hints <= {f"comem check {store} --repair", f"comem index {store}"}, f"other commands: {hints}")
    _names_all(report, wanted, {path.parent.name for path in (*shards[:3], *shards[6:8])})
    job = store_repair(store, lambda: place(prepared).files, device="cpu", note=lambda line: None)
    _, after = job.run()
    must(not after.findings, f"after the repair: {after.findings}")
    must(job.done.differing == 0, f"{job.done.differing} chunks were computed to other bytes")
    found = jobs.read_state(store)[1]
    must(
        found == prepared.kept["indexed"][1], f"after the repair: {jobs.difference(found, prepared.kept['indexed'][1])}"
    )  # type: ignore[index]
    _same_answers(prepared, store, "after the repair")
    return Outcome(True, f"{len(report.damage)} findings, {job.done.rewritten} chunks computed again")


def _names_all(report: Report, files: set[str], flipped: set[str]) -> None:
    named = " ".join(f"{finding.what} {finding.detail}" for finding in report.damage)
    missed = [name for name in files if name not in named]
    missed += [number for number in flipped if f"residuals/c/{number}/0" not in named]
    codes = {finding.code for finding in report.damage}
    missed += [code for code in ("catalogue-ledger", "index-damaged") if code not in codes]
    must(not missed, f"check does not name {missed}")


ROWS = (
    Row(6, "one bit flipped anywhere", _flips, run_flip, ("jobs", "indexed"), 50),
    Row(7, "a file truncated or deleted", _cuts, run_cut, ("jobs", "indexed"), 40),
    Row(8, "files or blocks swapped, metadata edited", _swaps, run_swap, ("jobs", "indexed"), 40),
    Row(22, "20 faults at once, then check --repair", _planted, run_planted, ("jobs", "indexed"), 5),
)
