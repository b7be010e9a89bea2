"""From records to the rows of a table: one a (cohort, cell, arm), and one a (cohort, arm) over its cells.

Nothing is averaged over unequal sets in silence: a row says how many examples it lacks that another arm of the cell
has; what is held against the reference arm uses the examples of both, and says how many; a macro score exists only
where the arm has every cell of the cohort. Cohorts are never pooled. Scores are 0 to 1 here; report_text.py and
report_svg.py turn them into points of 100.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from comem_cli.errors import UsageError
from comem_cli.evaluate.comparison import Comparison, MacroComparison, compare, compare_cells, groups, pairs
from comem_cli.evaluate.record_groups import Arms, Cells, grouped
from comem_cli.evaluate.records import Record
from comem_cli.measure.cell_inference import stratified_mean
from comem_cli.measure.inference import Estimate, mean_interval, proportion_interval

REFERENCE = "replay"


@dataclass(frozen=True)
class CellRow:
    """Sum up one arm in one cell over its n records.

    missing: examples that another arm of the cell has and this one lacks. score: mean, with an interval of the kind
    `interval`: "wilson" (0/1 scores), "items" or "clusters" (bootstrap). hit_rate, recall: over the records where the
    evidence is known, None where it never is. hit_score: mean score over the hit_n records whose evidence was in the
    pack. errors: records without an answer; they score 0. pack_tokens: mean over the others. extra: mean of each extra
    figure over the records that have it.
    """

    cohort: str
    cell: str
    arm: str
    n: int
    missing: int
    score: Estimate
    interval: str
    hit_rate: float | None
    hit_score: float | None
    hit_n: int
    recall: float | None
    errors: int
    pack_tokens: float | None
    extra: Mapping[str, float]
    against: Comparison | None


@dataclass(frozen=True)
class MacroRow:
    """Sum up one arm over the cells of one cohort, each cell weighing the same.

    n, missing: examples. cells of all_cells have records of the arm; score is None where they are not all.
    """

    cohort: str
    arm: str
    n: int
    missing: int
    cells: int
    all_cells: int
    score: Estimate | None
    against: MacroComparison | None


@dataclass(frozen=True)
class Report:
    """Hold the rows, in the order of a table, and the arm that they are held against."""

    reference: str
    cells: tuple[CellRow, ...] = field(default=())
    macros: tuple[MacroRow, ...] = field(default=())


def report(records: Iterable[Record], reference: str = REFERENCE) -> Report:
    """Sum up records; without a record of the reference arm nothing is compared.

    Raises: UsageError (2) for no record, and for records that must not be mixed (see `grouped`).
    """
    cohorts = grouped(records, reference)
    if not cohorts:
        raise UsageError("there is no record to report", "pass a file that comem eval wrote")
    rows = [_cell_row(name, arm, arms, reference) for _, name, arms in _cells(cohorts) for arm in arms]
    macros = [row for cohort, cells in cohorts.items() if len(cells) > 1 for row in _macros(cohort, cells, reference)]
    return Report(reference, tuple(rows), tuple(macros))


def macro_rows(records: Iterable[Record], reference: str = REFERENCE) -> tuple[MacroRow, ...]:
    """Sum up the cells of one cohort.

    Raises: UsageError (2) for records of several cohorts, and as `report` does.
    """
    cohorts = grouped(records, reference)
    if len(cohorts) != 1:
        names = ", ".join(f"'{cohort}'" for cohort in cohorts) or "none"
        raise UsageError(f"a macro score is over one cohort, not {names}", "report each cohort on its own")
    return tuple(row for cohort, cells in cohorts.items() for row in _macros(cohort, cells, reference))


def _cells(cohorts: Mapping[str, Cells]) -> Iterable[tuple[str, str, Arms]]:
    for cohort, cells in cohorts.items():
        for cell, arms in cells.items():
            yield cohort, cell, arms


def _cell_row(cell: str, arm: str, arms: Arms, reference: str) -> CellRow:
    records = list(arms[arm].values())
    hits = [record for record in records if record.hit is not None]
    held = [record.score for record in hits if record.hit]
    score, interval = _score(records)
    against = compare(pairs(arms[arm], arms[reference])) if reference in arms and arm != reference else None
    return CellRow(
        cohort=records[0].cohort,
        cell=cell,
        arm=arm,
        n=len(records),
        missing=_missing(arms, arm),
        score=score,
        interval=interval,
        hit_rate=_mean([float(bool(record.hit)) for record in hits]),
        hit_score=_mean(held),
        hit_n=len(held),
        recall=_mean([record.recall for record in records if record.recall is not None]),
        errors=sum(bool(record.error) for record in records),
        pack_tokens=_mean([record.pack_tokens for record in records if not record.error]),
        extra=_extra(records),
        against=against,
    )


def _score(records: Sequence[Record]) -> tuple[Estimate, str]:
    """Return the mean with the interval that fits: clusters where there are, Wilson for 0/1, else items."""
    values, labels = [record.score for record in records], groups(records)
    if labels is not None:
        return mean_interval(values, labels), "clusters"
    if all(value in (0.0, 1.0) for value in values):
        return proportion_interval(int(sum(values)), len(values)), "wilson"
    return mean_interval(values), "items"


def _macros(cohort: str, cells: Cells, reference: str) -> Iterable[MacroRow]:
    names = dict.fromkeys(arm for arms in cells.values() for arm in arms)
    for arm in sorted(names, key=lambda name: name != reference):
        own = {cell: list(arms[arm].values()) for cell, arms in cells.items() if arm in arms}
        labels = {cell: found for cell, records in own.items() if (found := groups(records)) is not None}
        values = {cell: [record.score for record in records] for cell, records in own.items()}
        both = {cell: pairs(cells[cell][arm], cells[cell].get(reference, {})) for cell in own if arm != reference}
        yield MacroRow(
            cohort=cohort,
            arm=arm,
            n=sum(len(records) for records in own.values()),
            missing=sum(_missing(arms, arm) for arms in cells.values()),
            cells=len(own),
            all_cells=len(cells),
            score=stratified_mean(values, labels) if len(own) == len(cells) else None,
            against=compare_cells({cell: found for cell, found in both.items() if found}),
        )


def _missing(arms: Arms, arm: str) -> int:
    """Count the examples of a cell that an arm lacks."""
    every = {example for answers in arms.values() for example in answers}
    return len(every) - len(arms.get(arm, {}))


def _extra(records: Sequence[Record]) -> dict[str, float]:
    names = sorted({name for record in records for name in record.extra})
    found = {name: [record.extra[name] for record in records if name in record.extra] for name in names}
    return {name: sum(values) / len(values) for name, values in found.items()}


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None
