"""The recommendation rule as a table, and which arms are dominated."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from comem_cli.evaluate.arms import Arm
from comem_cli.evaluate.tune_choice import Budget, frontier, meets, recommend, sentence, total_s
from comem_cli.evaluate.tune_row import Copying, TuneRow, WriteCost
from comem_cli.measure.crossing import Crossing
from comem_cli.measure.inference import Estimate, proportion_interval

BUDGET = Budget(loss=0.02, copy_loss=0.05, questions=None, tokens=1000, replay_s=1.0)


def about(value: float, width: float = 0.005, n: int = 10) -> Estimate:
    return Estimate(value, value - width, value + width, n)


def row(
    split: int, mode: str = "chunk", tax: float = 1.0, kept: int | None = 400, write_ms: float = 1.0, s: float = 0.5
) -> TuneRow:
    """kept: of 400 that replay copies; None where it copies none."""
    copying = Copying(500, kept or 0, 400 if kept is not None else 0, kept or 0, None, about(0.0), 1.0)
    if kept is not None:
        copying = replace(copying, kept=proportion_interval(kept, 400))
    arm = Arm(split, mode, 32 if mode == "overlap" else 0)
    write = WriteCost(write_ms / 1e3, about(1.0), 1.0)
    crossing = Crossing("finite", 3.0, 2.0, 4.0)
    return TuneRow(
        arm, None, 100, about(tax), about(0.9), about(0.1), None, copying, about(1.5), s, 128, write, crossing
    )


@pytest.mark.parametrize(
    ("rows", "chosen"),
    [
        ([row(6), row(10), row(12)], 2),  # the deepest
        ([row(6), row(10), row(12, tax=1.0201)], 1),  # LM tax above the budget
        ([row(6), row(10, kept=379), row(12, kept=0)], 0),  # copies kept below 95 %
        ([row(6), row(10, kept=380)], 1),  # exactly 95 %
        ([row(6, tax=1.02)], 0),  # exactly 1.02
        ([row(10, write_ms=2), row(10, "document", write_ms=1.5), row(6)], 1),  # as deep, cheaper to write
        ([row(10, tax=1.01), row(10, "document", tax=1.0)], 1),  # as deep and as cheap: the smaller loss
        ([row(6, kept=None), row(12, kept=None)], 1),  # replay copies nothing: LM tax alone
        ([row(6, tax=1.5), row(10, tax=1.5)], None),
        ([row(6, tax=1.5), row(10, kept=10)], None),
    ],
)
def test_the_deepest_within_the_budget_is_recommended(rows: list[TuneRow], chosen: int | None) -> None:
    found = recommend(rows, BUDGET)
    assert found.row is (None if chosen is None else rows[chosen])
    assert found.verdict == ("none meets the budget" if chosen is None else "store")
    assert [meets(one, BUDGET) for one in rows].count(True) == 0 or chosen is not None


def test_of_two_that_are_as_deep_and_as_cheap_the_one_of_fewer_bytes_is_recommended() -> None:
    plain, other = row(10), replace(row(10, tax=1.01), token_bytes=100)
    int8 = replace(other, arm=Arm(10, residual_dtype="int8"))
    found = recommend([plain, int8], BUDGET)
    assert found.row is int8
    assert "--split 10 --mode chunk --residual-dtype int8" in sentence(found, [plain, int8], BUDGET, "docs")
    assert frontier([plain, int8]) == [True, True]
    assert recommend([plain, replace(int8, lm_tax=about(1.021))], BUDGET).row is plain


@pytest.mark.parametrize(
    ("questions", "verdict", "split"),
    [
        # 1,000 tokens: W 1 s at split 6 and 4 s at 12; T 0.8 s and 0.5 s, replay 1 s
        (4, "replay is cheaper", 6),  # 4.2 s and 6 s against 4 s
        (6, "store", 6),  # 5.8 s and 7 s against 6 s
        (11, "store", 12),  # 9.8 s and 9.5 s
        (1000, "store", 12),
    ],
)
def test_with_a_number_of_questions_the_total_decides(questions: int, verdict: str, split: int) -> None:
    rows = [row(6, s=0.8, write_ms=1), row(12, s=0.5, write_ms=4), row(15, tax=1.5, s=0.1, write_ms=0.1)]
    budget = replace(BUDGET, questions=questions)
    found = recommend(rows, budget)
    assert (found.verdict, found.row and found.row.arm.split) == (verdict, split)
    assert total_s(rows[0], budget) == pytest.approx(1 + 0.8 * questions)


def test_a_recommendation_is_certain_where_its_intervals_are_in_the_budget() -> None:
    assert recommend([row(6, tax=1.01, kept=400)], BUDGET).certain
    assert not recommend([row(6, tax=1.018, kept=400)], BUDGET).certain  # the interval of the tax ends at 1.023
    assert not recommend([row(6, kept=381)], BUDGET).certain  # Wilson's interval begins below 0.95
    assert not recommend([row(6, kept=None)], BUDGET).certain
    one = replace(row(6), lm_tax=Estimate(1.0, None, None, 1))
    assert not recommend([one], BUDGET).certain


def test_the_sentence_names_the_command_or_the_way_out() -> None:
    def said(rows: list[TuneRow], budget: Budget = BUDGET) -> str:
        return sentence(recommend(rows, budget), rows, budget, "docs")

    assert said([row(6)]) == "recommended: j=6 chunk (comem ingest docs --split 6 --mode chunk)"
    assert "--split 6 --overlap 32)" in said([row(6, "overlap")])
    adapted = replace(row(12), arm=Arm(12, adapter=Path("a")), adapter="a")
    assert said([adapted]).endswith("(comem ingest docs --split 12 --mode chunk, then ask with --adapter a)")
    assert "more --needles" in said([row(6, kept=381)])
    assert "more --packs" in said([row(6, tax=1.018)])
    assert "copies none of 500" in said([row(6, kept=None)])
    assert "not measured" in said([replace(row(6), copying=None)])
    assert said([row(6, tax=2)]).startswith("none of these meets the budget: store at split 0, or train an adapter")
    near = said([row(6, kept=0), row(12, tax=2)])
    assert near.startswith("none of these meets the budget (j=6 chunk would by LM tax, but keeps 0 of the 400 needles")
    assert "for 1 questions replay is cheaper (1 s against 1.5 s" in said([row(6)], replace(BUDGET, questions=1))


def test_dominated_arms_are_marked() -> None:
    rows = [
        row(6, tax=1.01),
        row(6, "document", tax=1.00, write_ms=2),  # dearer, but loses less
        row(6, "overlap", tax=1.01, write_ms=1.1),  # dearer and no better: dominated by the first
        row(10, tax=1.01),  # deeper than the first at the same cost and loss: dominates it
        row(10, "document", tax=1.01, kept=300),
        row(12, tax=1.2, kept=0, write_ms=3),  # the deepest
    ]
    assert frontier(rows) == [False, True, False, True, False, True]
    assert frontier([row(6), row(6)]) == [True, True]  # equals do not dominate each other


@pytest.mark.parametrize(
    "values",
    [{"seed": -1}, {"loss": float("nan")}, {"copy_loss": float("nan")}, {"packs": 10**8}, {"loss": float("inf")}],
)
def test_options_out_of_range_are_refused(values: dict[str, float]) -> None:
    from comem_cli.errors import UsageError
    from comem_cli.evaluate.tune_options import TuneOptions

    with pytest.raises(UsageError):
        TuneOptions(**values).checked()  # type: ignore[arg-type]
