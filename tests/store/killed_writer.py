"""Write a second generation and die at the N-th passage of a fault point: `killed_writer.py STORE POINT N`."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from samples import ledger, open_store, put, sample

from comem_cli.store import durable

passed = 0


def second_run(path: Path) -> None:
    """Replace one document, add another over two shards, drop what is left over."""
    with open_store(path) as writer:
        put(writer, "a", [sample(3), sample(4, 20)])
        writer.commit(ledger())
        put(writer, "c", [sample(5)])
        writer.commit(ledger())
        writer.drop_unplaced()


def first_run(path: Path) -> None:
    with open_store(path) as writer:
        put(writer, "a", [sample(1), sample(2)])
        writer.commit(ledger())
        put(writer, "b", [sample(6)])
        writer.commit(ledger())


if __name__ == "__main__":
    store, point, number = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])

    def die(name: str) -> None:
        global passed
        if name == point:
            passed += 1
            if passed == number:
                os.kill(os.getpid(), signal.SIGKILL)

    durable.fault_point = die
    (first_run if len(sys.argv) > 4 else second_run)(store)
