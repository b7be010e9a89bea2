"""After how many questions a store pays: Q* = (W - I0) / (T0 - T), measured on the store itself. DESIGN.md §7.

T0 (replay) and T (comem) are the medians over repetitions of the mean time a question, each from fetch to exactly G
new tokens over identical packs (`measure.timing`). The 95 % interval of T0 - T is a paired bootstrap over repetitions:
it covers the noise of timing on these questions, not other questions, and W and I0 are taken as measured. Where it
spans zero the answer is "unresolved", where it lies wholly at or below zero "never". The paper's §5.3 and Table 5.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from comem_cli.measure.one_time import RawTime, WriteTime
from comem_cli.measure.statistics import Interval, median, paired_interval
from comem_cli.measure.timing import Run, by_repetition

Verdict = Literal["finite", "never", "unresolved"]


@dataclass(frozen=True)
class Crossing:
    """Say after how many questions a store pays; `queries` is None where that is unresolved, inf for never."""

    verdict: Verdict
    queries: float | None
    low: float
    high: float


@dataclass(frozen=True)
class Row:
    """Hold the break-even at one answer length; times in s a question, `saving` the interval of T0 - T."""

    new_tokens: int
    cost_s: float  # W - I0
    replay_s: float  # T0
    comem_s: float  # T
    saving: Interval
    crossing: Crossing

    @property
    def saving_s(self) -> float:
        """Return T0 - T."""
        return self.replay_s - self.comem_s

    def total(self, questions: int) -> tuple[float, Interval]:
        """Return the s that the store saves over that many questions, W and I0 included, with its interval."""
        low, high = (questions * bound - self.cost_s for bound in (self.saving.low, self.saving.high))
        return questions * self.saving_s - self.cost_s, Interval(low, high)


def crossing(cost_s: float, saving_s: float, saving: Interval) -> Crossing:
    """Solve for Q*: cost_s = W - I0, saving_s = T0 - T with its interval, all in s.

    A store that costs no more than raw text and saves time pays from the first question: 0.
    """
    if saving.high <= 0:
        return Crossing("never", math.inf, math.inf, math.inf)
    low = max(0.0, cost_s / saving.high)
    if saving.low <= 0 or saving_s <= 0:
        return Crossing("unresolved", None, low, math.inf)
    return Crossing("finite", max(0.0, cost_s / saving_s), low, max(0.0, cost_s / saving.low))


def solve(runs: Sequence[Run], lengths: Sequence[int], write: WriteTime, raw: RawTime, seed: int) -> list[Row]:
    """Work out one row an answer length from timed runs of both arms."""
    cost = write.seconds - raw.seconds
    rows = []
    for length in lengths:
        replay, comem = (by_repetition(runs, arm, length) for arm in ("replay", "comem"))
        saving = paired_interval(replay, comem, seed=seed)
        t0, t = median(replay), median(comem)
        rows.append(Row(length, cost, t0, t, saving, crossing(cost, t0 - t, saving)))
    return rows


def sentence(row: Row, questions: int) -> str:
    """Say what that many questions cost or save, and after how many the store pays."""
    total, bounds = row.total(questions)
    many = f"{questions:,} question{'s' if questions != 1 else ''}"
    if bounds.low > 0:
        at_n = f"at {many} the store saves {seconds(total)} ({_span(bounds.low, bounds.high)})"
    elif bounds.high < 0:
        more = f"{seconds(-total)} more than replay of raw text ({_span(-bounds.high, -bounds.low)})"
        at_n = f"at {many} the store costs {more}"
    else:
        at_n = f"at {many} it is unresolved whether the store saves time ({_span(bounds.low, bounds.high)} saved)"
    return f"G = {row.new_tokens:,}: {at_n}; {_pays(row.crossing)}."


def _span(low: float, high: float) -> str:
    return f"95 % interval {seconds(low)} to {seconds(high)}"


def _pays(found: Crossing) -> str:
    if found.verdict == "never":
        return "it never pays, because a question is no faster"
    if found.queries is None:
        least = f", though not before {math.ceil(found.low):,}" if found.low > 1 else ""
        return f"after how many questions it pays is unresolved{least}"
    if found.queries == 0:
        return "it pays from the first question"
    count = math.ceil(found.queries)
    return f"it pays after {count:,} question{'s' if count != 1 else ''}"


def seconds(value: float) -> str:
    """Write a time with three significant digits, from ms up to days."""
    size = abs(value)
    for unit, factor, least in (("d", 86400, 172800), ("h", 3600, 7200), ("min", 60, 300), ("s", 1, 1)):
        if size >= least:
            return f"{_digits(value / factor)} {unit}"
    return f"{_digits(value * 1e3)} ms"


def _digits(value: float) -> str:
    """Write three significant digits, without an exponent."""
    places = max(0, 2 - math.floor(math.log10(abs(value)))) if value else 0
    return f"{value:,.{min(places, 3)}f}"


def row_json(row: Row, questions: int | None) -> dict[str, Any]:
    """Return a row as JSON values, unrounded; null stands for infinite or unresolved, `verdict` says which."""
    found: dict[str, Any] = {
        "new_tokens": row.new_tokens,
        "replay_s": row.replay_s,
        "comem_s": row.comem_s,
        "saving_s": row.saving_s,
        "saving_low_s": row.saving.low,
        "saving_high_s": row.saving.high,
        "verdict": row.crossing.verdict,
        "q_star": _finite(row.crossing.queries),
        "q_star_low": _finite(row.crossing.low),
        "q_star_high": _finite(row.crossing.high),
    }
    if questions is not None:
        total, bounds = row.total(questions)
        at_n = {"questions": questions, "saving_s": total, "low_s": bounds.low, "high_s": bounds.high}
        found["at_questions"] = at_n | {"sentence": sentence(row, questions)}
    return found


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
