"""A report as Markdown: one table a cohort, its macro scores, how to read them.

Scores and differences are points of 100 with their 95 % intervals; what is not known is an en dash.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from comem_cli.evaluate.comparison import Comparison, MacroComparison
from comem_cli.evaluate.report import CellRow, MacroRow, Report
from comem_cli.measure.inference import Estimate

UNKNOWN = "–"
_PAIRED = ["kept", "alone right", "p"]
_CELL = ["cell", "arm", "n", "score", "Δ", *_PAIRED, "hit", "at hit", "recall", "errors", "pack"]
_MACRO = ["arm", "cells", "n", "macro score", "Δ", "Δ, other cells", "Δ, one cell left out", *_PAIRED]


def markdown(report: Report) -> str:
    """Return one section a cohort: its cells, then its macro scores, and how to read them."""
    sections = []
    for cohort in dict.fromkeys(row.cohort for row in report.cells):
        rows = [row for row in report.cells if row.cohort == cohort]
        extra = sorted({name for row in rows for name in row.extra})
        sections.append(f"## {_escaped(cohort)}")
        sections.append(
            _table([*_CELL, *(name.replace("_", " ") for name in extra)], (_cell(row, extra) for row in rows))
        )
        macros = [row for row in report.macros if row.cohort == cohort]
        if macros:
            sections.append(_table(_MACRO, map(_macro, macros)))
    return "\n\n".join([*sections, _legend(report)]) + "\n"


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *([_escaped(field) for field in row] for row in rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _cell(row: CellRow, extra: Sequence[str]) -> list[str]:
    found = [row.cell, row.arm, _count(row.n, row.missing), _points(row.score)]
    found.append(_difference(row.against.difference, row.against.n, row.n) if row.against else UNKNOWN)
    found += _paired(row.against)
    at_hit = UNKNOWN if row.hit_score is None else f"{_point(row.hit_score)} (n {row.hit_n})"
    tokens = UNKNOWN if row.pack_tokens is None else f"{row.pack_tokens:.0f}"
    if row.against and row.against.other_packs:
        tokens += f" ({row.against.other_packs} differ)"
    found += [_point(row.hit_rate), at_hit, _point(row.recall), str(row.errors), tokens]
    return [*found, *(f"{row.extra[name]:.3f}" if name in row.extra else UNKNOWN for name in extra)]


def _macro(row: MacroRow) -> list[str]:
    cells = f"{row.cells}" if row.cells == row.all_cells else f"{row.cells} of {row.all_cells}"
    found = [row.arm, cells, _count(row.n, row.missing), _points(row.score)]
    if row.against is None:
        return [*found, UNKNOWN, UNKNOWN, UNKNOWN, *_paired(None)]
    found.append(_difference(row.against.difference, row.against.n, row.n))
    left = row.against.left_out
    found += [_bounds(row.against.hierarchical), f"{_signed(left[0])} to {_signed(left[1])}" if left else UNKNOWN]
    return [*found, *_paired(row.against)]


def _paired(against: Comparison | MacroComparison | None) -> list[str]:
    if against is None:
        return [UNKNOWN] * len(_PAIRED)
    kept = UNKNOWN if against.kept is None else f"{_point(against.kept)} (n {against.kept_n})"
    counts = against.discordant
    if counts is None:
        return [kept, UNKNOWN, UNKNOWN]
    only = "" if counts.n == against.n else f" (n {counts.n})"
    return [kept, f"{counts.gained} : {counts.lost}{only}", f"{counts.p:.3g}"]


def _count(n: int, missing: int) -> str:
    return f"{n}, {missing} missing" if missing else str(n)


def _points(score: Estimate | None) -> str:
    return UNKNOWN if score is None else f"{_point(score.value)} {_bounds(score)}"


def _bounds(score: Estimate) -> str:
    return UNKNOWN if score.low is None or score.high is None else f"[{_point(score.low)}, {_point(score.high)}]"


def _difference(score: Estimate, pairs: int, n: int) -> str:
    return f"{_signed(score.value)} {_bounds(score)}" + ("" if pairs == n else f" (n {pairs})")


def _point(value: float | None) -> str:
    return UNKNOWN if value is None else f"{round(100 * value, 1) + 0.0:.1f}"  # + 0.0: no minus before a nought


def _signed(value: float) -> str:
    return f"{round(100 * value, 1) + 0.0:+.1f}"


def _escaped(text: str) -> str:
    plain = "".join(letter if letter.isprintable() else " " for letter in text)
    return plain.replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;")


def _legend(report: Report) -> str:
    return "\n".join(
        [
            "Scores are points of 100 with 95 % intervals: Wilson's for scores of 0 and 1, else the bootstrap over",
            f"examples, or over groups where examples share one. Δ: arm minus `{report.reference}` on the examples of",
            "both, paired bootstrap; over other cells: cells resampled as well. kept: the arm's mean score where",
            f"`{report.reference}` scored 1. alone right: examples only the arm has right : only `{report.reference}`;",
            "p: exact McNemar. hit: share of packs with all the evidence; at hit: mean score over these. errors: no",
            f"answer, counted as 0. pack: mean tokens. {UNKNOWN}: not known. Cohorts are never pooled.",
        ]
    )
