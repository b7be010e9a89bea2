"""A tuning as Markdown or SVG: every number with its n and 95 % interval, the frontier and the recommendation."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path

from comem_cli.errors import UsageError
from comem_cli.evaluate.report_file import write_aside
from comem_cli.evaluate.svg_canvas import LINE, MARGIN, PLOT, SIZE, Canvas, printable, text_width
from comem_cli.evaluate.tune import Tuning
from comem_cli.evaluate.tune_choice import frontier, meets, sentence
from comem_cli.evaluate.tune_row import TuneRow
from comem_cli.measure.crossing import Crossing
from comem_cli.measure.inference import Estimate

UNKNOWN = "–"
_HEADER = (
    "arm", "LM tax", "agreement", "KL", "first-token KL", "copied", "kept", "Read speed-up", "s a question",
    "bytes a token", "Write ms a token", "Write to chunk", "in FLOPs", "Q*", "frontier", "in budget",
)  # fmt: skip

_LEGEND = """\
Values with 95 % intervals against replay of the same packs: LM tax, agreement and KL (nats) bootstrap over packs,
first-token KL over needles, kept (of replay's copies) Wilson's. Read speed-up: time to the first token, medians of
interleaved repetitions. Q*: questions after which the store pays, from Write of the whole corpus; reading and
tokenising, which replay needs too, are left out."""


def check_ending(path: Path) -> None:
    """Raise UsageError (2) for an ending other than .md or .svg; to be asked before a long run."""
    if path.suffix not in (".md", ".svg"):
        raise UsageError(f"{path.name}: a report ends in .md or .svg", "name the report FILE.md")


def write_report(found: Tuning, path: Path, corpus: str) -> None:
    """Write the report; raises as `check_ending` does, and OSError."""
    check_ending(path)
    write_aside(path, svg(found) if path.suffix == ".svg" else markdown(found, corpus))


def markdown(found: Tuning, corpus: str) -> str:
    """Return the table, the recommendation and how to read both."""
    lines = [_HEADER, ("---",) * len(_HEADER)]
    lines += [_cells(row, best, found) for row, best in zip(found.rows, frontier(found.rows), strict=True)]
    table = "\n".join("| " + " | ".join(one.replace("|", "\\|") for one in line) + " |" for line in lines)
    facts, budget = found.facts, found.budget
    copies = f"{facts['needles_copied_by_replay']} of {facts['needles']} needles"
    advice = sentence(found.recommendation, found.rows, budget, corpus)
    parts = [
        f"# Splits and modes of {facts['model']} on {facts['tokens']:,} tokens",
        f"{advice[:1].upper()}{advice[1:]}.",
        table,
        f"{facts['packs']} packs of {facts['chunks_a_pack']} chunks of up to {facts['chunk']} tokens, no two "
        f"neighbours; {facts['repeat']} repetitions; answers of {facts['generate']} tokens; {facts['device']}, "
        f"{facts['dtype']}; seed {facts['seed']}. Replay copies {copies} and takes {budget.replay_s:.3g} s a "
        f"question. Budget: LM tax <= {1 + budget.loss:.3g}, kept >= {1 - budget.copy_loss:.3g}.",
        _LEGEND,
    ]
    return "\n\n".join(parts) + "\n"


def _cells(row: TuneRow, best: bool, found: Tuning) -> tuple[str, ...]:
    copying = row.copying
    return (
        row.name,
        estimate(row.lm_tax, "{:.3f}"),
        estimate(row.agreement, "{:.1%}"),
        estimate(row.kl, "{:.3f}"),
        estimate(row.first_kl, "{:.3f}"),
        f"{copying.copied} of {copying.n}" if copying else UNKNOWN,
        estimate(row.kept, "{:.0%}"),
        estimate(row.speedup, "{:.2f}"),
        f"{row.question_s:.3g}",
        f"{row.token_bytes:,}",
        f"{1e3 * row.write.token_s:.3g}",
        estimate(row.write.ratio, "{:.2f}"),
        f"{row.write.flops_ratio:.2f}",
        q_star(row.crossing),
        "yes" if best else "dominated",
        "yes" if meets(row, found.budget) else "no",
    )


def estimate(found: Estimate | None, form: str) -> str:
    """Write a value with its interval and n."""
    if found is None:
        return UNKNOWN
    value = form.format(found.value)
    if found.low is None or found.high is None:
        return f"{value} (n {found.n})"
    return f"{value} [{form.format(found.low)}, {form.format(found.high)}] (n {found.n})"


def q_star(found: Crossing) -> str:
    """Write after how many questions a store pays."""
    if found.verdict == "never":
        return "never"
    if found.queries is None:
        return "unresolved"
    high = "inf" if math.isinf(found.high) else f"{math.ceil(found.high):,}"
    return f"{math.ceil(found.queries):,} [{math.ceil(found.low):,}, {high}]"


def svg(found: Tuning) -> str:
    """Return a panel a figure, an arm a line: LM tax, share of copies kept, Read speed-up; dashed: the budget."""
    rows, budget = found.rows, found.budget
    title = f"Splits and modes of {found.facts['model']}, with 95 % intervals"
    left = MARGIN + max(text_width(row.name) for row in rows) + 2 * SIZE
    canvas = Canvas.starting_at(left)
    canvas.add("text", printable(title), x=MARGIN, y=canvas.y + SIZE, fill="#666666")
    canvas.y += LINE + 8
    panels: list[tuple[str, Callable[[TuneRow], Estimate | None], str, float | None]] = [
        ("LM tax (1 is no loss)", lambda row: row.lm_tax, "{:.3f}", 1 + budget.loss),
        ("Share of replay's copies kept", lambda row: row.kept, "{:.0%}", 1 - budget.copy_loss),
        ("Read speed-up", lambda row: row.speedup, "{:.2f}", None),
    ]
    panels = [panel for panel in panels if any(panel[1](row) is not None for row in rows)]
    for name, value, form, limit in panels:
        _panel(canvas, name, [(row, value(row)) for row in rows], form, limit)
    figures = max(text_width(estimate(value(row), form)) for _, value, form, _ in panels for row in rows)
    return canvas.document(max(left + PLOT + SIZE + figures, MARGIN + text_width(title)) + MARGIN, title)


def _panel(
    canvas: Canvas, name: str, rows: Sequence[tuple[TuneRow, Estimate | None]], form: str, limit: float | None
) -> None:
    """Draw one figure of every arm, on a scale that holds all of them, 1 and the budget."""
    values = [1.0] if limit is None else [1.0, limit]
    for _, one in rows:
        values += [bound for bound in (one.value, one.low, one.high) if bound is not None] if one else []
    least, most = min(values), max(values)
    room = (most - least or 1.0) * 0.05
    least, most = least - room, most + room

    def share(value: float) -> float:
        return (value - least) / (most - least)

    canvas.add("text", name, x=MARGIN, y=canvas.y + SIZE, font_weight="bold")
    canvas.y += LINE
    top, bottom = canvas.y, canvas.y + LINE * len(rows)
    for tick in range(5):
        value = least + tick * (most - least) / 4
        x = canvas.at(tick / 4)
        canvas.add("line", x1=x, x2=x, y1=top, y2=bottom, stroke="#dddddd")
        canvas.add("text", form.format(value), x=x, y=bottom + SIZE + 4, text_anchor="middle", fill="#666666")
    if limit is not None:
        x = canvas.at(share(limit))
        canvas.add("line", x1=x, x2=x, y1=top, y2=bottom, stroke="#222222", stroke_dasharray="4 3")
    splits = sorted({row.arm.split for row, _ in rows})
    for row, one in rows:
        middle = canvas.y + LINE / 2 + SIZE / 3
        canvas.add("text", printable(row.name), x=MARGIN, y=middle)
        if one is not None:
            low, high = (None if bound is None else share(bound) for bound in (one.low, one.high))
            canvas.mark(1 + splits.index(row.arm.split), share(one.value), low, high)
        canvas.add("text", estimate(one, form), x=canvas.left + PLOT + SIZE, y=middle, fill="#666666")
        canvas.y += LINE
    canvas.y = bottom + LINE + MARGIN
