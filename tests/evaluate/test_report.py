"""Rows against sums by hand; what must not be mixed is refused."""

from __future__ import annotations

import random
from dataclasses import replace
from functools import cache

import pytest

from comem_cli.errors import UsageError
from comem_cli.evaluate.report import macro_rows, report
from comem_cli.measure.cell_inference import hierarchical_difference, leave_one_cell_out, stratified_difference
from comem_cli.measure.inference import mcnemar_exact, mean_interval, paired_difference, proportion_interval
from tests.evaluate.sample_records import CHUNK, OVERLAP, REPLAY, a_run, record


@cache
def whole():
    return report(a_run())


def row(found, arm, cell="niah:2048"):
    return next(one for one in found.cells if (one.arm, one.cell) == (arm, cell))


def small():
    """Six examples; comem loses two of replay's four and wins one."""
    replay, comem = [1.0, 1.0, 1.0, 1.0, 0.0, 0.0], [1.0, 1.0, 0.0, 0.0, 1.0, 0.0]
    hits = [True, True, True, False, None, True]
    found = []
    for i, (first, second, hit) in enumerate(zip(replay, comem, hits, strict=True)):
        given = {"hit": hit, "recall": None if hit is None else 0.5, "pack_tokens": 100 * i}
        found += [record(str(i), first, **given), record(str(i), second, CHUNK, **given)]
    return found


def test_a_row_is_the_sums_by_hand():
    found = row(report(small()), CHUNK)
    assert (found.n, found.missing, found.errors) == (6, 0, 0)
    assert found.score == proportion_interval(3, 6)
    assert found.interval == "wilson"
    assert found.hit_rate == pytest.approx(4 / 5)  # one of six is not known
    assert (found.hit_score, found.hit_n) == (pytest.approx(2 / 4), 4)
    assert found.recall == 0.5
    assert found.pack_tokens == 250


def test_a_comparison_is_the_counts_by_hand():
    found = row(report(small()), CHUNK).against
    assert found.difference == paired_difference([1, 1, 0, 0, 1, 0], [1, 1, 1, 1, 0, 0])
    assert (found.discordant.n, found.discordant.gained, found.discordant.lost) == (6, 1, 2)
    assert found.discordant.p == mcnemar_exact(1, 2) == 1.0
    assert (found.kept, found.kept_n) == (0.5, 4)
    assert found.other_packs == 0
    assert row(report(small()), REPLAY).against is None


def test_what_an_arm_lacks_is_counted_and_pairs_are_those_of_both():
    records = [one for one in small() if (one.arm, one.example) not in ((CHUNK, "0"), (REPLAY, "5"), (REPLAY, "4"))]
    found = report(records)
    comem, replay = row(found, CHUNK), row(found, REPLAY)
    assert (comem.n, comem.missing, replay.n, replay.missing) == (5, 1, 4, 2)
    assert comem.against.n == 3
    assert comem.against.difference.value == pytest.approx(-2 / 3)
    assert (comem.against.kept, comem.against.kept_n) == (pytest.approx(1 / 3), 3)


def test_packs_that_differ_are_counted():
    records = [replace(one, chunks=("b", "a")) if one.key[1:] == ("3", CHUNK) else one for one in small()]
    assert row(report(records), CHUNK).against.other_packs == 1


def test_errors_count_as_wrong_but_not_as_packs():
    records = [record("0", 1.0), record("1", 0.0, error="no chunk shares a term", hit=False, chunks=(), pack_tokens=0)]
    found = row(report(records), REPLAY)
    assert (found.errors, found.score.value, found.pack_tokens, found.hit_score) == (1, 0.5, 1000, 1.0)


def test_partial_scores_have_no_discordant_counts():
    found = row(whole(), CHUNK, "vt:2048")
    assert found.interval == "items"
    assert found.against.discordant is None
    assert found.against.kept_n > 0


def test_examples_of_one_group_are_drawn_together():
    found = row(whole(), REPLAY, "qa")
    scores = {one.example: one.score for one in a_run() if (one.cell, one.arm) == ("qa", REPLAY)}
    labels = [number // 5 for number in range(20)]
    assert found.interval == "clusters"
    assert found.score == mean_interval([scores[str(number)] for number in range(20)], labels)


def test_a_macro_row_is_the_mean_over_cells_and_over_no_other_cohort():
    found = whole()
    assert {one.cohort for one in found.macros} == {"ruler"}  # qa has one cell
    macro = next(one for one in found.macros if one.arm == CHUNK)
    cells = ["niah:2048", "niah:16384", "vt:2048"]
    rows = [row(found, CHUNK, cell) for cell in cells]
    assert macro.score.value == pytest.approx(sum(one.score.value for one in rows) / 3)
    assert (macro.n, macro.cells, macro.all_cells, macro.against.n) == (60, 3, 3, 60)

    scores = {(one.cell, one.arm, one.example): one.score for one in a_run()}
    pairs = {
        cell: tuple([scores[cell, arm, str(number)] for number in range(20)] for arm in (CHUNK, REPLAY))
        for cell in cells
    }
    assert macro.against.difference == stratified_difference(pairs)
    assert macro.against.hierarchical == hierarchical_difference(pairs)
    left = leave_one_cell_out(pairs).values()
    assert macro.against.left_out == (min(left), max(left))
    lost = sum(a < b for cell in cells[:2] for a, b in zip(*pairs[cell], strict=True))
    assert (macro.against.discordant.n, macro.against.discordant.lost) == (40, lost)


def test_an_arm_without_a_cell_has_no_macro_score_but_a_difference_over_its_cells():
    records = [one for one in a_run() if (one.arm, one.cell) != (CHUNK, "vt:2048")]
    macro = next(one for one in report(records).macros if one.arm == CHUNK)
    assert (macro.score, macro.cells, macro.all_cells, macro.missing) == (None, 2, 3, 20)
    assert (macro.against.cells, macro.against.n) == (2, 40)


def test_the_order_of_the_records_changes_nothing():
    records = a_run()
    found = whole()
    random.Random(0).shuffle(records)
    assert report(records) == found
    assert [one.cell for one in found.cells[3:]] == [
        cell for cell in ("niah:2048", "niah:16384", "vt:2048") for _ in "123"
    ]
    assert [one.arm for one in found.cells[:3]] == [REPLAY, CHUNK, OVERLAP]


def test_another_arm_can_be_the_reference_and_none_need_be_there():
    found = report(a_run(), reference=OVERLAP)
    assert [one.arm for one in found.cells[:3]] == [OVERLAP, CHUNK, REPLAY]
    assert row(found, REPLAY).against is not None
    alone = report([one for one in a_run() if one.arm == CHUNK])
    assert all(one.against is None for one in (*alone.cells, *alone.macros))


def test_cohorts_are_never_pooled():
    with pytest.raises(UsageError, match="over one cohort, not 'qa', 'ruler'"):
        macro_rows(a_run())
    ruler = [one for one in a_run() if one.cohort == "ruler"]
    assert macro_rows(ruler) == whole().macros


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (record("1", 1.0, identity="other"), "arm 'replay' were made with different settings: settings of replay in"),
        (record("1", 1.0, cell="vt:1", identity="other"), "different settings.*other in cell 'vt:1'"),
        (record("0", 1.0), "example '0' of cell 'niah:2048' by arm 'replay' is there twice"),
        (record("1", 1.0, CHUNK, cell_digest="other"), "cell 'niah:2048' are about different examples"),
        (record("1", 1.5), "has the score 1.5"),
        (record("1", float("nan")), "has the score nan"),
    ],
)
def test_records_that_must_not_be_mixed_are_refused_by_name(other, message):
    with pytest.raises(UsageError, match=message):
        report([record("0", 1.0), other])


def test_no_record_is_no_report():
    with pytest.raises(UsageError, match="no record"):
        report([])
