"""Show an answer and its sources to a person."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from comem_cli.output import out

if TYPE_CHECKING:
    from comem_cli.read.ask import Asked
    from comem_cli.read.evidence import Source


def live_printer() -> Callable[[str], None]:
    """Return a function that prints an answer piece by piece, without the blanks before its first word."""
    begun = False

    def show(piece: str) -> None:
        nonlocal begun
        text = piece if begun else piece.lstrip()
        begun = begun or bool(text)
        out.piece(text)

    return show


def show_answer(asked: Asked, *, streamed: bool) -> None:
    """Print the answer (unless it was streamed: then only the end of its line) and the sources."""
    if streamed:
        out.text()
    elif len(asked.answers) == 1:
        out.text(asked.answers[0].text)
    else:
        _both_arms(asked)
    out.text()
    out.text("Sources")
    several = len({source.round for source in asked.sources}) > 1
    for number, source in enumerate(asked.sources, 1):
        out.text(_citation(number, source, with_round=several), one_line=True)
    if "selection" in asked.facts:
        _explanation(asked.facts["selection"])


def _explanation(selection: dict[str, Any]) -> None:
    """Print a line a chunk: round, score, shared terms with the number of chunks that hold each; then what was left."""
    out.text()
    out.text(f"Selected by {selection['selector']} over {selection['terms']} terms")
    out.text(f"question: {' '.join(selection['question_terms'])}", one_line=True)
    for entry in selection["selected"]:
        shared = ", ".join(f"{match['term']} ({match['chunks']})" for match in entry["matches"])
        out.text(f"round {entry['round']}  {_scored(entry)}  {shared or 'no shared term'}", one_line=True)
    out.text()
    out.text("Not selected")
    for entry in selection["not_selected"]:
        out.text(f"round {entry['round']}  {_scored(entry)}  {entry['reason']}", one_line=True)
    if not selection["not_selected"]:
        out.text("no other chunk scores")


def _scored(entry: dict[str, Any]) -> str:
    first, last = entry["lines"]
    return f"{entry['path']}:{first}-{last}  {entry['score']:.4g}"


def _both_arms(asked: Asked) -> None:
    for answer in asked.answers:
        ms = answer.timing_ms
        out.text(f"{answer.arm}: {answer.text}")
        out.text(f"  read {ms['read']:.0f} ms, decode {ms['decode']:.0f} ms, {len(answer.ids)} tokens")
    out.text(f"agree: {'yes' if asked.agree else 'no'}")


def _citation(number: int, source: Source, *, with_round: bool) -> str:
    """Write a source in a line; the round stands beside scores of several, which are of different queries."""
    first, *others = [f"{place.path}:{place.line_first}-{place.line_last}" for place in source.places]
    also = f"  also {', '.join(others)}" if others else ""
    stale = "  (changed since ingest)" if source.stale else ""
    beside = "  (neighbour)" if source.neighbour else ""
    turn = f"  (round {source.round})" if with_round else ""
    return f"[{number}] {first}  {source.score:.2f}{turn}{beside}{also}{stale}"
