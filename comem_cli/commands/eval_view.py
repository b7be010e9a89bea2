"""Show an evaluation: a table to a person, raw numbers to a pipe, one JSON document to a program."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from comem_cli.output import out, stdout_is_terminal

if TYPE_CHECKING:
    from comem_cli.evaluate.records import Record
    from comem_cli.evaluate.report import CellRow

HEADER = ("cell", "arm", "n", "score", "low", "high", "diff", "diff low", "diff high", "kept", "hit", "at hit")


def show_tasks() -> None:
    """List the task names, each with a spec to copy."""
    from comem_cli.evaluate.tasks.registry import TASKS, example_spec

    rows = [(name, example_spec(name)) for name in sorted(TASKS)]
    if out.json:
        out.document([{"task": name, "example": spec} for name, spec in rows])
    else:
        out.table(("task", "example"), rows)


def check_reports(paths: Sequence[Path]) -> None:
    """Refuse a report file whose form is not known; raises UsageError (2)."""
    from comem_cli.evaluate.report_file import check_ending

    for path in paths:
        check_ending(path)


def show(records: Sequence[Record], paths: Sequence[Path]) -> None:
    """Print the table, and write the reports asked for; raises UsageError (2) for records that clash."""
    from comem_cli.evaluate.report import report
    from comem_cli.evaluate.report_file import write_report
    from comem_cli.evaluate.report_tsv import tsv

    found = report(records)
    header, *rows = tsv(found)
    if out.json:
        filled = ({name: cell for name, cell in zip(header, row, strict=True) if cell} for row in rows)
        out.document({"reference": found.reference, "rows": [_numbers(row) for row in filled]})
    elif stdout_is_terminal():
        out.table(HEADER, [_cells(row) for row in found.cells])
        cohorts = {row.cell: row.cohort for row in found.cells}
        for cohort in dict.fromkeys(cohorts.values()):
            out.note(f"{', '.join(cell for cell, of in cohorts.items() if of == cohort)}: {cohort}")
    else:
        out.table(header, rows)
    for path in paths:
        write_report(found, path)
        out.note(f"report: {path}")


def _numbers(row: dict[str, str]) -> dict[str, Any]:
    """Turn the fields that are numbers into numbers; JSON has none that is not finite."""
    texts = ("cohort", "cell", "arm", "interval")
    numbers = {name: float(cell) for name, cell in row.items() if name not in texts}
    finite = {name: number if math.isfinite(number) else None for name, number in numbers.items()}
    return {name: finite.get(name, cell) for name, cell in row.items()}


def _cells(row: CellRow) -> tuple[str, ...]:
    """Give scores in points of 100."""
    held = row.against.difference if row.against else None
    differences = (held.value, held.low, held.high) if held else (None, None, None)
    kept = row.against.kept if row.against else None
    points = (row.score.value, row.score.low, row.score.high, *differences, kept, row.hit_rate, row.hit_score)
    missing = f" of {row.n + row.missing}" if row.missing else ""
    return (row.cell, row.arm, f"{row.n}{missing}", *("-" if p is None else f"{100 * p:.1f}" for p in points))
