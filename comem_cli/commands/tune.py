"""`comem tune`: what splits and modes lose and save on your own documents, and which one to take."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from comem_cli.commands import options
from comem_cli.errors import UsageError
from comem_cli.output import out

if TYPE_CHECKING:
    from comem_cli.evaluate.tune import Tuning
    from comem_cli.evaluate.tune_options import TuneOptions
    from comem_cli.output import Progress


def tune(
    source: Annotated[list[Path], typer.Argument(metavar="STORE|CORPUS...", help="A store, or folders and files.")],
    split: Annotated[str | None, typer.Option(metavar="J,...", help="Default: L/6, L/4 and L/3.")] = None,
    mode: Annotated[str, typer.Option(metavar="MODE,...", help="Of chunk, overlap=W, document.")] = (
        "chunk,overlap=32,document"
    ),
    residual_dtype: Annotated[str, typer.Option(metavar="DTYPE,...", help="Of bf16, int8.")] = "bf16",
    packs: Annotated[int, typer.Option(help="Packs for LM tax and agreement.")] = 10,
    chunks: Annotated[int, typer.Option(help="Chunks a pack.")] = 4,
    needles: Annotated[int, typer.Option(help="Planted facts to copy; 0: none.")] = 20,
    questions: Annotated[int | None, typer.Option(metavar="N", help="How many the store will be asked.")] = None,
    generate: Annotated[int, typer.Option(help="Tokens of an answer.")] = 32,
    loss_budget: Annotated[float, typer.Option(help="What LM tax may exceed 1 by.")] = 0.02,
    copy_budget: Annotated[float, typer.Option(help="Share of replay's copies that may be lost.")] = 0.05,
    repeat: Annotated[int, typer.Option(help="Repetitions of each timing.")] = 5,
    adapter: Annotated[
        list[str] | None, typer.Option(metavar="DIR", help="Repeat it; none: without. Default: installed ones.")
    ] = None,
    chunk: Annotated[int | None, typer.Option(help="Tokens a chunk. Default: the store's, else 512.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of packs, needles, order and resampling.")] = 0,
    report: Annotated[Path | None, typer.Option(metavar="FILE", help="Write a report: .md or .svg.")] = None,
    model: options.Model = None,
    device: options.Device = "auto",
    dtype: options.Dtype = "auto",
    json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Recommend a split and mode, measured on your documents.

    Every arm is held against replay of the same packs: LM tax (ratio of perplexities), agreement of the first choice,
    copying of facts planted in your chunks, Read speed-up, Write. Recommended is the deepest split, then the cheapest
    Write, then the fewest bytes, of those with LM tax <= 1 + --loss-budget that keep >= 1 - --copy-budget of replay's
    copies. With --questions it is the one with the least Write + N x time a question instead, and replay where that
    takes less still.

    Of a store only the token ids are used, and nothing is changed. An interrupted run begins again.
    """
    out.configure(json=json, quiet=quiet)
    from comem_cli.commands import tune_view
    from comem_cli.evaluate.tune_options import TuneOptions

    chosen = TuneOptions(
        splits=_numbers(split),
        modes=tuple(part.strip() for part in mode.split(",") if part.strip()),
        packs=packs,
        chunks=chunks,
        needles=needles,
        questions=questions,
        generate=generate,
        loss=loss_budget,
        copy_loss=copy_budget,
        repeat=repeat,
        adapters=tuple(adapter or ()),
        chunk=chunk,
        seed=seed,
        device=device,
        dtype=dtype,
        residual_dtypes=tuple(part.strip() for part in residual_dtype.split(",") if part.strip()),
    ).checked()
    tune_view.check_report(report)
    found = _measure(source, model, chosen)
    tune_view.show(found, source, report)


def _numbers(text: str | None) -> tuple[int, ...]:
    parts = [] if text is None else [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdigit() and len(part) < 10 for part in parts):
        raise UsageError(f"--split {text} is no list of numbers", "pass --split 6,10,12")
    return tuple(sorted({int(part) for part in parts}))


def _measure(source: list[Path], model: str | None, chosen: TuneOptions) -> Tuning:
    from comem_cli.evaluate.tune_source import open_source

    files = options.resolve_model(model)
    out.note(f"opening {', '.join(map(str, source))} ...")
    with ExitStack() as stack:
        reader = stack.enter_context(open_source(source, files, chosen.chunk, out.warning))
        from comem_cli.evaluate.tune import Tuner  # torch

        bars: list[Progress] = []

        def progress(done: int, total: int) -> None:
            if not bars:
                bars.append(stack.enter_context(out.progress("tune", total, "step")))
            bars[0].update()

        tuner = Tuner(reader, files, chosen, out.note, progress)
        if len(tuner.packs) < chosen.packs:
            out.warning(f"the documents give {len(tuner.packs)} packs of {chosen.chunks} chunks, not {chosen.packs}")
        return tuner.run()
