"""`comem verify`: run the exactness contracts on the user's own model and store."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from comem_cli.commands import options
from comem_cli.errors import ComemError
from comem_cli.output import out, stdout_is_terminal

if TYPE_CHECKING:
    from comem_cli.measure.verify import Result

HEADER = ("contract", "measured", "tolerance", "verdict", "detail")
WIDTHS = (10, 10, 10, 8)


def verify(
    store: Annotated[Path | None, typer.Argument(metavar="[STORE]", help="Default: the only one in ./stores.")] = None,
    samples: Annotated[int, typer.Option(help="Chunks to write again and to query.")] = 8,
    every: Annotated[bool, typer.Option("--all", help="Write and query every chunk.")] = False,
    model: options.Model = None,
    device: options.Device = "auto",
    dtype: Annotated[str, typer.Option(help="Of lines 1 to 6: fp32, bf16 or fp16. Line 7 uses the store's.")] = "fp32",
    json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Check what comem promises on your model and store.

    Exact replay, exact bytes, exact scores: eight lines; exit code 1 if one fails. Nothing in the store is changed.
    """
    out.configure(json=json, quiet=quiet)
    target = store or options.only_store()
    out.note(f"verifying {target} ...")
    from comem_cli.measure import verify as library

    chosen = library.VerifyOptions(None if every else samples, device, dtype).checked()
    live = not json and stdout_is_terminal()
    if live:
        out.text(_aligned(HEADER))
    results = []
    for result in library.verify(target, lambda: options.resolve_model(model), chosen, out.note):
        results.append(result)
        if live:
            out.text(_aligned(_row(result)))
    if json:
        out.document({"store": str(target), "contracts": [result.to_json() for result in results]})
    elif not live:
        out.table(HEADER, [_row(result) for result in results])
    failed = [result.name for result in results if not result.passed]
    if failed:
        count = f"{len(failed)} of {len(results)} contracts failed"
        raise ComemError(f"{count}: {', '.join(failed)}", _way_out(failed, target))


def _way_out(failed: list[str], store: Path) -> str:
    """Name the command that mends what failed; lines about the model have none."""
    if failed == ["selection"]:
        return f"comem index {store}"
    if failed == ["storage"]:
        return "if the model is the right one, write the store again: comem ingest PATH --store DIR"
    return "please report it, with the output of: comem stats --json"


def _row(result: Result) -> tuple[str, ...]:
    measured = "-" if result.measured is None else f"{result.measured:.3g}"
    return result.name, measured, f"{result.tolerance:.3g}", "ok" if result.passed else "FAILED", result.detail


def _aligned(row: tuple[str, ...]) -> str:
    return " ".join([*(cell.ljust(width) for cell, width in zip(row, WIDTHS, strict=False)), row[-1]])
