"""Which arms are worth a look, and the one that `comem tune` recommends.

An arm meets the budget where LM tax <= 1 + loss and, where replay copies any needle, the share of its copies that are
kept is >= 1 - copy loss; the measured values count, and the sentence says where an interval reaches past the budget.
Of these the deepest split is recommended, then the cheapest Write, then the fewest bytes a token. With a number of
questions N it is the arm with the least W + N * T instead (Write of the whole corpus, T a question), and replay where
N * T0 is less still. Quantising, a few ms a chunk, is in neither.

An arm is dominated where another one is at least as deep, loses no more in LM tax and in copies, writes no dearer,
takes no more bytes, and is better in one of these.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from comem_cli.evaluate.tune_row import TuneRow
from comem_cli.store.row_layout import INT8

Verdict = Literal["store", "replay is cheaper", "none meets the budget"]


@dataclass(frozen=True)
class Budget:
    """Hold what may be lost and what it is for: shares as in `TuneOptions`, tokens of the corpus, T0 in s."""

    loss: float
    copy_loss: float
    questions: int | None
    tokens: int
    replay_s: float


@dataclass(frozen=True)
class Recommendation:
    """Hold the verdict, its row, and whether the intervals of that row stay inside the budget too."""

    verdict: Verdict
    row: TuneRow | None
    certain: bool


def meets(row: TuneRow, budget: Budget) -> bool:
    """Tell whether the measured values of an arm are within the budget."""
    return row.lm_tax.value <= 1 + budget.loss and (row.kept is None or row.kept.value >= 1 - budget.copy_loss)


def certainly_meets(row: TuneRow, budget: Budget) -> bool:
    """Tell whether the 95 % intervals are within the budget too; an unknown one is not."""
    if row.lm_tax.high is None or row.lm_tax.high > 1 + budget.loss:
        return False
    return row.kept is not None and row.kept.low is not None and row.kept.low >= 1 - budget.copy_loss


def total_s(row: TuneRow, budget: Budget) -> float:
    """Return W + N * T in s; N counts 0 where it is unknown."""
    return budget.tokens * row.write.token_s + (budget.questions or 0) * row.question_s


def recommend(rows: Sequence[TuneRow], budget: Budget) -> Recommendation:
    """Choose by the rule above."""
    good = [row for row in rows if meets(row, budget)]
    if not good:
        return Recommendation("none meets the budget", None, False)
    if budget.questions is None:
        best = min(good, key=lambda row: (-row.arm.split, row.write.token_s, row.token_bytes, row.lm_tax.value))
        return Recommendation("store", best, certainly_meets(best, budget))
    best = min(good, key=lambda row: (total_s(row, budget), row.token_bytes, row.lm_tax.value))
    if total_s(best, budget) >= budget.questions * budget.replay_s:
        return Recommendation("replay is cheaper", best, certainly_meets(best, budget))
    return Recommendation("store", best, certainly_meets(best, budget))


def frontier(rows: Sequence[TuneRow]) -> list[bool]:
    """Tell for each row whether no other one dominates it."""
    axes = [_axes(row) for row in rows]
    return [not any(_dominates(other, one) for other in axes) for one in axes]


def _axes(row: TuneRow) -> tuple[float, ...]:
    """Return what is compared, less is better."""
    kept = row.kept.value if row.kept is not None else 0.0  # the same needles for every row: unknown in all or none
    return -row.arm.split, row.lm_tax.value, -kept, row.write.token_s, row.token_bytes


def _dominates(one: tuple[float, ...], other: tuple[float, ...]) -> bool:
    return one != other and all(a <= b for a, b in zip(one, other, strict=True))


def sentence(found: Recommendation, rows: Sequence[TuneRow], budget: Budget, corpus: str) -> str:
    """Say what to do, and how sure that is; corpus: what to name in the command."""
    row = found.row
    if row is None:
        return (
            f"none of these meets the budget{_nearly(rows, budget)}: store at split 0, or train an adapter: "
            f"comem distill {corpus} --split J --out DIR"
        )
    if found.verdict == "replay is cheaper":
        asked = budget.questions or 0
        return (
            f"for {asked:,} questions replay is cheaper ({asked * budget.replay_s:.4g} s against "
            f"{total_s(row, budget):.4g} s with {row.name}): store at split 0"
        )
    arm = row.arm
    mode = f"--overlap {arm.overlap}" if arm.overlap else f"--mode {arm.mode}"
    mode += " --residual-dtype int8" if arm.residual_dtype == INT8 else ""
    text = f"recommended: {row.name} (comem ingest {corpus} --split {arm.split} {mode}"
    text += f", then ask with --adapter {arm.adapter})" if arm.adapter is not None else ")"
    return text + ("" if found.certain else f"; {_doubt(row, budget)}")


def _nearly(rows: Sequence[TuneRow], budget: Budget) -> str:
    """Name the deepest arm that copying alone keeps out, with the needles that decided it."""
    near = [row for row in rows if row.lm_tax.value <= 1 + budget.loss and row.copying]
    if not near:
        return ""
    best = min(near, key=lambda row: (-row.arm.split, row.write.token_s))
    assert best.copying is not None
    kept = f"{best.copying.both} of the {best.copying.by_replay} needles that replay copies"
    return f" ({best.name} would by LM tax, but keeps {kept})"


def _doubt(row: TuneRow, budget: Budget) -> str:
    """Say which measurement leaves the recommendation open."""
    if row.lm_tax.high is None or row.lm_tax.high > 1 + budget.loss:
        return "the interval of its LM tax reaches past the budget: more --packs would tell"
    if row.copying is None:
        return "copying was not measured"
    if row.kept is None:
        return f"copying could not be judged, because replay itself copies none of {row.copying.n} needles"
    return "the interval of the copies kept reaches past the budget: more --needles would tell"
