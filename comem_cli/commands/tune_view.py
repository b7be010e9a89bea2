"""Show a tuning: a table and bars to a person, raw numbers to a pipe, one JSON document to a program."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from comem_cli.output import out, stdout_is_terminal

if TYPE_CHECKING:
    from comem_cli.evaluate.tune import Tuning
    from comem_cli.evaluate.tune_row import TuneRow
    from comem_cli.measure.inference import Estimate

HEADER = ("arm", "LM tax", "agree %", "copied", "kept %", "Read x", "Write ms/token", "Q*", "")
_BAR = 40  # columns


def check_report(path: Path | None) -> None:
    """Refuse a report file whose form is not known; raises UsageError (2)."""
    from comem_cli.evaluate.tune_report import check_ending

    if path is not None:
        check_ending(path)


def show(found: Tuning, source: Sequence[Path], report: Path | None) -> None:
    """Print the measurements and the recommendation, after writing the report where one is asked for."""
    from comem_cli.evaluate.tune_choice import frontier, sentence
    from comem_cli.evaluate.tune_report import write_report
    from comem_cli.evaluate.tune_source import is_store
    from comem_cli.evaluate.tune_tsv import tsv

    corpus = shlex.join(found.facts["roots"] if is_store(source[0]) else map(str, source))
    best = frontier(found.rows)
    advice = sentence(found.recommendation, found.rows, found.budget, corpus)
    if report is not None:
        write_report(found, report, corpus)
        out.note(f"report: {report}")
    if out.json:
        out.document(_document(found, best, advice))
    elif stdout_is_terminal():
        facts = found.facts
        out.text(
            f"{facts['packs']} packs, {facts['needles']} needles: replay copies {facts['needles_copied_by_replay']}"
        )
        out.table(HEADER, [_cells(row, kept, found) for row, kept in zip(found.rows, best, strict=True)])
        _plot(found.rows)
        out.text(advice)
    else:
        out.table(*tsv(found.rows))
        out.note(advice)


def _document(found: Tuning, best: Sequence[bool], advice: str) -> dict[str, Any]:
    from comem_cli.evaluate.tune import SCHEMA
    from comem_cli.evaluate.tune_choice import meets

    choice, budget = found.recommendation, found.budget
    rows = [
        {**row.to_json(), "frontier": kept, "in_budget": meets(row, budget)}
        for row, kept in zip(found.rows, best, strict=True)
    ]
    arm = choice.row.arm.spec if choice.row is not None and choice.verdict == "store" else None
    advised = {"verdict": choice.verdict, "arm": arm, "certain": choice.certain, "sentence": advice}
    return {"schema": SCHEMA, **found.facts, "budget": vars(budget), "rows": rows, "recommendation": advised}


def _cells(row: TuneRow, best: bool, found: Tuning) -> tuple[str, ...]:
    from comem_cli.evaluate.tune_choice import meets
    from comem_cli.evaluate.tune_report import q_star

    copied = f"{row.copying.copied}/{row.copying.n}" if row.copying else "-"
    marks = [*([] if best else ["dominated"]), *(["in budget"] if meets(row, found.budget) else [])]
    return (
        row.name,
        _span(row.lm_tax, 1, 3),
        _span(row.agreement, 100, 1),
        copied,
        _span(row.kept, 100, 0),
        _span(row.speedup, 1, 2),
        f"{1e3 * row.write.token_s:.3g} (x{row.write.ratio.value:.2f})",
        q_star(row.crossing),
        ", ".join(marks),
    )


def _span(found: Estimate | None, factor: float, digits: int) -> str:
    if found is None:
        return "-"
    value, *bounds = (
        None if one is None else f"{factor * one:.{digits}f}" for one in (found.value, found.low, found.high)
    )
    return f"{value}" + ("" if None in bounds else f" [{bounds[0]}, {bounds[1]}]")


def _plot(rows: Sequence[TuneRow]) -> None:
    """Draw the loss and the speed-up of every arm as bars."""
    width, loss = max(len(row.name) for row in rows), max(*(abs(row.lm_tax.value - 1) for row in rows), 1e-9)
    fast = max(row.speedup.value for row in rows)
    for row in rows:
        lost = "#" * max(0, round(_BAR * (row.lm_tax.value - 1) / loss))
        saved = "=" * round(_BAR * row.speedup.value / fast)
        out.text(f"{row.name:<{width}}  speed-up {saved:<{_BAR}}  loss {lost}")
