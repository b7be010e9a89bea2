"""Two writers at once, round after round: one commits, the other is refused with the holder's name, no commit is lost.

run(folder, rounds=20, seed=0) -> Outcome
"""

from __future__ import annotations

import os
import random
import time
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any

from comem_cli.errors import LockedError
from tests.store.samples import contents, expected, open_store, put, sample


@dataclass(frozen=True)
class Outcome:
    """Rounds run, how often a writer was refused, refusals that did not name the other, and commits that are lost."""

    rounds: int
    refused: int
    unnamed: tuple[str, ...]
    lost: int


def run(folder: Path, rounds: int = 20, seed: int = 0) -> Outcome:
    """Let two processes write to the same new store in every round, each until its own commit is in."""
    path = folder / "store"
    open_store(path).close()
    context = get_context("fork")
    barrier, results = context.Barrier(2), context.Queue()
    args = [(path, who, rounds, seed, barrier, results) for who in range(2)]
    processes = [context.Process(target=_writer, args=some) for some in args]
    for process in processes:
        process.start()
    found = [results.get(timeout=600) for _ in processes]
    for process in processes:
        process.join()
    pids = {pid for pid, _ in found}
    messages = [message for _, some in found for message in some]
    unnamed = [text for text in messages if not any(f"process {pid} (" in text for pid in pids)]
    wanted = {("/src", f"{who}-{n}"): expected([sample(10 * n + who)]) for who in range(2) for n in range(rounds)}
    held = contents(path)
    lost = sum(held.get(name) != chunks for name, chunks in wanted.items())
    return Outcome(rounds, len(messages), tuple(unnamed), lost)


def _writer(path: Path, who: int, rounds: int, seed: int, barrier: Barrier, results: Any) -> None:
    rng, refused = random.Random(seed * 2 + who), []
    for number in range(rounds):
        barrier.wait(timeout=600)
        while True:
            try:
                with open_store(path) as writer:
                    put(writer, f"{who}-{number}", [sample(10 * number + who)])
                    time.sleep(rng.uniform(0, 0.01))
                    writer.commit()
                break
            except LockedError as error:
                assert error.exit_code == 11
                refused.append(error.message)
                time.sleep(rng.uniform(0, 0.01))
    results.put((os.getpid(), refused))
