"""Macro scores over the cells of one cohort: every cell weighs the same, however many examples it has.

Two questions, two intervals. Stratified: these very cells, other examples of them. Hierarchical: other cells of the
same kind, and other examples; it is wider, and the one to quote where the cells are a sample of tasks. Both are what
the paper's B.4 calls the fixed-cell and the hierarchical bootstrap; leave-one-cell-out shows whether one cell decides.
The caller sees to it that the cells belong together (evaluate/report.py refuses several cohorts).
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence

import numpy as np

from comem_cli.measure.inference import Array, Estimate, differences, finite, percentile, resampled_means, units
from comem_cli.measure.statistics import CONFIDENCE, RESAMPLES

Pairs = Mapping[str, tuple[Sequence[float], Sequence[float]]]  # cell -> scores of two arms on the same examples
Clusters = Mapping[str, Sequence[Hashable]]  # cell -> a label for each example; a cell may be left out


def stratified_mean(
    cells: Mapping[str, Sequence[float]],
    clusters: Clusters | None = None,
    *,
    confidence: float = CONFIDENCE,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> Estimate:
    """Return the mean of the cell means, with the interval of resampling the examples within each cell.

    No interval where a cell has one example, or one cluster. n counts examples. Raises ValueError without a cell, and
    as `mean_interval` does.
    """
    return _stratified(_arrays(cells), clusters or {}, confidence, resamples, seed)


def stratified_difference(
    cells: Pairs,
    clusters: Clusters | None = None,
    *,
    confidence: float = CONFIDENCE,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> Estimate:
    """Return the macro mean of first - second, with the interval of resampling the pairs within each cell.

    As `stratified_mean`. Raises ValueError also for arms of different length in a cell.
    """
    return _stratified(_differences(cells), clusters or {}, confidence, resamples, seed)


def hierarchical_difference(
    cells: Pairs,
    clusters: Clusters | None = None,
    *,
    confidence: float = CONFIDENCE,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> Estimate:
    """Return the macro mean of first - second, with the interval of resampling cells and then the pairs in each.

    A cell that is drawn twice gets two independent draws of its pairs. No interval with one cell. Raises ValueError as
    `stratified_difference` does.
    """
    values = _differences(cells)
    labels = clusters or {}
    if len(values) < 2 or not _identified(values, labels):
        return Estimate(_macro(values), None, None, _items(values))
    rng, names = np.random.default_rng(seed), list(values)
    total = np.zeros(resamples)
    for _ in names:  # as many draws of a cell as there are cells
        drawn = rng.integers(0, len(names), resamples)
        for code, name in enumerate(names):
            here = np.flatnonzero(drawn == code)
            total[here] += resampled_means(values[name], labels.get(name), len(here), rng)
    low, high = percentile(total / len(names), confidence)
    return Estimate(_macro(values), low, high, _items(values))


def leave_one_cell_out(cells: Pairs) -> dict[str, float]:
    """Return for each cell the macro mean of first - second over all the others.

    Its smallest and largest value bound what any one cell decides. Raises ValueError for fewer than two cells.
    """
    values = _differences(cells)
    if len(values) < 2:
        raise ValueError("leaving one cell out needs two cells")
    return {left: _macro({name: found for name, found in values.items() if name != left}) for left in values}


def _stratified(
    values: Mapping[str, Array], clusters: Clusters, confidence: float, resamples: int, seed: int
) -> Estimate:
    if not _identified(values, clusters):
        return Estimate(_macro(values), None, None, _items(values))
    rng, total = np.random.default_rng(seed), np.zeros(resamples)
    for name, found in values.items():
        total += resampled_means(found, clusters.get(name), resamples, rng)
    low, high = percentile(total / len(values), confidence)
    return Estimate(_macro(values), low, high, _items(values))


def _arrays(cells: Mapping[str, Sequence[float]]) -> dict[str, Array]:
    if not cells:
        raise ValueError("a macro score needs at least one cell")
    return {name: finite(scores) for name, scores in cells.items()}


def _differences(cells: Pairs) -> dict[str, Array]:
    if not cells:
        raise ValueError("a macro score needs at least one cell")
    return {name: differences(first, second) for name, (first, second) in cells.items()}


def _identified(values: Mapping[str, Array], clusters: Clusters) -> bool:
    """Say whether every cell has two units to draw from."""
    return all(units(found, clusters.get(name)) > 1 for name, found in values.items())


def _macro(values: Mapping[str, Array]) -> float:
    return float(np.mean([found.mean() for found in values.values()]))


def _items(values: Mapping[str, Array]) -> int:
    return sum(len(found) for found in values.values())
