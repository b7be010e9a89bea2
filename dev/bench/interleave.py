"""Time arms in turns in one process, and report ratios of pairs with their spread."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import median, quantiles
from typing import Any

Times = dict[str, list[float]]


@dataclass(frozen=True)
class Figure:
    """Hold one figure: the median of `n` paired ratios with their quartiles, and the bar that it is held against.

    better: "higher" or "lower" than the bar, "" where there is none. facts: whatever else was seen, units in the names.
    """

    name: str
    value: float
    low: float
    high: float
    n: int
    bar: float | None = None
    better: str = ""
    facts: Mapping[str, Any] | None = None

    @property
    def met(self) -> bool | None:
        """Tell whether the bar is met; None without one."""
        if self.bar is None:
            return None
        return self.value >= self.bar if self.better == "higher" else self.value <= self.bar

    def to_json(self) -> dict[str, Any]:
        """Return the fields and `met`."""
        return {**asdict(self), "met": self.met}


def interleaved(
    arms: Mapping[str, Callable[[], float | None]], repeat: int, *, warm: int = 1, seed: int = 0, cpu: bool = False
) -> Times:
    """Run each arm `warm` times and then `repeat` times, in an order drawn anew each time; s of wall or CPU time.

    An arm that returns a number is taken at its word; it timed its own part.
    """
    clock = time.process_time if cpu else time.perf_counter
    draw, times = random.Random(seed), {name: list[float]() for name in arms}
    for repetition in range(-warm, repeat):
        for name in draw.sample(list(arms), len(arms)):
            begin = clock()
            own = arms[name]()
            passed = clock() - begin
            if repetition >= 0:
                times[name].append(passed if own is None else own)
    return times


def ratio(
    name: str,
    first: Sequence[float],
    second: Sequence[float],
    *,
    bar: float | None = None,
    better: str = "higher",
    facts: Mapping[str, Any] | None = None,
) -> Figure:
    """Make the figure first / second, element i of both from one turn."""
    ratios = [a / b for a, b in zip(first, second, strict=True)]
    low, _, high = quantiles(ratios, n=4) if len(ratios) > 1 else ratios * 3
    seen: dict[str, Any] = {"first_s": round(median(first), 6), "second_s": round(median(second), 6)}
    seen |= {"first_runs_s": [round(t, 6) for t in first], "second_runs_s": [round(t, 6) for t in second]}
    kind = "" if bar is None else better
    return Figure(name, median(ratios), low, high, len(ratios), bar, kind, seen | dict(facts or {}))
