"""A report as one rectangular table for programs: raw numbers, 0 to 1, an empty field for what is not known.

Macro rows stand under the cell "(macro)"; columns that only one kind of row has are empty in the other.
"""

from __future__ import annotations

from collections.abc import Sequence

from comem_cli.evaluate.comparison import Comparison, Discordant, MacroComparison
from comem_cli.evaluate.report import CellRow, MacroRow, Report
from comem_cli.measure.inference import Estimate

MACRO = "(macro)"
_HEAD = ["cohort", "cell", "arm", "n", "missing", "score", "low", "high", "interval"]
_PAIRED = ["pairs", "difference", "difference_low", "difference_high", "kept", "kept_n"]
_PAIRED += ["discordant_n", "gained", "lost", "mcnemar_p"]
_CELL = ["other_packs", "hit_rate", "hit_score", "hit_n", "recall", "errors", "pack_tokens"]
_MACRO = ["cells", "all_cells", "paired_cells"]
_MACRO += ["hierarchical_low", "hierarchical_high", "left_out_low", "left_out_high"]


def tsv(report: Report) -> list[list[str]]:
    """Return the header and one row for each cell row and macro row, all of one width, without tabs or newlines."""
    extra = sorted({name for row in report.cells for name in row.extra})
    header = [*_HEAD, *_PAIRED, *_CELL, *extra, *_MACRO]
    rows = [
        [*_head(row, row.cell, row.interval), *_paired(row.against), *_cell(row, extra), *_blank(_MACRO)]
        for row in report.cells
    ]
    rows += [
        [*_head(row, MACRO, "cells"), *_paired(row.against), *_blank([*_CELL, *extra]), *_macro(row)]
        for row in report.macros
    ]
    return [header, *([_plain(field) for field in row] for row in rows)]


def _head(row: CellRow | MacroRow, cell: str, interval: str) -> list[str]:
    return [row.cohort, cell, row.arm, str(row.n), str(row.missing), *_three(row.score), interval]


def _paired(against: Comparison | MacroComparison | None) -> list[str]:
    if against is None:
        return _blank(_PAIRED)
    found = [str(against.n), *_three(against.difference), _number(against.kept), str(against.kept_n)]
    return [*found, *_discordant(against.discordant)]


def _discordant(counts: Discordant | None) -> list[str]:
    return [""] * 4 if counts is None else [str(counts.n), str(counts.gained), str(counts.lost), f"{counts.p:.6g}"]


def _cell(row: CellRow, extra: Sequence[str]) -> list[str]:
    found = [str(row.against.other_packs) if row.against else "", _number(row.hit_rate), _number(row.hit_score)]
    found += [str(row.hit_n), _number(row.recall), str(row.errors), _number(row.pack_tokens)]
    return [*found, *(_number(row.extra.get(name)) for name in extra)]


def _macro(row: MacroRow) -> list[str]:
    found = [str(row.cells), str(row.all_cells)]
    if row.against is None:
        return [*found, *_blank(_MACRO[2:])]
    left = row.against.left_out or (None, None)
    return [*found, str(row.against.cells), *_three(row.against.hierarchical)[1:], *map(_number, left)]


def _three(score: Estimate | None) -> list[str]:
    return [""] * 3 if score is None else [_number(score.value), _number(score.low), _number(score.high)]


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.6g}"


def _blank(names: Sequence[str]) -> list[str]:
    return [""] * len(names)


def _plain(text: str) -> str:
    return "".join(character if character.isprintable() else " " for character in text)
