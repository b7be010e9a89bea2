"""What a row of the fault table is: a fault, the cases to try, and how to run one.

A case is a name. With the run's seed it fixes everything that the case does, so any case can be run again alone:
`python -m tests.faults --rows ROW --seed SEED --case NAME`.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol


@dataclass(frozen=True)
class Outcome:
    """Tell whether what must hold did hold, and if not, what did not. skipped: the case cannot run on this machine."""

    survived: bool
    detail: str = ""
    skipped: bool = False


@dataclass(frozen=True)
class Prepared:
    """What all cases share: a folder of base stores, the run's seed, and what `prepare` of a row left, by its name."""

    folder: Path
    seed: int
    full: bool = False
    kept: dict[str, object] = field(default_factory=dict)

    def rng(self, row: int, case: str) -> random.Random:
        """Return the random numbers of one case."""
        return random.Random(f"{self.seed}/{row}/{case}")


class Run(Protocol):
    """Runs one case in a process of its own, in an empty folder of its own."""

    def __call__(self, prepared: Prepared, case: str, folder: Path) -> Outcome:
        """Return the outcome; an exception counts as not survived."""
        ...


@dataclass(frozen=True)
class Row:
    """One row of the table.

    cases lists the names of a run, after `needs` have been prepared (names of `tests.faults.bases.MAKE`). batch: cases
    that share a process, where starting one is dear (Java). seconds: after which a case counts as hung.
    """

    number: int
    fault: str
    cases: Callable[[Prepared], list[str]]
    run: Run
    needs: tuple[str, ...] = ()
    batch: int = 1
    seconds: float = 300.0


class NotHeldError(Exception):
    """Something that must hold did not."""


def must(holds: object, what: str) -> None:
    """Raise NotHeldError naming `what` unless it holds."""
    if not holds:
        raise NotHeldError(what)


def numbered(name: str, count: int) -> list[str]:
    """Return NAME-0 ... NAME-(count - 1)."""
    return [f"{name}-{number}" for number in range(count)]
