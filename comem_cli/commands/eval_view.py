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
    """List the task names, one a line."""
    from comem_cli.evaluate.tasks.registry import TASKS

    if out.json:
        out.document(sorted(TASKS))
        return
    for name in sorted(TASKS):
        out.text(name)


def check_report(path: Path | None) -> None:
    """Refuse a report file whose form is not known; raises UsageError (2)."""
    from comem_cli.evaluate.report_file import check_ending

    if path is not None:
        check_ending(path)


def show(records: Sequence[Record], path: Path | None) -> None:
    """Print the table, and write the report where one is asked for; raises UsageError (2) for records that clash."""
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
    else:
        out.table(header, rows)
    if path is not None:
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
