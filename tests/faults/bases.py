"""What the cases start from: documents, a tiny model, base stores, and a recording of each job undisturbed.

A recording holds every generation that the job passed, each compared with the oracle, so that a disturbed run can be
held to one of exactly these.
"""

from __future__ import annotations

import os
import random
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from comem_cli.model import load
from comem_cli.store import durable
from tests.faults import jobs, sources
from tests.faults.case import Prepared, must
from tests.faults.child import in_child
from tests.faults.sources import State
from tests.faults.unsynced import Unsynced
from tests.store import faults_on_disk
from tests.tiny import save_tiny


@dataclass(frozen=True)
class Recorded:
    """One job undisturbed: its generations, the fault points and calls it passed, what was not synced at each point."""

    generations: tuple[tuple[int, State], ...]
    points: tuple[str, ...]
    calls: int
    unsynced: tuple[frozenset[str], ...]
    seconds: float
    final: State

    def holds(self, store: Path) -> None:
        """Check that a store is at one of the generations, whole."""
        generation, found = jobs.read_state(store)
        must(
            (generation, found) in self.generations,
            f"generation {generation} holds {jobs.difference(found, self.final)} that no undisturbed run passes",
        )


def place(prepared: Prepared) -> jobs.Place:
    """Return where documents and model are."""
    return jobs.Place(prepared.folder / "docs", prepared.folder / "model")


def base(prepared: Prepared, job: jobs.Job, folder: Path) -> Path:
    """Copy the base store of a job into a case's folder."""
    store = folder / "store"
    if job.base != "nothing":
        shutil.copytree(prepared.folder / job.base, store)
    return store


def recorded(prepared: Prepared, job: jobs.Job) -> Recorded:
    """Return the recording of a job."""
    found = prepared.kept[f"job {job.name}"]
    assert isinstance(found, Recorded)
    return found


def job_named(case: str) -> jobs.Job:
    """Return the job that a case is named after."""
    return next(job for job in jobs.JOBS if case.startswith(f"{job.name}-"))


def _make_jobs(prepared: Prepared) -> None:
    """Write the base stores, and record each job."""
    folder = prepared.folder
    save_tiny(folder / "model", layers=4, hidden_size=sources.WIDTH, head_dim=4, intermediate_size=16)
    tokenizer = load.tokenizer(place(prepared).files)
    sources.write(folder / "docs", sources.before())
    in_child(lambda: jobs.ingest(folder / "before", place(prepared)))
    shutil.copytree(folder / "before", folder / "damaged")
    rng = random.Random(prepared.seed)
    shards = faults_on_disk.files(folder / "damaged", "shard")
    faults_on_disk.flip(shards[0], rng, 0, 900)
    faults_on_disk.truncate(shards[1], 700)
    faults_on_disk.delete(shards[2])
    faults_on_disk.truncate(folder / "damaged" / "zarr.json", 3)
    sources.write(folder / "docs", sources.after())
    first, last = sources.before(), sources.after()
    kept = {name: content for name, content in first.items() if name not in jobs.FORGOTTEN}
    finals = {
        "create": sources.state_of(last, tokenizer),
        "ingest": sources.state_of(last, tokenizer),
        "overlap-write": sources.state_of(first, tokenizer, "overlap"),
        "forget": sources.state_of(kept, tokenizer),
        "repair": sources.state_of(first, tokenizer),
    }
    starts = {"create": {}, **dict.fromkeys(finals.keys() - {"create"}, sources.state_of(first, tokenizer))}
    for job in jobs.JOBS:
        prepared.kept[f"job {job.name}"] = _record(prepared, job, starts[job.name], finals[job.name])


def _record(prepared: Prepared, job: jobs.Job, start: State, final: State) -> Recorded:
    scratch = prepared.folder / f"recorded-{job.name}"

    def watched() -> Recorded:
        store = base(prepared, job, scratch / "watched")
        generations = [] if job.name == "repair" else [jobs.read_state(store)]
        points, unsynced, counter = list[str](), list[frozenset[str]](), Calls()
        shim = Unsynced(store)

        def passed(name: str) -> None:
            points.append(name)
            if name == "commit.after" and job.name != "repair":
                with counter.paused():
                    generations.append(jobs.read_state(store))
            shim.passed(name)
            unsynced.append(frozenset(shim.kinds()))

        durable.fault_point = passed
        with counter.counting(), shim.watching():
            job.run(store, place(prepared))
        durable.fault_point = lambda name: None
        jobs.settled(store, final)
        generations.append(jobs.read_state(store))
        return Recorded(tuple(generations), tuple(points), counter.passed, tuple(unsynced), 0.0, final)

    def timed() -> float:
        store = base(prepared, job, scratch / "timed")
        begin = time.perf_counter()
        job.run(store, place(prepared))
        return time.perf_counter() - begin

    found = in_child(watched)
    for _, state in found.generations:
        for name in start.keys() | final.keys():
            must(state.get(name) in (start.get(name), final.get(name)), f"{job.name}: {name} is neither old nor new")
    return Recorded(**{**vars(found), "seconds": in_child(timed)})


CALLS = ("write", "fsync", "fdatasync", "rename", "replace", "unlink", "remove", "mkdir", "rmdir", "ftruncate")


class Calls:
    """Counts the calls that change files, and fails the N-th."""

    def __init__(self, fail_at: int = 0, code: int = 0) -> None:
        self.passed = 0
        self.failed = ""
        self._fail_at, self._code = fail_at, code
        self._on = True

    def counting(self) -> Any:
        """Replace the calls in `os` for as long as the block runs."""
        from contextlib import contextmanager

        @contextmanager
        def block() -> Any:
            real = {name: getattr(os, name) for name in CALLS}
            try:
                for name in CALLS:
                    setattr(os, name, self._wrapped(name, real[name]))
                yield
            finally:
                for name in CALLS:
                    setattr(os, name, real[name])

        return block()

    def paused(self) -> Any:
        """Do not count in the block."""
        from contextlib import contextmanager

        @contextmanager
        def block() -> Any:
            self._on = False
            yield
            self._on = True

        return block()

    def _wrapped(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            self.passed += self._on
            if self._on and self.passed == self._fail_at:
                self.failed = name
                raise OSError(self._code, os.strerror(self._code))
            return real(*args, **kwargs)

        return call


def _make_indexed(prepared: Prepared) -> None:
    """Copy the base with an index of Lucene's, and one of other documents: `other`."""

    def work() -> tuple[object, object]:
        from comem_cli.select.store_index import rebuild_index
        from comem_cli.select.terms import DEFAULT_TERMS, term_scheme
        from comem_cli.store.writer import StoreWriter
        from tests.faults.row_damage import searches

        store = Path(shutil.copytree(prepared.folder / "before", prepared.folder / "indexed"))
        shutil.rmtree(store / "index")
        with StoreWriter.open(store) as writer:
            rebuild_index(writer, term_scheme(DEFAULT_TERMS, load.tokenizer(place(prepared).files)))
        other = sources.write(prepared.folder / "others", {f"o{n}.txt": sources.text(f"o{n}", 90) for n in range(9)})
        jobs.ingest(prepared.folder / "other", jobs.Place(other, prepared.folder / "model"))
        return jobs.read_state(store), searches(store)

    prepared.kept["indexed"], prepared.kept["searches"] = in_child(work)


def _make_stale(prepared: Prepared) -> None:
    """Copy the indexed base and bring it to the new documents without its index; time what an index takes."""
    shutil.copytree(prepared.folder / "indexed", prepared.folder / "stale")
    in_child(lambda: jobs.ingest(prepared.folder / "stale", place(prepared), index=False))

    def work() -> tuple[float, object]:
        from tests.faults.row_damage import searches
        from tests.faults.row_index import build

        store = Path(shutil.copytree(prepared.folder / "stale", prepared.folder / "indexed-again"))
        seconds = build(store, place(prepared), lambda: None)
        return seconds, searches(store)

    prepared.kept["stale"] = in_child(work)


def _make_canary(prepared: Prepared) -> None:
    """Write stores of documents with canaries, in two modes, indexed by words."""

    def work() -> None:
        from comem_cli.select.store_index import rebuild_index
        from comem_cli.select.terms import term_scheme
        from comem_cli.store.writer import StoreWriter
        from tests.faults.row_forget import documents

        docs = sources.write(prepared.folder / "canaries", documents())
        where = jobs.Place(docs, prepared.folder / "model")
        for mode in ("chunk", "overlap"):
            store = prepared.folder / f"canary-{mode}"
            jobs.ingest(store, where)
            if mode == "overlap":
                jobs.rewrite(store, where)
            with StoreWriter.open(store) as writer:
                shutil.rmtree(store / "index")
                rebuild_index(writer, term_scheme("folded", load.tokenizer(where.files)))

    in_child(work)


MAKE: dict[str, Callable[[Prepared], None]] = {
    "jobs": _make_jobs,
    "indexed": _make_indexed,
    "stale": _make_stale,
    "canary": _make_canary,
}
