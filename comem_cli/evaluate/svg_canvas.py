"""What the SVG reports draw with: a canvas that grows downwards, one fixed scale, colours, room for letters."""

from __future__ import annotations

from dataclasses import dataclass
from xml.etree import ElementTree as Xml

PLOT, MARGIN = 420, 16  # px: the scale, the rim
LINE, SIZE = 20, 12  # px: height of a line, size of the letters
# Okabe and Ito's colours, which colour-blind readers tell apart; black is the reference arm
COLOURS = ("#000000", "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00")


@dataclass
class Canvas:
    """Collect shapes from the top down; y is the next free pixel."""

    left: int  # px, where the scale begins
    body: Xml.Element
    y: int = MARGIN

    @classmethod
    def starting_at(cls, left: int) -> Canvas:
        """Make an empty canvas whose scale begins at `left` px."""
        style = {"font-family": "sans-serif", "font-size": str(SIZE), "fill": "#222222"}
        return cls(left, Xml.Element("g", style))

    def add(self, tag: str, text: str = "", **attributes: object) -> None:
        """Add an element; an underscore in a name stands for a hyphen."""
        names = {name.replace("_", "-"): str(value) for name, value in attributes.items()}
        Xml.SubElement(self.body, tag, names).text = text or None

    def at(self, share: float) -> float:
        """Return the x of a share, 0 to 1, of the scale."""
        return round(self.left + PLOT * share, 1)

    def mark(self, number: int, share: float, low: float | None, high: float | None) -> None:
        """Draw a value with its interval on the present line; the number picks colour and shape."""
        colour, middle, x = COLOURS[number % len(COLOURS)], self.y + LINE / 2, self.at(share)
        if low is not None and high is not None:
            self.add("line", x1=self.at(low), x2=self.at(high), y1=middle, y2=middle, stroke=colour, stroke_width=2)
        if number % 2:
            self.add("rect", x=x - 4, y=middle - 4, width=8, height=8, fill=colour)
        else:
            self.add("circle", cx=x, cy=middle, r=4.5, fill=colour)

    def document(self, width: int, title: str) -> str:
        """Return the SVG document."""
        height = self.y + MARGIN
        size = {"width": str(width), "height": str(height), "viewBox": f"0 0 {width} {height}"}
        root = Xml.Element("svg", {"xmlns": "http://www.w3.org/2000/svg", "role": "img", **size})
        Xml.SubElement(root, "title").text = title
        Xml.SubElement(root, "rect", {"width": str(width), "height": str(height), "fill": "#ffffff"})
        root.append(self.body)
        Xml.indent(root)
        return Xml.tostring(root, encoding="unicode") + "\n"


def text_width(text: str) -> int:
    """Return the room that bold letters may need, in px: 0.75 of the size for most, 1.1 for wide ones."""
    wide = sum(letter.isupper() or letter in "mw@%" or not letter.isascii() for letter in text)
    return int(SIZE * (0.75 * (len(text) - wide) + 1.1 * wide)) + 1


def printable(text: str) -> str:
    """Leave out what XML cannot hold."""
    return "".join(letter if letter.isprintable() else " " for letter in text)
