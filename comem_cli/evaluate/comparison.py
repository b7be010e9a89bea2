"""One arm against the reference arm, on the examples that both answered, and on no other."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

from comem_cli.evaluate.record_groups import Answers
from comem_cli.evaluate.records import Record
from comem_cli.measure.cell_inference import hierarchical_difference, leave_one_cell_out, stratified_difference
from comem_cli.measure.inference import Estimate, mcnemar_exact, paired_difference

Pair = tuple[Record, Record]  # arm, reference


@dataclass(frozen=True)
class Discordant:
    """Count the pairs that only one arm has right, over n pairs of 0/1 scores; p: exact McNemar, two-sided."""

    n: int
    gained: int
    lost: int
    p: float


@dataclass(frozen=True)
class Comparison:
    """Hold an arm against the reference over n pairs.

    difference: arm minus reference, mean score. discordant: None where a score is neither 0 nor 1. kept: the arm's mean
    score over the kept_n pairs in which the reference scored 1, None without one. other_packs: pairs whose packs hold
    other chunks or another order; a matched comparison has none.
    """

    n: int
    difference: Estimate
    discordant: Discordant | None
    kept: float | None
    kept_n: int
    other_packs: int


@dataclass(frozen=True)
class MacroComparison:
    """Hold an arm against the reference over the cells that have pairs, each cell weighing the same.

    cells: how many these are; n: pairs in them. difference: macro mean of arm minus reference, examples resampled;
    hierarchical: the same value, cells and examples resampled; left_out: its smallest and largest value without one
    cell, None for one cell. discordant: over the cells of 0/1 scores. kept: over all pairs in which the reference
    scored 1.
    """

    cells: int
    n: int
    difference: Estimate
    hierarchical: Estimate
    left_out: tuple[float, float] | None
    discordant: Discordant | None
    kept: float | None
    kept_n: int


def pairs(arm: Answers, reference: Answers) -> list[Pair]:
    """Return (arm's record, reference's record) of every example that both have, in the arm's order."""
    return [(record, reference[example]) for example, record in arm.items() if example in reference]


def compare(both: Sequence[Pair]) -> Comparison | None:
    """Compare over the pairs, clusters resampled whole where examples share a group; None without a pair."""
    if not both:
        return None
    first, second = _scores(both)
    kept, kept_n = _kept(both)
    return Comparison(
        n=len(both),
        difference=paired_difference(first, second, groups([arm for arm, _ in both])),
        discordant=_discordant(both),
        kept=kept,
        kept_n=kept_n,
        other_packs=sum(arm.chunks != reference.chunks for arm, reference in both),
    )


def compare_cells(cells: Mapping[str, Sequence[Pair]]) -> MacroComparison | None:
    """Compare over cells of one cohort, none of them without a pair; None without a cell."""
    if not cells:
        return None
    both = {cell: _scores(found) for cell, found in cells.items()}
    clusters = {cell: labels for cell, found in cells.items() if (labels := groups([arm for arm, _ in found]))}
    left = leave_one_cell_out(both).values() if len(both) > 1 else None
    kept, kept_n = _kept([pair for found in cells.values() for pair in found])
    return MacroComparison(
        cells=len(cells),
        n=sum(len(found) for found in cells.values()),
        difference=stratified_difference(both, clusters),
        hierarchical=hierarchical_difference(both, clusters),
        left_out=(min(left), max(left)) if left else None,
        discordant=_discordant([pair for found in cells.values() if _discordant(found) for pair in found]),
        kept=kept,
        kept_n=kept_n,
    )


def _scores(both: Sequence[Pair]) -> tuple[list[float], list[float]]:
    """Return the scores (n,) of the arm and of the reference."""
    return [arm.score for arm, _ in both], [reference.score for _, reference in both]


def _discordant(both: Sequence[Pair]) -> Discordant | None:
    """Count discordant pairs; None where a score is neither 0 nor 1, or without a pair."""
    if not both or not all(record.score in (0.0, 1.0) for pair in both for record in pair):
        return None
    gained = sum(arm.score > reference.score for arm, reference in both)
    lost = sum(arm.score < reference.score for arm, reference in both)
    return Discordant(len(both), gained, lost, mcnemar_exact(gained, lost))


def _kept(both: Sequence[Pair]) -> tuple[float | None, int]:
    """Return the arm's mean score where the reference scored 1, and over how many pairs."""
    kept = [arm.score for arm, reference in both if reference.score == 1.0]
    return (sum(kept) / len(kept) if kept else None), len(kept)


def groups(records: Sequence[Record]) -> list[Hashable] | None:
    """Return a cluster label for each record, or None where no two share a group; no group is one of its own."""
    labels: list[Hashable] = [(record.group,) if record.group else record.example for record in records]
    return labels if len(set(labels)) < len(labels) else None
