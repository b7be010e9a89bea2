"""Statistics of repeated timings: the median, and a paired bootstrap interval of a difference of two medians.

Source: Efron and Tibshirani, "An Introduction to the Bootstrap" (1993), ch. 13, the percentile interval. Pairs are
drawn together, so that what slows both members of a pair down cancels.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

RESAMPLES = 10_000
CONFIDENCE = 0.95
_DRAWS_AT_ONCE = 1 << 22  # indices in memory, 32 MiB


@dataclass(frozen=True)
class Interval:
    """Bound a statistic from both sides, in its own unit."""

    low: float
    high: float


def median(values: Sequence[float]) -> float:
    """Return the middle value, or the mean of the two middle ones; ValueError without a value."""
    if not len(values):
        raise ValueError("no value has no median")
    return float(np.median(np.asarray(values, dtype=np.float64)))


def paired_interval(
    first: Sequence[float],
    second: Sequence[float],
    *,
    confidence: float = CONFIDENCE,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> Interval:
    """Return the percentile interval of median(first) - median(second) over resampled pairs.

    first, second: (n,), element i of both measured together. With few pairs it is honest but coarse: at n = 5 it runs
    from the smallest to the largest value that a resample can give. Raises ValueError for no pair or a length that
    differs.
    """
    pairs = np.asarray([first, second], dtype=np.float64)  # (2, n)
    n = pairs.shape[1]
    if not n:
        raise ValueError("an interval needs at least one pair")
    draw = np.random.default_rng(seed)
    step = max(1, _DRAWS_AT_ONCE // n)
    parts = [
        _differences(pairs, draw.integers(0, n, (min(step, resamples - done), n))) for done in range(0, resamples, step)
    ]
    tail = (1 - confidence) / 2
    low, high = np.quantile(np.concatenate(parts), [tail, 1 - tail])
    return Interval(float(low), float(high))


def paired_ratio(first: Sequence[float], second: Sequence[float], *, seed: int = 0) -> tuple[float, Interval]:
    """Return median(first) / median(second) with its interval over resampled pairs, both taken from logarithms.

    first, second: (n,), above 0, element i of both measured together. With an even n the median is the geometric mean
    of the two middle values. Raises ValueError as `paired_interval` does.
    """
    logs = [np.log(np.asarray(values, dtype=np.float64)).tolist() for values in (first, second)]
    found = paired_interval(*logs, seed=seed)
    return math.exp(median(logs[0]) - median(logs[1])), Interval(math.exp(found.low), math.exp(found.high))


def _differences(pairs: Any, chosen: Any) -> Any:
    """Return the statistic of each resample: pairs (2, n), chosen (r, n) -> (r,)."""
    first, second = np.median(pairs[:, chosen], axis=2)
    return first - second
