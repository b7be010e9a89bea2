from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from comem_cli.measure.crossing import Row, crossing, row_json, seconds, sentence, solve
from comem_cli.measure.one_time import RawTime, WriteTime
from comem_cli.measure.statistics import Interval
from comem_cli.measure.timing import Run, by_repetition


def row(cost: float, replay: float, comem: float, low: float, high: float) -> Row:
    saving = Interval(low, high)
    return Row(32, cost, replay, comem, saving, crossing(cost, replay - comem, saving))


def test_the_papers_equation():
    # Table 5, 32k CPU at G = 1: W = 2.253 s, I0 = 2.16 ms, Q* = 8.9
    found = crossing(2.253 - 0.00216, 0.2529, Interval(0.25, 0.26))
    assert found.verdict == "finite"
    assert found.queries == pytest.approx(8.9, abs=0.01)
    assert (found.low, found.high) == (pytest.approx(2.25084 / 0.26), pytest.approx(2.25084 / 0.25))


@pytest.mark.parametrize("high", [-0.1, 0.0])
def test_an_interval_wholly_at_or_below_zero_means_never(high):
    found = crossing(10.0, -0.5, Interval(-1.0, high))
    assert found.verdict == "never"
    assert found.queries == found.low == found.high == math.inf


@pytest.mark.parametrize("low", [-0.1, 0.0])
def test_an_interval_that_spans_zero_is_unresolved_with_a_lower_bound(low):
    found = crossing(10.0, 0.2, Interval(low, 0.5))
    assert (found.verdict, found.queries, found.low, found.high) == ("unresolved", None, 20.0, math.inf)


def test_a_write_no_dearer_than_raw_text_pays_from_the_first_question():
    found = crossing(-1.0, 0.2, Interval(0.1, 0.5))
    assert (found.verdict, found.queries, found.low, found.high) == ("finite", 0.0, 0.0, 0.0)
    assert crossing(-1.0, -0.2, Interval(-0.5, -0.1)).verdict == "never"


@given(st.floats(0.01, 1e4), st.floats(0.001, 10), st.floats(0.001, 10), st.floats(0.001, 10))
def test_at_break_even_both_arms_have_cost_the_same(cost, a, b, c):
    low, saving, high = sorted((a, b, c))
    found = crossing(cost, saving, Interval(low, high))
    assert found.queries is not None
    assert found.low <= found.queries <= found.high
    assert found.queries * saving == pytest.approx(cost)


def test_the_sentence_says_what_many_questions_save_and_when_it_pays():
    assert sentence(row(10.0, 3.0, 2.0, 0.9, 1.1), 100) == (
        "G = 32: at 100 questions the store saves 90.0 s (95 % interval 80.0 s to 100 s); it pays after 10 questions."
    )
    assert (
        "at 1 question the store costs 9.00 s more than replay of raw text (95 % interval 8.90 s to 9.10 s); "
    ) in sentence(row(10.0, 3.0, 2.0, 0.9, 1.1), 1)
    assert "at 10 questions it is unresolved whether" in sentence(row(10.0, 3.0, 2.0, 0.9, 1.1), 10)
    assert "unresolved, though not before 10." in sentence(row(10.0, 3.0, 2.0, -0.1, 1.1), 5)
    assert "it never pays" in sentence(row(10.0, 2.0, 3.0, -1.1, -0.9), 5)
    assert "it pays from the first question" in sentence(row(-1.0, 3.0, 2.0, 0.9, 1.1), 5)


def test_times_are_written_with_three_digits():
    written = [seconds(value) for value in (0.0, 0.00012, 0.123456, -2.5, 99.96, 301.0, 7200.0, 200_000.0)]
    assert written == ["0 ms", "0.120 ms", "123 ms", "-2.50 s", "100.0 s", "5.02 min", "2.00 h", "2.31 d"]


def test_json_has_no_infinity():
    never = row_json(row(10.0, 2.0, 3.0, -1.1, -0.9), 5)
    assert (never["verdict"], never["q_star"], never["q_star_low"], never["q_star_high"]) == ("never", None, None, None)
    assert never["at_questions"]["saving_s"] == -15.0
    unresolved = row_json(row(10.0, 3.0, 2.0, -0.1, 1.0), None)
    assert (unresolved["q_star"], unresolved["q_star_low"], unresolved["q_star_high"]) == (None, 10.0, None)
    assert "at_questions" not in unresolved


def runs(replay: list[float], comem: list[float]) -> list[Run]:
    """One question a repetition: fetch 10 ms, query Write 20 ms, Read what is given in s, 5 ms a further token."""
    return [
        Run(number, 0, arm, 0, 10.0, 20.0, s * 1e3, {1: 0.0, 3: 10.0})
        for arm, some in (("replay", replay), ("comem", comem))
        for number, s in enumerate(some)
    ]


def test_a_row_is_the_median_over_repetitions_with_decoding_up_to_its_length():
    write = WriteTime(10.0, 9.0, 8.0, 1.0, 100, 100, ("write",), ("cpu",), ("bf16",))
    raw = RawTime(0.5, 0.5, 100, 100, "sources")
    timed = runs([3.0, 3.2, 9.0, 3.1, 3.3], [2.0, 2.1, 7.0, 2.2, 1.9])
    one, three = solve(timed, [1, 3], write, raw, seed=0)
    assert (one.replay_s, one.comem_s) == (pytest.approx(3.23), pytest.approx(2.13))
    assert (three.replay_s, three.comem_s) == (pytest.approx(3.24), pytest.approx(2.14))
    assert one.crossing.queries == pytest.approx((10.0 - 0.5) / 1.1)
    assert one.saving.low > 0
    swapped = solve(runs([2.0, 2.1, 7.0, 2.2, 1.9], [3.0, 3.2, 9.0, 3.1, 3.3]), [1], write, raw, seed=0)
    assert swapped[0].crossing.verdict == "never"


def test_several_questions_count_by_their_mean():
    timed = [
        Run(repetition, question, "comem", 0, 0.0, 0.0, 1e3 * ms, {1: 0.0})
        for repetition, times in enumerate(([1.0, 3.0], [2.0, 6.0]))
        for question, ms in enumerate(times)
    ]
    assert by_repetition(timed, "comem", 1) == [2.0, 4.0]
