"""One writer and several readers, in processes of their own: every read is of one generation, whole.

    run(folder, reads=200, readers=4, seed=0) -> Outcome

In round r the writer replaces every document in one commit, drops the old chunks and compacts what is sparse. A reader
opens the store, waits a little, reads every byte of its snapshot, and compares it with what round r must hold.
"""

from __future__ import annotations

import random
import time
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

from comem_cli.store.reader import StoreReader
from comem_cli.store.reclaim import compact_sparse
from tests.store.samples import Sample, all_of, expected, open_store, put, sample

DOCUMENTS = 5
ROOT = "/src"


@dataclass(frozen=True)
class Outcome:
    """How many snapshots were read, what failed, and how many generations were seen."""

    reads: int
    errors: tuple[str, ...]
    generations: int


def state(number: int) -> dict[str, list[Sample]]:
    """Return the documents of a round; the first one names it."""
    rng = random.Random(number)
    documents = {f"round-{number}": [sample(number)]}
    for at in range(DOCUMENTS):
        seeds = [1000 * number + 10 * at + chunk for chunk in range(rng.randrange(1, 4))]
        documents[f"d{at}"] = [sample(seed, rng.randrange(1, 65)) for seed in seeds]
    return documents


def run(folder: Path, reads: int = 200, readers: int = 4, seed: int = 0) -> Outcome:
    """Let the readers read `reads` snapshots together while the writer goes on."""
    path = folder / "store"
    _write(path, 0)
    context = get_context("fork")
    done, results = context.Event(), context.Queue()
    writer = context.Process(target=_writer, args=(path, done, results))
    started = [
        context.Process(target=_reader, args=(path, reads // readers, seed + n, results)) for n in range(readers)
    ]
    for process in (writer, *started):
        process.start()
    found: list[tuple[list[str], list[int]]] = [results.get(timeout=600) for _ in started]
    done.set()
    wrong: list[str] = results.get(timeout=600)
    for process in (writer, *started):
        process.join()
    errors = [error for some, _ in found for error in some] + wrong
    return Outcome(sum(len(seen) for _, seen in found), tuple(errors), len({at for _, seen in found for at in seen}))


def _write(path: Path, number: int) -> None:
    documents = state(number)
    with open_store(path) as writer:
        writer.remove_documents([row.id for row in writer.documents() if row.name not in documents])
        for name, chunks in documents.items():
            put(writer, name, chunks, root=ROOT)
        writer.commit()
        writer.drop_unplaced()
        compact_sparse(writer)


def _writer(path: Path, done: Event, results: Any) -> None:
    errors, number = [], 0
    while not done.is_set() and not errors:
        number += 1
        try:
            _write(path, number)
        except Exception as error:
            errors.append(f"writer, round {number}: {error!r}")
    results.put(errors)


def _reader(path: Path, reads: int, seed: int, results: Any) -> None:
    rng, errors, seen = random.Random(seed), [], []
    for _ in range(reads):
        try:
            with StoreReader(path) as reader:
                time.sleep(rng.uniform(0, 0.03))
                found = all_of(reader)
                number = next(int(name.removeprefix("round-")) for _, name in found if name.startswith("round-"))
                if found != {(ROOT, name): expected(chunks) for name, chunks in state(number).items()}:
                    errors.append(f"generation {reader.generation} mixes rounds, near {number}")
                seen.append(reader.generation)
        except Exception as error:
            errors.append(repr(error))
            seen.append(-1)
    results.put((errors, seen))
