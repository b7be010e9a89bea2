"""`comem break-even`: after how many questions a store pays, measured on it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from comem_cli.commands import options
from comem_cli.errors import UsageError
from comem_cli.output import out, stdout_is_terminal

if TYPE_CHECKING:
    from comem_cli.measure.break_even import BreakEven, BreakEvenOptions
    from comem_cli.measure.crossing import Row

ONE_TIME = ("W s", "I0 s")
HEADER = ("G", "T0 s", "T s", "T0-T s", "low s", "high s", "Q*", "Q* low", "Q* high")


def break_even(
    store: Annotated[Path | None, typer.Argument(metavar="[STORE]", help="Default: the only one in ./stores.")] = None,
    generate: Annotated[str, typer.Option(metavar="G,...", help="Answer lengths, in tokens.")] = "1,32,128",
    repeat: Annotated[int, typer.Option(help="Repetitions, 5 or more.")] = 7,
    questions: Annotated[int | None, typer.Option(metavar="N", help="Say what N questions cost or save.")] = None,
    cases: Annotated[Path | None, typer.Option(metavar="FILE", help='JSONL of {"question": ...} to time.')] = None,
    samples: Annotated[int, typer.Option(help="Without --cases: questions made of spans of stored chunks.")] = 2,
    top_k: Annotated[int, typer.Option(help="Chunks to select.")] = 12,
    hop: Annotated[int, typer.Option(help="Chunks a later round adds; the first takes the rest.")] = 3,
    rounds: Annotated[int | None, typer.Option(help="Rounds of HOP chunks. Default: until full.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of made questions, of the order of runs and of resampling.")] = 0,
    model: options.Model = None,
    device: options.Device = "auto",
    dtype: options.Dtype = "auto",
    json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Measure after how many questions a store pays.

    Q* = (W - I0) / (T0 - T). W: what writing this store took, from its ledger. I0: what storing the raw tokens takes.
    T0 and T: a question by replay of all layers and by stored residuals, from fetch to exactly G new tokens. Where the
    95 % interval of T0 - T spans zero, Q* is unresolved; where the store saves nothing, it never pays (inf). This takes
    some 2 x (repeat + 1) answers a question.
    """
    out.configure(json=json, quiet=quiet)
    if questions is not None and questions < 1:
        raise UsageError(f"--questions {questions} is below 1", "pass --questions 100")
    target = store or options.only_store()
    out.note(f"opening {target} ...")
    from comem_cli.measure.break_even import BreakEvenOptions

    lengths = _lengths(generate)
    chosen = BreakEvenOptions(lengths, repeat, cases, samples, top_k, hop, rounds, seed, device, dtype).checked()
    measured = _measure(target, model, chosen)
    if out.json:
        out.document(measured.to_json(questions))
    else:
        _show(measured, questions)


def _lengths(text: str) -> tuple[int, ...]:
    try:
        return tuple(sorted({int(part) for part in text.split(",")}))
    except ValueError:
        raise UsageError(f"--generate {text} is no list of numbers", "pass --generate 1,32,128") from None


def _measure(target: Path, model: str | None, chosen: BreakEvenOptions) -> BreakEven:
    from contextlib import ExitStack

    from comem_cli.measure.break_even import measure
    from comem_cli.output import Progress

    with ExitStack() as stack:
        bars: list[Progress] = []

        def progress(done: int, total: int) -> None:
            if not bars:
                bars.append(stack.enter_context(out.progress("timing", total, "run")))
            bars[0].update()

        return measure(
            target,
            lambda: options.resolve_model(model),
            chosen,
            note=out.note,
            warn=out.warning,
            progress=progress,
        )


def _show(measured: BreakEven, questions: int | None) -> None:
    """Print the table, in a pipe with both one-time costs in every row, and a sentence a row on stderr."""
    from comem_cli.measure.crossing import seconds, sentence

    write, raw = measured.write, measured.raw
    if stdout_is_terminal():
        ways = {"sources": "measured on the sources", "token ids": "storing the ids alone: no source is unchanged"}
        kinds = ", ".join(write.kinds)
        out.text(f"W   {seconds(write.seconds)}  ({write.stored_tokens:,} tokens, {kinds} in the ledger)")
        out.text(f"I0  {seconds(raw.seconds)}  ({ways[raw.method]})")
        out.table(HEADER, [_cells(row, 4) for row in measured.rows])
    else:
        costs = [f"{cost:.6g}" for cost in (write.seconds, raw.seconds)]
        out.table((*HEADER, *ONE_TIME), [(*_cells(row, 6), *costs) for row in measured.rows])
    if questions is not None:
        for row in measured.rows:
            out.note(sentence(row, questions))


def _cells(row: Row, digits: int) -> tuple[object, ...]:
    found = row.crossing
    star = "unresolved" if found.queries is None else f"{found.queries:.{digits}g}"
    times = (row.replay_s, row.comem_s, row.saving_s, row.saving.low, row.saving.high)
    bounds = (found.low, found.high)
    return (row.new_tokens, *(f"{t:.{digits}g}" for t in times), star, *(f"{q:.{digits}g}" for q in bounds))
