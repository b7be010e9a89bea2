from __future__ import annotations

import itertools
import statistics as stdlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from comem_cli.measure import statistics
from comem_cli.measure.statistics import median, paired_interval, paired_ratio

seconds = st.floats(min_value=-1e6, max_value=1e6, allow_nan=False)


@given(st.lists(seconds, min_size=1, max_size=20))
def test_the_median_is_that_of_the_standard_library(values):
    assert median(values) == pytest.approx(stdlib.median(values), rel=1e-12, abs=1e-9)


def test_no_value_has_no_median_and_no_interval():
    with pytest.raises(ValueError, match="median"):
        median([])
    with pytest.raises(ValueError, match="pair"):
        paired_interval([], [])
    with pytest.raises(ValueError, match="shape"):
        paired_interval([1.0, 2.0], [1.0])


def test_the_interval_is_that_of_every_resample_counted_by_hand():
    first, second = [5.0, 9.0, 6.0, 7.5], [1.0, 2.5, 4.0, 2.0]
    every = [
        stdlib.median(first[i] for i in chosen) - stdlib.median(second[i] for i in chosen)
        for chosen in itertools.product(range(4), repeat=4)  # all 256 are equally likely
    ]
    exact = np.quantile(every, [0.1, 0.9])
    found = paired_interval(first, second, confidence=0.8, resamples=200_000)
    assert [found.low, found.high] == pytest.approx(exact)


def test_the_interval_is_that_of_scipy():
    scipy_stats = pytest.importorskip("scipy.stats")
    rng = np.random.default_rng(7)
    shared = rng.gamma(2.0, 1.0, 31)
    first, second = shared + rng.normal(2.0, 0.3, 31), shared + rng.normal(0.0, 0.3, 31)

    def difference(a, b, axis):
        return np.median(a, axis=axis) - np.median(b, axis=axis)

    reference = scipy_stats.bootstrap(
        (first, second), difference, paired=True, method="percentile", n_resamples=20_000, rng=np.random.default_rng(1)
    ).confidence_interval
    found = paired_interval(first, second, resamples=20_000)
    assert (found.low, found.high) == pytest.approx((reference.low, reference.high), abs=0.03)


def test_pairs_are_drawn_together():
    first = [float(i * i) for i in range(9)]
    found = paired_interval(first, [value - 3.0 for value in first])
    assert (found.low, found.high) == (3.0, 3.0)  # drawn apart, the squares would spread it


def test_a_seed_fixes_the_interval_and_swapping_the_arms_mirrors_it():
    first, second = [1.0, 4.0, 2.0, 8.0, 5.0], [2.0, 2.5, 1.0, 3.0, 0.5]
    found = paired_interval(first, second, seed=3)
    assert found == paired_interval(first, second, seed=3)
    mirrored = paired_interval(second, first, seed=3)
    assert (mirrored.low, mirrored.high) == pytest.approx((-found.high, -found.low))


def test_drawing_in_parts_changes_nothing(monkeypatch):
    first, second = [1.0, 4.0, 2.0, 8.0, 5.0], [2.0, 2.5, 1.0, 3.0, 0.5]
    whole = paired_interval(first, second, resamples=1000)
    monkeypatch.setattr(statistics, "_DRAWS_AT_ONCE", 35)
    assert paired_interval(first, second, resamples=1000) == whole


def test_a_paired_ratio_is_that_of_the_medians_and_keeps_pairs_together():
    first = [3.0, 1.0, 4.0, 1.5, 9.0]
    value, interval = paired_ratio(first, [x / 2 for x in first])
    assert (value, interval.low, interval.high) == pytest.approx((2.0, 2.0, 2.0))
    second = [2.0, 2.5, 1.0, 3.0, 0.5]
    value, interval = paired_ratio(first, second, seed=3)
    assert value == pytest.approx(stdlib.median(first) / stdlib.median(second))
    inverse, mirrored = paired_ratio(second, first, seed=3)
    assert inverse == pytest.approx(1 / value)
    assert (mirrored.low, mirrored.high) == pytest.approx((1 / interval.high, 1 / interval.low))
    assert interval.low <= value <= interval.high
