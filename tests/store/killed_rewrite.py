"""Rewrite a store of samples and die at the N-th passage of a fault point: `killed_rewrite.py STORE MODE POINT N LOG`.

The residuals are a hash of what the mode lets the lower layers see, so no model is needed. LOG gets a line for each
chunk that is computed. POINT "-" lets the run go on until the parent kills it.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from samples import CHUNK, RECORDED, WIDTH, fingerprint, open_store, sample

from comem_cli.model.modes import ChunkMode, DocumentMode, OverlapMode, WriteMode
from comem_cli.model.shapes import Pending
from comem_cli.store import durable, write_queue
from comem_cli.store.edits import Placement
from comem_cli.store.fingerprint import Fingerprint
from comem_cli.store.rewrite import Rewrite
from comem_cli.store.write_queue import WriteQueue
from comem_cli.store.writer import StoreWriter

BATCH = 3
MODES: dict[str, WriteMode] = {"chunk": ChunkMode(), "overlap": OverlapMode(8), "document": DocumentMode(512)}
REPEATED = sample(1).ids
DOCUMENTS = {  # a duplicate document, a chunk that stands twice in a row, one document of a single short chunk
    "a": [REPEATED, REPEATED, sample(2).ids, sample(3, 20).ids],
    "b": [REPEATED, REPEATED, sample(2).ids, sample(3, 20).ids],
    "c": [sample(4, 5).ids],
    "d": [sample(5).ids, REPEATED, sample(6).ids, sample(7).ids, sample(8, 33).ids],
}


def target(name: str) -> Fingerprint:
    return fingerprint(mode=name, overlap=MODES[name].overlap, shapes=f"[[1,{CHUNK}]]")


class HashWriter:
    """Fill batches of three like a model would; a residual is a hash of the chunk and all it sees."""

    def __init__(self, log: Path | None, pause: float) -> None:
        self._log, self._pause = log, pause
        self._waiting: list[Pending] = []

    def add(self, chunk: Pending) -> Iterator[tuple[Pending, bytes]]:
        self._waiting.append(chunk)
        if len(self._waiting) == BATCH:
            yield from self.flush()

    def flush(self) -> Iterator[tuple[Pending, bytes]]:
        waiting, self._waiting = self._waiting, []
        for chunk in waiting:
            time.sleep(self._pause)
            if self._log:
                with self._log.open("a") as log:
                    log.write(f"{chunk.key}\n")
            yield chunk, residual(chunk)


def residual(chunk: Pending) -> bytes:
    seen = [chunk.left, chunk.ids]
    before = chunk.previous
    while before is not None:
        seen.insert(0, before.ids)
        before = before.previous
    return hashlib.shake_128(b"|".join(seen)).digest(len(chunk.ids) // 4 * WIDTH * 2)


class FileIndexes:
    """An index is a file that lists its chunks."""

    def __init__(self, store: Path) -> None:
        self._folder = store / "index"

    def build(self, name: str, chunks: Iterable[tuple[int, bytes]]) -> None:
        self._folder.mkdir(exist_ok=True)
        (self._folder / name).write_text(json.dumps(sorted(chunk_id for chunk_id, _ in chunks)))

    def keep_only(self, name: str) -> None:
        for path in self._folder.iterdir():
            if path.name != name:
                path.unlink()


def write_samples(store: Path, mode: str) -> None:
    """Write the documents in a mode from the start."""
    changes = {name: getattr(target(mode), name) for name in ("mode", "overlap", "shapes")}
    with open_store(store, **changes) as writer:
        queue = WriteQueue(
            writer,
            target(mode),
            MODES[mode],
            lambda: HashWriter(None, 0),
            on_event=lambda event: None,
            device=lambda: "cpu",
        )
        root = writer.add_root(Path("/src"))
        for name, document in DOCUMENTS.items():
            keys = queue.add(document)
            places = [Placement(key, 10 * i, 10 * i + 10, i + 1, i + 2) for i, key in enumerate(keys)]
            writer.put_document(root, name, 100, 123, "ab" * 32, "utf-8", "text", places)
        queue.flush()
        queue.commit()
        ids = {chunk.id for document in writer.documents() for _, chunk in writer.document_chunks(document.id)}
        FileIndexes(store).build(writer.content, [(chunk_id, b"") for chunk_id in ids])
        writer.set_index(writer.content, writer.content)


def rewrite(store: Path, mode: str, log: Path | None = None, pause: float = 0) -> None:
    """Do what `overlap-write` does."""
    with StoreWriter.open(store) as writer:
        job = Rewrite(
            writer,
            target(mode),
            MODES[mode],
            lambda: HashWriter(log, pause),
            on_event=lambda event: None,
            on_tokens=lambda tokens: None,
            device=lambda: "cpu",
        )
        indexes = FileIndexes(store)
        if writer.fingerprint != target(mode):
            job.write()
            job.swap(indexes, RECORDED)
        writer.drop_unplaced()
        indexes.keep_only(writer.content)


if __name__ == "__main__":
    path, name, point, number, log_path = sys.argv[1:]
    passed = 0

    def die(at: str) -> None:
        global passed
        if at == point:
            passed += 1
            if passed == int(number):
                os.kill(os.getpid(), signal.SIGKILL)

    write_queue.COMMIT_SECONDS = 0.0
    durable.fault_point = die
    rewrite(Path(path), name, Path(log_path), pause=0.02 if point == "-" else 0)
