"""A report as one SVG: a line for each cell and arm, its score as a dot on 0 to 100, its 95 % interval as a whisker.

Cells stand under each other, cohorts in panels of their own; every line names its arm, which has one colour and shape
throughout. Written with the standard library; nothing is fetched, no font is embedded.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from xml.etree import ElementTree as Xml

from comem_cli.evaluate.report import CellRow, Report

PLOT, MARGIN = 420, 16  # px: the scale, the rim
LINE, SIZE = 20, 12  # px: height of a line, size of the letters
TITLE = "Score with 95 % interval, points of 100"
# Okabe and Ito's colours, which colour-blind readers tell apart; black is the reference arm
_COLOURS = ("#000000", "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00")


@dataclass
class _Canvas:
    """Collect shapes from the top down; y is the next free pixel."""

    left: int  # px, where the scale begins
    body: Xml.Element
    y: int = MARGIN

    def add(self, tag: str, text: str = "", **attributes: object) -> None:
        """Add an element; an underscore in a name stands for a hyphen."""
        names = {name.replace("_", "-"): str(value) for name, value in attributes.items()}
        Xml.SubElement(self.body, tag, names).text = text or None

    def at(self, score: float) -> float:
        """Return the x of a score of 0 to 1."""
        return round(self.left + PLOT * score, 1)


def svg(report: Report) -> str:
    """Return the SVG document: the cells of each cohort in the order of the report."""
    arms = list(dict.fromkeys([report.reference, *(row.arm for row in report.cells)]))
    left = MARGIN + max(_width(label) for row in report.cells for label in ("100", row.cell, row.arm)) + 2 * SIZE
    right = left + PLOT + SIZE + max(_width(_figures(row)) for row in report.cells)
    width = MARGIN + max(right, MARGIN + max(_width(label) for row in report.cells for label in (TITLE, row.cohort)))
    root = Xml.Element("svg", {"xmlns": "http://www.w3.org/2000/svg", "role": "img"})
    canvas = _Canvas(left, Xml.Element("g", {"font-family": "sans-serif", "font-size": str(SIZE), "fill": "#222222"}))
    canvas.add("text", TITLE, x=MARGIN, y=canvas.y + SIZE, fill="#666666")
    canvas.y += LINE + 8
    for cohort in dict.fromkeys(row.cohort for row in report.cells):
        _panel(canvas, [row for row in report.cells if row.cohort == cohort], arms)
    height = canvas.y + MARGIN
    root.attrib |= {"width": str(width), "height": str(height), "viewBox": f"0 0 {width} {height}"}
    Xml.SubElement(root, "title").text = TITLE
    Xml.SubElement(root, "rect", {"width": str(width), "height": str(height), "fill": "#ffffff"})
    root.append(canvas.body)
    Xml.indent(root)
    return Xml.tostring(root, encoding="unicode") + "\n"


def _panel(canvas: _Canvas, rows: Sequence[CellRow], arms: Sequence[str]) -> None:
    """Draw one cohort: its name, its cells, the scale below them."""
    canvas.add("text", _plain(rows[0].cohort), x=MARGIN, y=canvas.y + SIZE, font_weight="bold")
    canvas.y += LINE + 8
    top, lines = canvas.y, list(dict.fromkeys(row.cell for row in rows))
    bottom = top + LINE * (len(rows) + len(lines)) + 8 * (len(lines) - 1)
    for tick in range(0, 101, 25):
        x = canvas.at(tick / 100)
        canvas.add("line", x1=x, x2=x, y1=top, y2=bottom, stroke="#dddddd")
        canvas.add("text", str(tick), x=x, y=bottom + SIZE + 4, text_anchor="middle", fill="#666666")
    for cell in lines:
        canvas.add("text", _plain(cell), x=MARGIN, y=canvas.y + SIZE + 2, font_weight="bold")
        canvas.y += LINE
        for row in (row for row in rows if row.cell == cell):
            _line(canvas, row, arms.index(row.arm))
        canvas.y += 8
    canvas.y = bottom + LINE + MARGIN


def _line(canvas: _Canvas, row: CellRow, number: int) -> None:
    """Draw one arm: label, whisker, mark, figures."""
    colour, middle = _COLOURS[number % len(_COLOURS)], canvas.y + LINE / 2
    canvas.add("text", _plain(row.arm), x=MARGIN + SIZE, y=middle + SIZE / 3)
    low, high, x = row.score.low, row.score.high, canvas.at(row.score.value)
    if low is not None and high is not None:
        canvas.add("line", x1=canvas.at(low), x2=canvas.at(high), y1=middle, y2=middle, stroke=colour, stroke_width=2)
    if number % 2:
        canvas.add("rect", x=x - 4, y=middle - 4, width=8, height=8, fill=colour)
    else:
        canvas.add("circle", cx=x, cy=middle, r=4.5, fill=colour)
    canvas.add("text", _figures(row), x=canvas.left + PLOT + SIZE, y=middle + SIZE / 3, fill="#666666")
    canvas.y += LINE


def _figures(row: CellRow) -> str:
    low, high = row.score.low, row.score.high
    bounds = "" if low is None or high is None else f" [{100 * low:.1f}, {100 * high:.1f}]"
    return f"{100 * row.score.value:.1f}{bounds} · n {row.n}" + (f", {row.missing} missing" if row.missing else "")


def _width(text: str) -> int:
    """Return the room that bold letters may need, in px: 0.75 of the size for most, 1.1 for wide ones."""
    wide = sum(letter.isupper() or letter in "mw@%" or not letter.isascii() for letter in text)
    return int(SIZE * (0.75 * (len(text) - wide) + 1.1 * wide)) + 1


def _plain(text: str) -> str:
    """Leave out what XML cannot hold."""
    return "".join(letter if letter.isprintable() else " " for letter in text)
