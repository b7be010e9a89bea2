"""The index's part of rows 1 and 5: kill -9 while Lucene builds; all of it is flushed before it is named."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from comem_cli.model import load
from comem_cli.select.check_index import check_store_index
from comem_cli.select.jvm import start_jvm
from comem_cli.select.store_index import refresh_index, sweep_indexes
from comem_cli.select.terms import DEFAULT_TERMS, term_scheme
from comem_cli.store.check import CheckOptions, check_store
from comem_cli.store.reader import StoreReader
from comem_cli.store.writer import StoreWriter
from tests.faults import jobs
from tests.faults.bases import place
from tests.faults.case import Outcome, Prepared, must
from tests.faults.child import start
from tests.faults.row_damage import searches


def build(store: Path, where: jobs.Place, ready: Callable[[], object]) -> float:
    """Bring the index in step as `ingest` does; `ready` is called once Java runs. Return the seconds after that."""
    start_jvm()
    scheme = term_scheme(DEFAULT_TERMS, load.tokenizer(where.files))
    ready()
    begin = time.perf_counter()
    with StoreWriter.open(store) as writer:
        if writer.index_is_fresh:
            sweep_indexes(writer)
        else:
            refresh_index(writer, scheme)
    return time.perf_counter() - begin


def run_killed(prepared: Prepared, case: str, folder: Path) -> Outcome:
    """Kill a build; the store is as it was, its index is stale or whole, and the next build completes."""
    store = Path(shutil.copytree(prepared.folder / "stale", folder / "store"))
    seconds, wanted = prepared.kept["stale"]  # type: ignore[misc]
    reading, writing = os.pipe()
    child = start(lambda: build(store, place(prepared), lambda: os.write(writing, b"1")))
    os.read(reading, 1)
    time.sleep(prepared.rng(1, case).uniform(0, 1.1 * seconds))
    child.kill()
    ended = child.wait()
    must(ended.signal == signal.SIGKILL or ended.returned, f"ended with {ended}")
    held = jobs.read_state(prepared.folder / "stale")
    generation, found = jobs.read_state(store)
    must(generation in (held[0], held[0] + 1) and found == held[1], f"generation {generation} holds something else")
    with StoreReader(store) as reader:
        named = reader.index()
        fresh = named[1]
    damage = check_store(store, CheckOptions(read_data=True), check_store_index).damage
    must(not damage, f"damage after the kill: {damage}")
    build(store, place(prepared), lambda: None)
    findings = check_store(store, CheckOptions(read_data=True), check_store_index).findings
    must(not findings, f"after the next build: {findings}")
    must(searches(store) == wanted, "the next build gives other hits")
    return Outcome(True, "named before the kill" if fresh else "stale after the kill")


def run_flushed(prepared: Prepared, case: str, folder: Path) -> Outcome:
    """Watch the kernel calls of a build: each file, its folder and the rename are flushed before the COMMIT."""
    store = Path(shutil.copytree(prepared.folder / "stale", folder / "store"))
    tracer = shutil.which("strace")
    if tracer is None:
        return Outcome(True, "needs strace", skipped=True)
    waiting, go = os.pipe()
    child = start(lambda: (os.read(waiting, 1), build(store, place(prepared), lambda: None)))
    calls = "trace=fsync,fdatasync,openat,mkdir,rename,renameat,renameat2"
    line = [tracer, "-f", "-y", "-s", "9999", "-p", str(child.pid), "-o", str(folder / "trace"), "-e", calls]
    with subprocess.Popen(line, stderr=subprocess.PIPE, text=True) as strace:
        assert strace.stderr is not None
        said = strace.stderr.readline()
        if "attached" not in said:
            child.kill()
            child.wait()
            return Outcome(True, f"strace cannot attach: {said.strip()}", skipped=True)
        os.write(go, b"1")
        ended = child.wait()
        strace.wait(20)
    must(ended.returned, ended.error)
    with StoreReader(store) as reader:
        name = reader.index()[0]
    building, final = store / "index" / f".{name}.building", store / "index" / str(name)
    lines = (folder / "trace").read_text().splitlines()
    flushed = {at: path for at, line in enumerate(lines) for path in re.findall(r" f(?:data)?sync\(\d+<([^>]*)>", line)}
    renamed = next(at for at, line in enumerate(lines) if " rename" in line and f'"{building}"' in line)
    before = {path for at, path in flushed.items() if at < renamed}
    names = [path.name for path in final.iterdir()]  # Lucene flushes pending_segments_N and then renames it
    unflushed = [one for one in names if not {str(building / one), str(building / f"pending_{one}")} & before]
    must(not unflushed, f"not flushed before the rename: {unflushed}")
    made = max(at for at, line in enumerate(lines) if "O_CREAT" in line and str(building) in line)
    must(
        any(made < at < renamed and path == str(building) for at, path in flushed.items()), "the folder is not flushed"
    )
    named = [at for at, path in flushed.items() if path.endswith("catalog.sqlite-wal") and at > renamed]
    must(named, "no COMMIT after the rename")
    after = [at for at, path in flushed.items() if path == str(store / "index") and renamed < at < named[0]]
    must(after, "the rename is not flushed before the COMMIT")
    return Outcome(True, f"{len(names)} files")
