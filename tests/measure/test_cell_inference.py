"""Macro intervals against every resample of small cells, SciPy, and what the paper prints."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from scipy import stats

from comem_cli.measure.cell_inference import (
    hierarchical_difference,
    leave_one_cell_out,
    stratified_difference,
    stratified_mean,
)
from comem_cli.measure.inference import paired_difference

TWO = {"a": ([0.9, 0.3], [0.2, 0.2]), "b": ([1.0, 0.5, 0.1], [0.0, 0.2, 0.3])}
GAPS = {"a": [0.7, 0.1], "b": [1.0, 0.3, -0.2]}
MACRO = (0.8 / 2 + 1.1 / 3) / 2


def bounds(estimate):
    return [estimate.low, estimate.high]


def means(values):
    return [np.mean(chosen) for chosen in itertools.product(values, repeat=len(values))]


def test_the_stratified_interval_is_that_of_all_108_resamples():
    every = [(a + b) / 2 for a in means(GAPS["a"]) for b in means(GAPS["b"])]
    found = stratified_difference(TWO, confidence=0.8, resamples=200_000)
    assert bounds(found) == pytest.approx(np.quantile(every, [0.1, 0.9]), abs=1e-9)
    assert (found.value, found.n) == (pytest.approx(MACRO), 5)


def test_the_hierarchical_interval_is_that_of_all_pairs_of_cells():
    drawn = {"a": (means(GAPS["a"]), 1 / 4), "b": (means(GAPS["b"]), 1 / 27)}
    every = [
        ((x + y) / 2, drawn[one][1] * drawn[two][1])
        for one, two in itertools.product("ab", repeat=2)
        for x in drawn[one][0]
        for y in drawn[two][0]
    ]
    every.sort()
    reached = np.cumsum([weight for _, weight in every]) / 4
    exact = [every[int(np.searchsorted(reached, tail))][0] for tail in (0.1, 0.9)]
    found = hierarchical_difference(TWO, confidence=0.8, resamples=200_000)
    assert bounds(found) == pytest.approx(exact, abs=0.01)
    assert (found.value, found.n) == (pytest.approx(MACRO), 5)


def test_the_stratified_interval_is_that_of_scipy_on_samples_drawn_apart():
    rng = np.random.default_rng(4)
    gaps = rng.normal([0.1, 0.3], [0.5, 0.2], (50, 2)).T
    reference = stats.bootstrap(
        tuple(gaps),
        lambda a, b, axis: (a.mean(axis) + b.mean(axis)) / 2,
        method="percentile",
        n_resamples=20_000,
        rng=np.random.default_rng(1),
    ).confidence_interval
    cells = {str(i): (row.tolist(), [0.0] * 50) for i, row in enumerate(gaps)}
    found = stratified_difference(cells, resamples=20_000)
    assert bounds(found) == pytest.approx([reference.low, reference.high], abs=0.004)
    alone = stratified_mean({name: first for name, (first, _) in cells.items()}, resamples=20_000)
    assert alone == found


def test_cells_that_differ_widen_the_hierarchical_interval_alone():
    rng = np.random.default_rng(0)
    cells = {str(c): ((rng.random(100) < 0.2 + 0.1 * c).astype(float).tolist(), [0.5] * 100) for c in range(6)}
    narrow, wide = stratified_difference(cells), hierarchical_difference(cells)
    assert narrow.value == wide.value
    # variance of the hierarchical mean = that of the cell means / C + the stratified one
    between = np.var([np.mean(first) for first, _ in cells.values()]) / 6
    within = np.mean([np.var(first) / 100 for first, _ in cells.values()]) / 6
    for found, variance in ((narrow, within), (wide, between + within)):
        assert (found.high - found.low) / (2 * 1.96) == pytest.approx(variance**0.5, rel=0.05)


def test_a_cell_weighs_the_same_however_many_examples_it_has():
    cells = {"many": ([1.0] * 98 + [0.0] * 2, [0.0] * 100), "few": ([0.0, 0.0, 1.0, 0.0], [0.0] * 4)}
    assert stratified_difference(cells).value == pytest.approx((0.98 + 0.25) / 2)


def test_clusters_within_a_cell_are_drawn_whole():
    scores = [1.0] * 10 + [0.0] * 10 + [1.0] * 10
    cells, labels = {"a": (scores, [0.0] * 30)}, {"a": list("x" * 10 + "y" * 10 + "z" * 10)}
    whole = paired_difference([1.0, 0.0, 1.0], [0.0] * 3)
    assert bounds(stratified_difference(cells, labels)) == pytest.approx(bounds(whole))
    both = {**cells, "b": cells["a"]}
    labels["b"] = labels["a"]
    assert hierarchical_difference(both, labels).high > hierarchical_difference(both).high


def test_what_cannot_be_known_has_no_interval_and_nothing_is_refused():
    assert bounds(stratified_difference({"a": ([1.0], [0.0]), "b": ([1.0, 0.0], [0.0, 0.0])})) == [None, None]
    assert bounds(hierarchical_difference({"a": ([1.0, 0.0], [0.0, 0.0])})) == [None, None]
    for function in (stratified_mean, stratified_difference, hierarchical_difference):
        with pytest.raises(ValueError, match="at least one cell"):
            function({})
    with pytest.raises(ValueError, match="two cells"):
        leave_one_cell_out({"a": ([1.0], [0.0])})
    with pytest.raises(ValueError, match="equal lengths"):
        stratified_difference({"a": ([1.0], [])})


def test_leaving_a_cell_out_is_the_mean_of_the_others():
    cells = {name: ([gap, gap], [0.0, 0.0]) for name, gap in (("a", 0.1), ("b", 0.2), ("c", 0.6))}
    assert leave_one_cell_out(cells) == pytest.approx({"a": 0.4, "b": 0.35, "c": 0.15})


def test_the_ranges_of_the_paper_name_its_extreme_cells():
    # B.4: nine cells, mean -11.56, left out one at a time -13.13 to -9.50. So the extreme cells are +1 and -28, and the
    # other seven sum to 9 * -11.56 - 1 + 28 = -77.
    cells = {str(i): ([gap], [0.0]) for i, gap in enumerate([1.0, -28.0, *[-11.0] * 7])}
    left = leave_one_cell_out(cells).values()
    assert [round(sum(left) / 9, 2), min(left), max(left)] == [-11.56, pytest.approx(-13.125), pytest.approx(-9.5)]


def test_the_macro_of_the_paper():
    table = {  # Table 38, n = 100 a cell
        "niah_single_3": (100.0, 91.0, 97.0, 98.0, 98.0),
        "niah_multikey_1": (94.0, 91.0, 99.0, 90.0, 93.0),
        "variable_tracking": (96.2, 98.0, 98.2, 98.6, 99.0),
    }
    cells = {f"{task}:{i}": [score] * 2 for task, row in table.items() for i, score in enumerate(row)}
    assert sum(sum(row) for row in table.values()) == pytest.approx(1441.0)
    assert stratified_mean(cells).value == pytest.approx(1441.0 / 15)
    assert f"{stratified_mean(cells).value:.2f}" == "96.07"
