"""`comem check`: is the store whole? `--repair` mends what can be mended from inside."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from comem_cli.commands import options
from comem_cli.commands.check_view import show_repair, show_report
from comem_cli.errors import CorruptStoreError, UsageError
from comem_cli.output import out

if TYPE_CHECKING:
    from comem_cli.store.check import Report


def check(
    store: Annotated[Path | None, typer.Argument(metavar="[STORE]", help="Default: the only one in ./stores.")] = None,
    read_data: Annotated[bool, typer.Option("--read-data", help="Read every residual and every key as well.")] = False,
    sample: Annotated[int, typer.Option(help="Read the residuals of this many random chunks.")] = 0,
    seed: Annotated[int, typer.Option(help="Seed of --sample.")] = 0,
    repair: Annotated[bool, typer.Option("--repair", help="Mend what is damaged; reads everything.")] = False,
    model: options.Model = None,
    device: options.Device = "auto",
    json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Look for damage in a store.

    Catalogue, sizes of all files and the index; with --read-data every byte. Exit code 13 says that something is
    damaged: each finding has a reason code and the command that mends it. Notes, as leftovers that the next writer
    removes, are no damage. Nothing is written.

    --repair computes damaged residuals again from the kept token ids (with the store's model) and rebuilds the index.
    """
    out.configure(json=json, quiet=quiet)
    if sample < 0:
        raise UsageError(f"--sample {sample} is below 0", "pass --sample 100")
    target = store or options.only_store()
    from comem_cli.select.check_index import check_store_index

    if repair:
        report = _repair(target, model, device)
    else:
        out.note(f"checking {target} ...")
        from comem_cli.store.check import CheckOptions, check_store

        report = check_store(target, CheckOptions(read_data, sample, seed), check_store_index)
        show_report(report, every_byte=read_data)
    if report.damage:
        _fail(target, report)


def _repair(target: Path, model: str | None, device: str) -> Report:
    from comem_cli.select.store_repair import store_repair

    out.note(f"checking every byte of {target} ...")
    job = store_repair(target, lambda: options.resolve_model(model), device=device, note=out.note)
    before, after = job.run()
    show_repair(before, job.done, after)
    return after


def _fail(target: Path, report: Report) -> None:
    fixes = list(dict.fromkeys(finding.fix(target) for finding in report.damage))
    count = f"{len(report.damage)} finding{'s' if len(report.damage) > 1 else ''}"
    raise CorruptStoreError(f"{target} is damaged: {count}", fixes[0])
