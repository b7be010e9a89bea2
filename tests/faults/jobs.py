"""What writes to a store, run in this process on a decoder stub: ingest, overlap-write, forget, repair.

Everything but the forward pass and Lucene is comem's own: walk, extract, chunk, plan, queue, writer, catalogue. A
residual is a hash of what the lower layers may see, so a job takes milliseconds, and the oracle can compute it. The
stub's index is a file that lists the live chunks; rows that are about the index use Lucene.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from comem_cli.errors import ComemError, NoStoreError
from comem_cli.model import load
from comem_cli.model.shapes import Pending
from comem_cli.store import durable, format, write_queue
from comem_cli.store.check import CheckOptions, check_store
from comem_cli.store.findings import Finding
from comem_cli.store.forget import HOLDER, Forget
from comem_cli.store.reader import StoreReader
from comem_cli.store.reclaim import expected_bytes
from comem_cli.store.repair import Repair
from comem_cli.store.rewrite_run import RewriteRun
from comem_cli.store.run import IngestRun
from comem_cli.store.setup import WriteOptions, WriteSetup
from comem_cli.store.writer import StoreWriter
from tests.faults.case import must
from tests.faults.sources import CHUNK, LEFT, State, residual

BATCH = 4  # chunks that the stub computes at once
_write = os.write  # rows that break os.write must not break the log
computed: list[int] = []  # descriptor of the log of computed keys, where there is one
pause = 0.0  # seconds that the stub takes for a chunk
_make_writer = WriteSetup.make_writer


class Stub:
    """Takes the place of a mode's chunk writer."""

    def __init__(self) -> None:
        self._waiting: list[Pending] = []

    def add(self, chunk: Pending) -> Iterator[tuple[Pending, bytes]]:
        """Fill a batch."""
        self._waiting.append(chunk)
        if len(self._waiting) == BATCH:
            yield from self.flush()

    def flush(self) -> Iterator[tuple[Pending, bytes]]:
        """Compute what waits."""
        waiting, self._waiting = self._waiting, []
        for chunk in waiting:
            time.sleep(pause)
            for log in computed:
                _write(log, f"{chunk.key}\n".encode())
            yield chunk, residual(_left(chunk), chunk.ids)


def _left(chunk: Pending) -> bytes:
    seen, before = chunk.left, chunk.previous
    while before is not None:
        seen, before = before.ids + seen, before.previous
    return seen


class FileIndex:
    """An index is a folder with one file that lists the chunks."""

    def __init__(self, store: Path) -> None:
        self._folder = store / "index"

    def build(self, name: str, chunks: Iterable[tuple[int, bytes]]) -> None:
        """Write it aside, durably, and rename it."""
        building = self._folder / f".{name}.building"
        shutil.rmtree(building, ignore_errors=True)
        durable.make_dir(self._folder)
        durable.make_dir(building)
        durable.write_file(building / "chunks", [listing(chunks)])
        durable.fault_point("rename.before")
        if not (self._folder / name).exists():
            os.rename(building, self._folder / name)
        durable.fault_point("rename.after")
        durable.sync_dir(self._folder)

    def keep_only(self, name: str) -> None:
        """Remove every other one."""
        for path in self._folder.glob("*"):
            if path.name != name:
                durable.fault_point("unlink.before")
                shutil.rmtree(path)
                durable.fault_point("unlink.after")


def listing(chunks: Iterable[tuple[int, bytes]]) -> bytes:
    """Return what the stub's index holds for some chunks."""
    return b"".join(b"%d %s\n" % (number, hashlib.sha256(ids).hexdigest().encode()) for number, ids in sorted(chunks))


def reindex(writer: StoreWriter) -> int:
    """Build and name the index of the live chunks."""
    index = FileIndex(writer.path)
    with StoreReader(writer.path) as reader:
        index.build(writer.content, ((chunk.id, chunk.ids) for chunk in reader.iter_chunks()))
    writer.set_index(writer.content, writer.content)
    index.keep_only(writer.content)
    return 0


def install() -> None:
    """Put the stub in the place of the model, commit after every batch, and make shards of six chunks."""
    WriteSetup.make_writer = lambda self: Stub()  # type: ignore[assignment,method-assign,return-value]
    write_queue.COMMIT_SECONDS = 0.0


def uninstall() -> None:
    """Put the model back."""
    WriteSetup.make_writer = _make_writer  # type: ignore[method-assign]
    write_queue.COMMIT_SECONDS = 20.0


@dataclass(frozen=True)
class Job:
    """A job on a store: which base it starts from, and what it does."""

    name: str
    base: str
    run: Callable[[Path, Place], object]


@dataclass(frozen=True)
class Place:
    """Where the documents and the model of all jobs are."""

    docs: Path
    model: Path

    @property
    def files(self) -> load.ModelFiles:
        """Return the model's files."""
        return load.resolve(str(self.model))


def ingest(store: Path, place: Place, *, index: bool = True) -> None:
    """Bring the store in step with the documents, and its index too."""
    options = WriteOptions(split=2, chunk=CHUNK, device="cpu", dtype="fp32", yes=True)
    usual, format.SHARD_BYTES = format.SHARD_BYTES, 6 * CHUNK * 32
    try:
        run = IngestRun(store, place.files, options)
        with run.open() as writer:
            ignored = {name: lambda *args: None for name in ("on_plan", "on_event", "on_bytes", "on_load")}
            run.ingest(writer, [place.docs], **ignored)
            if not index:
                return
            if writer.index_is_fresh:
                FileIndex(store).keep_only(writer.content)
            elif any(True for _ in writer.documents()):
                reindex(writer)
    finally:
        format.SHARD_BYTES = usual


def rewrite(store: Path, place: Place, **options: object) -> None:
    """Rewrite the store with left context."""
    chosen = WriteOptions(**{"device": "cpu", **(options or {"overlap": LEFT})})  # type: ignore[arg-type]
    ignored = dict.fromkeys(("on_event", "on_tokens"), lambda value: None)
    quiet = dict.fromkeys(("on_load", "on_index"), lambda: None)
    RewriteRun(store, lambda: place.files, chosen).run(FileIndex(store), **ignored, **quiet)  # type: ignore[arg-type]


def forget(store: Path, place: Place, *names: str) -> None:
    """Forget documents; what an unfinished run left as well. It is no error where they are gone."""
    with StoreWriter.open(store, HOLDER) as writer:
        held = {row.name for row in writer.documents()}
        wanted = [name for name in names or FORGOTTEN if name in held]
        if not wanted and not (store / "forget.pending").exists():
            return
        index = FileIndex(store)
        job = Forget(writer, reindex=lambda: reindex(writer), keep_only=index.keep_only, wait_seconds=0.0)
        report = job.run(wanted, yes=True)
    must(report.done, f"forget left {report.traces}, readers {report.readers}")


FORGOTTEN = ("d1.txt", "long.txt", "d4.txt")


def repair(store: Path, place: Place) -> None:
    """Repair what the base's damage left."""
    job = Repair(store, lambda: place.files, check_index=no_index_check, rebuild_index=reindex, device="cpu")
    _, found = job.run()
    must(not found.damage, f"repair left {found.damage}")


def no_index_check(reader: StoreReader, live: set[int], deep: bool) -> list[Finding]:
    """Stand for the check of the stub's index, which `settled` looks at."""
    return []


JOBS = (
    Job("create", "nothing", ingest),
    Job("ingest", "before", ingest),
    Job("overlap-write", "before", rewrite),
    Job("forget", "before", forget),
    Job("repair", "damaged", repair),
)


def read_state(store: Path) -> tuple[int, State]:
    """Read everything of one snapshot: the generation, and what each document holds; -1 and nothing for no store."""
    try:
        reader = StoreReader(store)
    except NoStoreError:
        return -1, {}
    with reader:
        found: State = {}
        for document in reader.documents():
            rows = reader.document_chunks(document.id)
            places = reader.places([row.id for row in rows])
            here = {p.number: p for row in rows for p in places[row.id] if p.document_id == document.id}
            spans = [here[number] for number in sorted(here)]
            chunks = []
            for number, row in enumerate(rows):
                out = bytearray(row.n_tokens * reader.width * 2)
                reader.fetch([row.id], memoryview(out))
                ids, rest = hashlib.sha256(row.ids).hexdigest(), hashlib.sha256(out).hexdigest()
                chunks.append((ids, rest, spans[number].byte_start, spans[number].byte_end))
            found[document.name] = (document.sha256, tuple(chunks))
        list(reader.iter_chunks())  # verifies the content digest
        return reader.generation, found


def settled(store: Path, wanted: State) -> None:
    """Check a store at the end of an undisturbed run: what it holds, and no file more or less than that takes."""
    _, found = read_state(store)
    must(found == wanted, f"the store holds {difference(found, wanted)}")
    report = check_store(store, CheckOptions(read_data=True), no_index_check)
    must(not report.findings, f"check finds {report.findings}")
    with StoreReader(store) as reader:
        expected = expected_bytes(reader)
        name, fresh = reader.index()
        must(fresh and name, "the index is stale")
        entries = listing((chunk.id, chunk.ids) for chunk in reader.iter_chunks())
    files = {path.relative_to(store).as_posix(): path.stat().st_size for path in store.rglob("*") if path.is_file()}
    ours = {path: size for path, size in files.items() if not path.startswith(("catalog.sqlite", "writer.lock"))}
    must(ours == {**expected, f"index/{name}/chunks": len(entries)}, f"files {ours}, expected {expected}")
    must((store / "index" / str(name) / "chunks").read_bytes() == entries, "the index lists other chunks")


def difference(found: State, wanted: State) -> str:
    """Name the documents in which two states differ."""
    names = sorted(name for name in found.keys() | wanted.keys() if found.get(name) != wanted.get(name))
    return f"something else in {names}" if names else "the same"


def exit_code(error: BaseException) -> int | None:
    """Return the exit code that the command gives for an error; None where it would be called unexpected."""
    if isinstance(error, ComemError):
        return error.exit_code
    if isinstance(error, OSError):
        return 14 if error.errno in (28, 122) else 1
    return None
