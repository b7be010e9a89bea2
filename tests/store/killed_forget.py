"""A store of samples with something to forget or to compact, and jobs on it that die at a fault point.

The index is a file that lists keys and ids of live chunks. The job runs in a fork, which starts in milliseconds.
"""

from __future__ import annotations

import os
import shutil
import signal
import struct
import time
from pathlib import Path

from samples import CHUNK, WIDTH, Sample, open_store, put, sample

from comem_cli.store import durable, format
from comem_cli.store.forget import HOLDER, Forget, Report
from comem_cli.store.reclaim import compact_sparse
from comem_cli.store.writer import StoreWriter

ROOT = "/sources/of-a-test"
SHARED = sample(900)
SECRET = "private/secret-plans.txt"
SECRETS = [sample(101), SHARED, sample(102, 40), sample(103)]
OLD_SECRETS = [sample(104), sample(105)]  # of an earlier version, in a shard that is still mostly alive
KEPT = {
    "public/alpha.txt": [sample(1), sample(2), sample(3, 33)],
    "public/beta.txt": [sample(4), SHARED, sample(5)],
    "public/gamma-private.txt": [sample(6, 1), sample(7)],
}
GONE = [sample(101), sample(102, 40), sample(103), *OLD_SECRETS]


def write_store(path: Path) -> None:
    """Write all documents, the secret in two versions, and an index, in shards of four full chunks."""
    alpha, beta, gamma = KEPT
    usual, format.SHARD_BYTES = format.SHARD_BYTES, 4 * CHUNK * WIDTH * 2
    try:
        open_store(path).close()
    finally:
        format.SHARD_BYTES = usual
    with open_store(path) as writer:
        put(writer, SECRET, OLD_SECRETS, root=ROOT)
        put(writer, alpha, KEPT[alpha], root=ROOT)
        writer.commit()
        put(writer, SECRET, SECRETS, root=ROOT)
        put(writer, beta, KEPT[beta], root=ROOT)
        writer.commit()
        put(writer, gamma, KEPT[gamma], root=ROOT)
        writer.commit()
        writer.drop_unplaced()
        reindex(writer)


def reindex(writer: StoreWriter) -> None:
    """Write the keys and ids of live chunks into a file, aside, and name it."""
    folder = writer.path / "index" / f".{writer.content}.building"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    rows = writer.catalogue.execute("SELECT key, ids FROM chunk WHERE id IN (SELECT chunk_id FROM placement)")
    (folder / "terms").write_bytes(b"\n".join(key.encode() + ids for key, ids in rows))
    shutil.rmtree(folder.with_name(writer.content), ignore_errors=True)
    folder.rename(folder.with_name(writer.content))
    writer.set_index(writer.content, writer.content)
    keep_only(writer.path, writer.content)


def keep_only(store: Path, name: str) -> None:
    for other in (store / "index").glob("*"):
        durable.fault_point("unlink.before")
        if other.name != name and other.is_dir():
            shutil.rmtree(other)


def decode(ids: bytes) -> str:
    """Give every id a word."""
    return " ".join(f"w{token}" for (token,) in struct.iter_unpack("<I", ids))


def forget(path: Path, *paths: str, yes: bool = False, wait_seconds: float = 0.0) -> Report:
    """Do what `comem forget` does."""
    with StoreWriter.open(path, HOLDER) as writer:
        job = Forget(
            writer,
            reindex=lambda: reindex(writer),
            keep_only=lambda name: keep_only(path, name),
            decode=decode,
            wait_seconds=wait_seconds,
        )
        return job.run(paths, yes=yes)


def finish_ingest(path: Path) -> None:
    """Remove what makes shards sparse, then do what the end of an ingest does."""
    with open_store(path) as writer:
        writer.remove_documents(row.id for row in writer.documents() if row.name == SECRET)
        writer.drop_unplaced()
        compact_sparse(writer)


def traces(path: Path, gone: list[Sample] = GONE) -> list[tuple[str, str]]:
    """Look for the secret in every byte of every file, the plain way: (file, what)."""
    needles = {"path": SECRET.encode(), "folder": b"private/secret"}
    for one in gone:
        tokens = struct.unpack(f"<{one.n_tokens}I", one.ids)
        needles[f"{one.key} key"] = one.key.encode()
        needles[f"{one.key} first"] = one.residual[:64]
        needles[f"{one.key} last"] = one.residual[-64:]
        for start in range(0, len(tokens) - 8):
            needles[f"{one.key} 32 bit at {start}"] = one.ids[4 * start : 4 * start + 32]
            needles[f"{one.key} 16 bit at {start}"] = struct.pack("<8H", *tokens[start : start + 8])
        needles[f"{one.key} text"] = decode(one.ids)[:40].encode()
    files = {str(file.relative_to(path)): file.read_bytes() for file in path.rglob("*") if file.is_file()}
    return [(name, what) for name, raw in files.items() for what, needle in needles.items() if needle in raw]


JOBS = {"forget": lambda path: forget(path, SECRET), "compact": finish_ingest}


def killed(job: str, path: Path, point: str, number: int, after: float | None = None) -> int:
    """Do a job in a child that dies at the N-th passage of a fault point, or `after` so many seconds.

    Returns the number of the signal that ended it, 0 if it came to its end.
    """
    child = os.fork()
    if child == 0:
        passed = 0

        def die(name: str) -> None:
            nonlocal passed
            passed += name == point
            if passed == number:
                os.kill(os.getpid(), signal.SIGKILL)

        try:
            durable.fault_point = die
            JOBS[job](path)
            os._exit(0)
        except BaseException:
            os._exit(1)
    if after is not None:
        time.sleep(after)
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0
    return os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
