"""`comem eval`: measure arms on benchmark tasks, and report."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from comem_cli.commands import options
from comem_cli.errors import UsageError
from comem_cli.output import out

if TYPE_CHECKING:
    from comem_cli.evaluate.records import Record
    from comem_cli.evaluate.runner import RunOptions

_ARM = "replay, or comem:j=12 with mode=document, overlap=32, adapter=DIR or write_adapter=DIR after commas."


def evaluate(
    tasks: Annotated[
        list[str] | None, typer.Argument(metavar="[TASK...]", help="Such as niah_multikey_1:4096.")
    ] = None,
    arm: Annotated[list[str] | None, typer.Option(metavar="ARM", help=f"Repeat it. {_ARM}")] = None,
    n: Annotated[int, typer.Option(help="Examples a task; 0 takes all that a file has.")] = 100,
    seed: Annotated[int, typer.Option(help="Seed of the examples.")] = 42,
    data: Annotated[
        Path | None, typer.Option(envvar="COMEM_DATA", metavar="DIR", help="Folder of the benchmarks' files.")
    ] = None,
    to: Annotated[
        Path, typer.Option("--out", metavar="FILE", help="Records; an interrupted run goes on from it.")
    ] = Path("comem-eval.jsonl"),
    also: Annotated[list[Path] | None, typer.Option("--with", metavar="FILE", help="More records to report.")] = None,
    report: Annotated[list[Path] | None, typer.Option(metavar="FILE", help="Write a report: .md, .tsv, .svg.")] = None,
    chunk: Annotated[int, typer.Option(help="Tokens a chunk.")] = 512,
    top_k: Annotated[int, typer.Option(help="Chunks to select.")] = 12,
    hop: Annotated[int, typer.Option(help="Chunks a later round adds; the first takes the rest.")] = 3,
    rounds: Annotated[int | None, typer.Option(help="Rounds of HOP chunks. Default: until full.")] = None,
    selector: Annotated[str, typer.Option(help="bm25-iterative, bm25 or recency.")] = "bm25-iterative",
    terms: Annotated[str, typer.Option(help="folded words, or tokens as in the paper.")] = "folded",
    max_new_tokens: Annotated[int | None, typer.Option(help="Instead of what the benchmark says.")] = None,
    list_tasks: Annotated[bool, typer.Option("--list", help="List the tasks, each with an example.")] = False,
    model: options.Model = None,
    device: options.Device = "auto",
    dtype: options.Dtype = "auto",
    json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Measure how well arms answer benchmark tasks.

    Every arm gets the same pack of the same examples. Each answer is on disk before the next one begins; the same
    command goes on after an interruption. Without a TASK, the records of --out are reported. Arms are held against
    replay, where it is one of them.
    """
    out.configure(json=json, quiet=quiet)
    from comem_cli.commands import eval_view
    from comem_cli.evaluate.runner import RunOptions

    if list_tasks:
        eval_view.show_tasks()
        return
    chosen = RunOptions(chunk, top_k, hop, rounds, selector, terms, max_new_tokens, device, dtype).checked()
    eval_view.check_reports(report or [])
    found = _run(tasks, arm or [], chosen, n, seed, data, to, model) if tasks else _read(to)
    for path in also or []:
        found += _read(path)
    eval_view.show(found, report or [])


def _run(
    tasks: list[str],
    arms: list[str],
    chosen: RunOptions,
    n: int,
    seed: int,
    data: Path | None,
    to: Path,
    model: str | None,
) -> list[Record]:
    from comem_cli.evaluate.arms import parse_arms
    from comem_cli.evaluate.run import EvalRun

    if not arms:
        raise UsageError("no arm to measure", "pass --arm replay --arm comem:j=12,mode=chunk")
    if n < 0:
        raise UsageError(f"--n {n} is below 0", "pass --n 100")
    parsed = parse_arms(arms)
    out.note(f"making {len(tasks)} tasks ...")
    run = EvalRun(options.resolve_model(model), tasks, parsed, chosen, n, seed, data, to, out.note)
    found: list[Record] = []
    try:
        with out.progress("answers", run.total, "answer") as bar:
            for record in run.records():
                found.append(record)
                bar.update()
    except BaseException as error:
        if not isinstance(error, Exception):  # an interruption
            out.note(f"stopped at {len(found)} of {run.total} answers; run the same command again to go on")
        raise
    return found


def _read(path: Path) -> list[Record]:
    from comem_cli.evaluate.records import read_records

    if not path.exists():
        raise UsageError(f"there are no records at {path}", "name a task: comem eval niah_multikey_1:4096 --arm replay")
    return list(read_records(path))
