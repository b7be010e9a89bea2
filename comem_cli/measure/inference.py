"""Intervals and tests of scores: what may be said beside a mean.

Intervals are percentile bootstrap intervals (Efron and Tibshirani, "An Introduction to the Bootstrap", 1993, ch. 13),
seeded, so that a table is the same on every run. Items that share something (an article, a conversation) are no
independent draws: give their labels as `clusters`, and whole clusters are drawn. One item, or one cluster, has no
interval: `low` and `high` are None. Scores are plain numbers in one unit; nothing is turned into percent here.
Over several cells: cell_inference.py.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from comem_cli.measure.statistics import CONFIDENCE, RESAMPLES

Array = NDArray[np.float64]
_DRAWS_AT_ONCE = 1 << 20  # resampled items in memory: 8 MiB of indices, 8 MiB of values


@dataclass(frozen=True)
class Estimate:
    """Hold a value with its interval [low, high], None where it cannot be known, over n items."""

    value: float
    low: float | None
    high: float | None
    n: int


def mean_interval(
    scores: Sequence[float],
    clusters: Sequence[Hashable] | None = None,
    *,
    confidence: float = CONFIDENCE,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> Estimate:
    """Return the mean of scores (n,) with its bootstrap interval; clusters (n,) are drawn whole.

    The mean stays that of the items: a resample is the sum over the drawn clusters divided by their sizes. Where all
    scores are equal the interval has no width; for shares, `proportion_interval` knows better. Raises ValueError for no
    score, a score that is not finite, or another number of labels.
    """
    values = finite(scores)
    value, rng = float(values.mean()), np.random.default_rng(seed)
    if units(values, clusters) < 2:
        return Estimate(value, None, None, len(values))
    if clusters is not None:
        low, high = percentile(resampled_means(values, clusters, resamples, rng), confidence)
        return Estimate(value, low, high, len(values))
    drawn = stats.bootstrap(
        (values,),
        np.mean,
        n_resamples=resamples,
        batch=max(1, _DRAWS_AT_ONCE // len(values)),
        confidence_level=confidence,
        method="percentile",
        rng=rng,
    ).confidence_interval
    return Estimate(value, float(drawn.low), float(drawn.high), len(values))


def proportion_interval(successes: int, n: int, *, confidence: float = CONFIDENCE) -> Estimate:
    """Return successes / n with Wilson's score interval (1927), which keeps a width at 0 and at n.

    Raises ValueError for no trial or more successes than trials.
    """
    found = stats.binomtest(successes, n).proportion_ci(confidence, method="wilson")
    return Estimate(successes / n, float(found.low), float(found.high), n)


def paired_difference(
    first: Sequence[float],
    second: Sequence[float],
    clusters: Sequence[Hashable] | None = None,
    *,
    confidence: float = CONFIDENCE,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> Estimate:
    """Return mean(first - second) with its bootstrap interval over resampled pairs, or over clusters of pairs.

    first, second: (n,), element i of both about the same example. Raises ValueError as `mean_interval` does, and for a
    length that differs.
    """
    values = differences(first, second)
    return mean_interval(values.tolist(), clusters, confidence=confidence, resamples=resamples, seed=seed)


def mcnemar_exact(b: int, c: int) -> float:
    """Return the two-sided exact p of b against c discordant pairs: twice the binomial tail at 1/2, at most 1.

    Source: McNemar, Psychometrika 12 (1947), in its exact form. Without a discordant pair p is 1.
    """
    return float(stats.binomtest(b, b + c, 0.5).pvalue) if b + c else 1.0


def cohen_kappa(first: Sequence[Hashable], second: Sequence[Hashable]) -> float:
    """Return Cohen's kappa (1960) of two raters' labels (n,): (agreement - chance) / (1 - chance).

    Raises ValueError for no item, another length, or where both give one and the same label throughout: then chance
    agrees always, and kappa is not defined.
    """
    if len(first) != len(second) or not len(first):
        raise ValueError("kappa needs two labels for every item")
    n = len(first)
    agreed = sum(a == b for a, b in zip(first, second, strict=True))
    counts = Counter(first), Counter(second)
    chance = sum(count * counts[1][label] for label, count in counts[0].items())  # times n * n
    if chance == n * n:
        raise ValueError("kappa is not defined where both raters give one and the same label")
    return (agreed * n - chance) / (n * n - chance)


# What cell_inference.py builds on


def finite(scores: Sequence[float]) -> Array:
    """Return scores as (n,) float64; ValueError for none, or for one that is not finite."""
    values = np.asarray(scores, dtype=np.float64)
    if values.ndim != 1 or not len(values):
        raise ValueError("an estimate needs at least one score")
    if not np.isfinite(values).all():
        raise ValueError("a score is not finite")
    return values


def differences(first: Sequence[float], second: Sequence[float]) -> Array:
    """Return first - second (n,); ValueError for lengths that differ."""
    if len(first) != len(second):
        raise ValueError(f"pairs need equal lengths, not {len(first)} and {len(second)}")
    return finite(first) - finite(second)


def units(values: Array, clusters: Sequence[Hashable] | None) -> int:
    """Count what is drawn: items, or distinct clusters; ValueError where labels and values differ in number."""
    if clusters is None:
        return len(values)
    if len(clusters) != len(values):
        raise ValueError(f"{len(values)} scores need as many cluster labels, not {len(clusters)}")
    return len(set(clusters))


def resampled_means(
    values: Array, clusters: Sequence[Hashable] | None, resamples: int, rng: np.random.Generator
) -> Array:
    """Draw units with replacement, as many as there are; return the mean of the items in each resample (resamples,)."""
    sums, sizes = values, np.ones(len(values))
    if clusters is not None:
        codes = {label: code for code, label in enumerate(dict.fromkeys(clusters))}
        of = np.array([codes[label] for label in clusters])
        sums, sizes = (np.bincount(of, weights=each).astype(np.float64) for each in (values, sizes))
    found, step = np.empty(resamples), max(1, _DRAWS_AT_ONCE // len(sums))
    for at in range(0, resamples, step):
        chosen = rng.integers(0, len(sums), (min(step, resamples - at), len(sums)))
        found[at : at + step] = sums[chosen].sum(axis=1) / sizes[chosen].sum(axis=1)
    return found


def percentile(resampled: Array, confidence: float) -> tuple[float, float]:
    """Return the middle `confidence` of a resampled statistic."""
    tail = (1 - confidence) / 2
    low, high = np.quantile(resampled, [tail, 1 - tail])
    return float(low), float(high)
