"""Turn HTML into plain text that keeps its blocks.

Every block and every <br> ends a line, cells of a table row are joined by " | ", white space collapses except in
<pre>, which stays verbatim. Scripts, styles, navigation, buttons and embedded media go; the title stays.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from selectolax.lexbor import LexborNode


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


_DROPPED = _names(
    "script style noscript template nav iframe object embed svg math canvas audio video select button "
    "link meta base -comment"
)
_BLOCKS = _names(
    "html head body title address article aside blockquote caption center dd details dialog dir div dl dt fieldset "
    "figcaption figure footer form h1 h2 h3 h4 h5 h6 header hgroup hr legend li main menu nav ol p pre search section "
    "summary table tbody tfoot thead tr ul br"
)
_CELLS = _names("td th")
_VOID = _names("area base br col embed hr img input link meta param source track wbr")
_SELF_CLOSING = _names("p li dt dd td th tr thead tbody tfoot option optgroup colgroup html head body")
_SPACE = re.compile(r"[ \t\n\f\r]+")
_TAG = re.compile(r"<(/?)([a-zA-Z][a-zA-Z0-9]*)")
_PAGE_START = re.compile(r"\s*(?:<\?xml[^>]{0,200}>\s*)?(?:<!doctype\s+html|<html[\s>])", re.IGNORECASE)
# HTML5 tree building takes time and memory in proportion to nesting; real pages stay far below these.
_MAX_MEAN_DEPTH = 256
_MIN_NESTING_COST = 2_000_000


def is_html(path: str, text: str) -> bool:
    """Recognise a page by its suffix (.html, .htm, .xhtml) or by how its text starts."""
    return path.lower().endswith((".html", ".htm", ".xhtml")) or _PAGE_START.match(text[:2048]) is not None


def too_nested(markup: str) -> bool:
    """Detect pages whose nesting would make the parser take minutes (estimated from the tags, in linear time)."""
    opened: Counter[str] = Counter()
    depth = cost = tags = 0
    for match in _TAG.finditer(markup):
        name = match[2].lower()
        if not match[1]:
            if name not in _VOID and name not in _SELF_CLOSING:
                opened[name] += 1
                depth += 1
            cost += depth
            tags += 1
        elif opened[name]:
            opened[name] -= 1
            depth -= 1
        if cost > _MIN_NESTING_COST and cost > _MAX_MEAN_DEPTH * tags:
            return True
    return False


def html_text(markup: str) -> str:
    """Extract the text of a page; "" when it has none."""
    from selectolax.lexbor import LexborHTMLParser

    root = LexborHTMLParser(markup).root
    lines = _Lines()
    node = root
    while node is not None:  # iterative: nesting may exceed Python's recursion limit
        child = None if node.tag in _DROPPED else node.child
        _enter(node, lines)
        if child is not None:
            node = child
            continue
        while node is not None:
            _leave(node, lines)
            if node.next is not None:
                node = node.next
                break
            node = node.parent
    return lines.text()


class _Lines:
    """Collect inline text into lines and <pre> blocks into verbatim ones."""

    def __init__(self) -> None:
        self._done: list[str] = []
        self._current: list[str] = []
        self.pre_depth = 0

    def add(self, text: str) -> None:
        self._current.append(text)

    def end_cell(self) -> None:
        if "".join(self._current).strip():
            self._current.append(" | ")

    def end_line(self) -> None:
        if self.pre_depth:
            return
        line = _SPACE.sub(" ", "".join(self._current)).strip(" ").removesuffix(" |")
        self._current.clear()
        if line:
            self._done.append(line)

    def end_pre(self) -> None:
        block = "".join(self._current)
        self._current.clear()
        if block.strip():
            self._done.append(block.removesuffix("\n"))

    def text(self) -> str:
        self.end_line()
        return "".join(line + "\n" for line in self._done)


def _enter(node: LexborNode, lines: _Lines) -> None:
    tag = node.tag
    if tag == "-text":
        lines.add(node.text_content or "")
    elif tag == "br" and lines.pre_depth:
        lines.add("\n")
    elif tag in _BLOCKS:
        lines.end_line()
    if tag == "pre":
        lines.pre_depth += 1


def _leave(node: LexborNode, lines: _Lines) -> None:
    tag = node.tag
    if tag == "pre":
        lines.pre_depth -= 1
        if not lines.pre_depth:
            lines.end_pre()
    elif tag in _CELLS:
        if not lines.pre_depth:
            lines.end_cell()
    elif tag in _BLOCKS:
        lines.end_line()
