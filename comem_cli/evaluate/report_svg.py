"""A report as one SVG: a line for each cell and arm, its score as a dot on 0 to 100, its 95 % interval as a whisker.

Cells stand under each other, cohorts in panels of their own; every line names its arm, which has one colour and shape
throughout. Written with the standard library; nothing is fetched, no font is embedded.
"""

from __future__ import annotations

from collections.abc import Sequence

from comem_cli.evaluate.report import CellRow, Report
from comem_cli.evaluate.svg_canvas import LINE, MARGIN, PLOT, SIZE, Canvas, printable, text_width

TITLE = "Score with 95 % interval, points of 100"


def svg(report: Report) -> str:
    """Return the SVG document: the cells of each cohort in the order of the report."""
    arms = list(dict.fromkeys([report.reference, *(row.arm for row in report.cells)]))
    left = MARGIN + max(text_width(label) for row in report.cells for label in ("100", row.cell, row.arm)) + 2 * SIZE
    right = left + PLOT + SIZE + max(text_width(_figures(row)) for row in report.cells)
    width = MARGIN + max(
        right, MARGIN + max(text_width(label) for row in report.cells for label in (TITLE, row.cohort))
    )
    canvas = Canvas.starting_at(left)
    canvas.add("text", TITLE, x=MARGIN, y=canvas.y + SIZE, fill="#666666")
    canvas.y += LINE + 8
    for cohort in dict.fromkeys(row.cohort for row in report.cells):
        _panel(canvas, [row for row in report.cells if row.cohort == cohort], arms)
    return canvas.document(width, TITLE)


def _panel(canvas: Canvas, rows: Sequence[CellRow], arms: Sequence[str]) -> None:
    """Draw one cohort: its name, its cells, the scale below them."""
    canvas.add("text", printable(rows[0].cohort), x=MARGIN, y=canvas.y + SIZE, font_weight="bold")
    canvas.y += LINE + 8
    top, lines = canvas.y, list(dict.fromkeys(row.cell for row in rows))
    bottom = top + LINE * (len(rows) + len(lines)) + 8 * (len(lines) - 1)
    for tick in range(0, 101, 25):
        x = canvas.at(tick / 100)
        canvas.add("line", x1=x, x2=x, y1=top, y2=bottom, stroke="#dddddd")
        canvas.add("text", str(tick), x=x, y=bottom + SIZE + 4, text_anchor="middle", fill="#666666")
    for cell in lines:
        canvas.add("text", printable(cell), x=MARGIN, y=canvas.y + SIZE + 2, font_weight="bold")
        canvas.y += LINE
        for row in (row for row in rows if row.cell == cell):
            _line(canvas, row, arms.index(row.arm))
        canvas.y += 8
    canvas.y = bottom + LINE + MARGIN


def _line(canvas: Canvas, row: CellRow, number: int) -> None:
    """Draw one arm: label, whisker, mark, figures."""
    middle = canvas.y + LINE / 2
    canvas.add("text", printable(row.arm), x=MARGIN + SIZE, y=middle + SIZE / 3)
    canvas.mark(number, row.score.value, row.score.low, row.score.high)
    canvas.add("text", _figures(row), x=canvas.left + PLOT + SIZE, y=middle + SIZE / 3, fill="#666666")
    canvas.y += LINE


def _figures(row: CellRow) -> str:
    low, high = row.score.low, row.score.high
    bounds = "" if low is None or high is None else f" [{100 * low:.1f}, {100 * high:.1f}]"
    return f"{100 * row.score.value:.1f}{bounds} · n {row.n}" + (f", {row.missing} missing" if row.missing else "")
