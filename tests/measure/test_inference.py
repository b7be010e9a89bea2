"""Each against every resample counted by hand, SciPy, scikit-learn, or a value that the paper prints."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from comem_cli.measure import inference
from comem_cli.measure.inference import (
    cohen_kappa,
    mcnemar_exact,
    mean_interval,
    paired_difference,
    proportion_interval,
)


def bounds(estimate):
    return [estimate.low, estimate.high]


def every_mean(values):
    return [np.mean(chosen) for chosen in itertools.product(values, repeat=len(values))]


def test_the_paired_interval_is_that_of_all_27_resamples():
    first, second = [0.9, 0.4, 1.0], [0.2, 0.3, 1.0]
    exact = np.quantile(every_mean([0.7, 0.1, 0.0]), [0.1, 0.9])
    found = paired_difference(first, second, confidence=0.8, resamples=50_000)
    assert found.value == pytest.approx(0.8 / 3)
    assert bounds(found) == pytest.approx(exact)
    assert found.n == 3


def test_the_cluster_interval_is_that_of_all_27_draws_of_clusters():
    groups = {"a": [1.0, 0.0, 0.5], "b": [0.25], "c": [1.0, 1.0]}
    scores = [0.25, 1.0, 1.0, 0.0, 1.0, 0.5]
    labels = ["b", "a", "c", "a", "c", "a"]
    every = [
        np.mean([score for label in chosen for score in groups[label]]) for chosen in itertools.product("abc", repeat=3)
    ]
    found = mean_interval(scores, labels, confidence=0.8, resamples=50_000)
    assert bounds(found) == pytest.approx(np.quantile(every, [0.1, 0.9]))
    assert found.value == pytest.approx(np.mean(scores))


def test_clusters_of_one_item_are_items():
    scores = np.random.default_rng(3).beta(2, 1, 80).tolist()
    alone, items = mean_interval(scores, range(80)), mean_interval(scores)
    assert bounds(alone) == pytest.approx(bounds(items), abs=0.003)


def test_equal_members_of_a_cluster_add_no_certainty():
    scores = [0.0, 1.0, 1.0, 0.0, 1.0]
    copied = mean_interval(scores * 20, list(range(5)) * 20)
    assert bounds(copied) == pytest.approx(bounds(mean_interval(scores)))


def test_the_paired_interval_is_that_of_scipy():
    rng = np.random.default_rng(5)
    first, second = rng.beta(4, 1, 60), rng.beta(3, 1, 60)
    reference = stats.bootstrap(
        (first, second),
        lambda a, b, axis: a.mean(axis) - b.mean(axis),
        paired=True,
        method="percentile",
        n_resamples=20_000,
        rng=np.random.default_rng(1),
    ).confidence_interval
    found = paired_difference(first.tolist(), second.tolist(), resamples=20_000)
    assert bounds(found) == pytest.approx([reference.low, reference.high], abs=0.003)


@pytest.mark.parametrize("clusters", [None, list("aabbc")])
def test_a_seed_fixes_the_interval_and_drawing_in_parts_changes_nothing(monkeypatch, clusters):
    scores = [0.1, 0.7, 0.3, 0.9, 0.2]
    whole = mean_interval(scores, clusters, resamples=1000, seed=7)
    assert whole == mean_interval(scores, clusters, resamples=1000, seed=7)
    monkeypatch.setattr(inference, "_DRAWS_AT_ONCE", 35)
    assert mean_interval(scores, clusters, resamples=1000, seed=7) == whole


def test_one_item_or_one_cluster_has_no_interval():
    assert bounds(mean_interval([0.5])) == [None, None]
    assert bounds(mean_interval([0.5, 1.0], ["a", "a"])) == [None, None]
    assert bounds(paired_difference([1.0], [0.0])) == [None, None]


def test_scores_that_are_none_are_refused():
    with pytest.raises(ValueError, match="at least one"):
        mean_interval([])
    with pytest.raises(ValueError, match="finite"):
        mean_interval([1.0, math.nan])
    with pytest.raises(ValueError, match="equal lengths"):
        paired_difference([1.0, 0.0], [1.0])
    with pytest.raises(ValueError, match="cluster labels"):
        mean_interval([1.0, 0.0], ["a"])
    with pytest.raises(ValueError, match="n must be"):
        proportion_interval(0, 0)


@given(st.integers(1, 500).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_wilson_is_the_closed_formula(case):
    k, n = case
    z = stats.norm.ppf(0.975)
    middle = (k / n + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * math.sqrt(k / n * (1 - k / n) / n + z * z / (4 * n * n))
    assert bounds(proportion_interval(k, n)) == pytest.approx([middle - half, middle + half], abs=1e-12)


@given(st.integers(0, 60), st.integers(0, 60))
def test_mcnemar_is_the_doubled_tail_of_binomial_coefficients(b, c):
    tail = sum(math.comb(b + c, k) for k in range(min(b, c) + 1)) / 2 ** (b + c)
    assert mcnemar_exact(b, c) == pytest.approx(min(1.0, 2 * tail), rel=1e-9)
    assert mcnemar_exact(b, c) == mcnemar_exact(c, b)


def test_kappa_is_that_of_scikit_learn_and_of_the_textbook():
    metrics = pytest.importorskip("sklearn.metrics")
    rng = np.random.default_rng(2)
    first = rng.choice(["right", "wrong", "none"], 90)
    second = np.where(rng.random(90) < 0.6, first, rng.choice(["right", "wrong"], 90))
    assert cohen_kappa(first.tolist(), second.tolist()) == pytest.approx(metrics.cohen_kappa_score(first, second))
    both = [1] * 20 + [1] * 5 + [0] * 10 + [0] * 15, [1] * 20 + [0] * 5 + [1] * 10 + [0] * 15
    assert cohen_kappa(*both) == pytest.approx((0.7 - 0.5) / 0.5)


def test_kappa_that_is_not_defined_is_refused():
    with pytest.raises(ValueError, match="not defined"):
        cohen_kappa(["a", "a"], ["a", "a"])
    with pytest.raises(ValueError, match="every item"):
        cohen_kappa(["a"], [])
    assert cohen_kappa(["a", "a"], ["b", "b"]) == 0.0


# What the paper prints, from its counts


@pytest.mark.parametrize(
    ("b", "c", "printed"),
    [
        (83, 1, "8.79e-24"),  # Tables 32, 33: replay alone right, layer 12 alone right
        (12, 0, "4.88e-04"),  # Table 15, "5e-4": trained Write 98.5 against 92.5, n = 200
        (3, 0, "2.50e-01"),  # Table 15: trained Write 98.5 against 100
        (16, 0, "3.05e-05"),  # Table 12: its bound is the p of 16 against none
    ],
)
def test_mcnemar_of_the_paper(b, c, printed):
    assert f"{mcnemar_exact(b, c):.2e}" == printed


@pytest.mark.parametrize(
    ("lost", "n", "low", "high"),
    [
        (15, 200, 4.0, 11.5),  # Table 33: multikey at 8k and 16k loses 7.5 points
        (12, 200, 3.0, 9.5),  # Table 15: overlap 32 gains 6.0 points
        (437, 600, 69.33, 76.33),  # B.4: LongEval over six lengths, 72.83
    ],
)
def test_bootstrap_intervals_of_the_paper(lost, n, low, high):
    found = paired_difference([1.0] * lost + [0.0] * (n - lost), [0.0] * n, seed=1234)
    assert [100 * bound for bound in bounds(found)] == pytest.approx([low, high], abs=0.17)  # one item in 600


@pytest.mark.parametrize(
    ("right", "n", "low", "high"),
    [
        (760, 1986, 36.20, 40.58),
        (687, 1986, 32.48, 36.71),
        (749, 1540, 46.04, 50.98),
        (675, 1540, 41.23, 46.30),
    ],
)
def test_judge_intervals_of_the_paper(right, n, low, high):
    found = mean_interval([1.0] * right + [0.0] * (n - right))
    # The paper drew 1,000 resamples: a standard error of 0.11 points on each bound; 0.35 is three.
    assert [100 * bound for bound in bounds(found)] == pytest.approx([low, high], abs=0.35)


def test_judge_totals_of_the_paper_follow_from_its_categories():
    sizes = (282, 321, 96, 841, 446)
    printed = {  # Table 39: categories 1 to 5, overall
        "comem": (26.95, 19.00, 30.21, 69.32, 2.47, 38.27),
        "frozen": (18.79, 13.40, 27.08, 53.75, 1.12, 29.15),
        "kv-direct": (24.11, 18.69, 25.00, 62.19, 2.69, 34.59),
        "streaming": (22.70, 11.21, 23.96, 42.21, 6.95, 25.63),
        "infllm": (18.44, 14.33, 25.00, 33.89, 7.62, 22.21),
        "memoryllm": (15.60, 8.72, 15.63, 27.47, 0.45, 16.11),
    }
    for *parts, overall in printed.values():
        right = [round(part * size / 100) for part, size in zip(parts, sizes, strict=True)]
        scores = [score for k, n in zip(right, sizes, strict=True) for score in [1.0] * k + [0.0] * (n - k)]
        assert 100 * mean_interval(scores, resamples=9).value == pytest.approx(overall, abs=0.005)


def test_kappa_of_the_paper():
    # B.3: 36.5 and 32.5 % by one judge, 56 and 49 % by the other, over 200 items twice, agreement 0.81. That leaves one
    # table: 136 right by both, 2 and 74 by one alone, 188 by neither.
    first = [1] * 138 + [0] * 262
    second = [1] * 136 + [0] * 2 + [1] * 74 + [0] * 188
    assert (sum(first), sum(second)) == (73 + 65, 112 + 98)
    assert sum(a == b for a, b in zip(first, second, strict=True)) / 400 == 0.81
    assert cohen_kappa(first, second) == pytest.approx(0.626, abs=5e-4)
