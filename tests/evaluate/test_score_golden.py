import pytest

from comem_cli.evaluate.score import SCORERS
from tests.evaluate.golden_scores import GOLDEN, Golden, table


@pytest.mark.parametrize("golden", GOLDEN, ids=lambda one: f"{one.scorer}-{one.case}")
def test_golden_case(golden: Golden) -> None:
    scorer = SCORERS[golden.scorer]
    assert scorer.score(golden.prediction, golden.example) == pytest.approx(golden.expected, abs=1e-12)
    assert scorer.settled(golden.prediction, golden.example) is golden.settled


def test_the_golden_cases_cover_every_scorer_and_an_empty_prediction() -> None:
    assert {one.scorer for one in GOLDEN} == set(SCORERS)
    empty = {one.scorer for one in GOLDEN if not one.prediction.strip()}
    assert empty == set(SCORERS) - {"babilong_qa2", "babilong_qa5"}  # the same rule as babilong_qa1


def test_the_golden_table_holds_a_line_a_case() -> None:
    assert len(table().splitlines()) == len(GOLDEN) + 2
