"""`comem ingest`: write the residuals of a folder of documents into a store."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from comem_cli.commands import options
from comem_cli.commands.ingest_view import show_counts, show_plan, show_summary
from comem_cli.commands.terms import Terms, scheme_of
from comem_cli.errors import PartialError, UsageError
from comem_cli.output import out

if TYPE_CHECKING:
    from comem_cli.store.ingest import Summary
    from comem_cli.store.plan import Plan
    from comem_cli.store.run import IngestRun


def ingest(
    sources: Annotated[list[str], typer.Argument(metavar="PATH...", help="Folders or files to ingest.")],
    store: Annotated[Path | None, typer.Option(metavar="DIR", help="Store; default stores/NAME of the folder.")] = None,
    split: Annotated[
        int | None, typer.Option(help="Layers to run once, 0..L. Default: the store's, an adapter's, or L/6.")
    ] = None,
    mode: Annotated[str | None, typer.Option(help="chunk, or document: all before it as context.")] = None,
    overlap: Annotated[int | None, typer.Option(help="Left-context tokens of each chunk. Default: 0.")] = None,
    chunk: Annotated[int | None, typer.Option(help="Tokens a chunk. Default: the store's, else 512.")] = None,
    model: options.Model = None,
    device: options.Device = "auto",
    dtype: options.Dtype = "auto",
    residual_dtype: options.ResidualDtype = None,
    terms: Terms = None,
    write_adapter: Annotated[str | None, typer.Option(metavar="DIR|none", help="LoRA that writes chunks.")] = None,
    no_index: Annotated[bool, typer.Option("--no-index", help="Do not build the BM25 index.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be done, write nothing.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Allow removing more than half of a store.")] = False,
    json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Write documents into a store.

    Every chunk runs through layers [0:split) once and its residuals are kept. Run the same command again to take up
    changes, or to go on after an interruption. Exit code 3 says that some files could not be read; they are named,
    and the rest is stored.
    """
    out.configure(json=json, quiet=quiet)
    if "" in sources:
        raise UsageError("a path is empty", "comem ingest . for this folder")
    paths = [Path(source) for source in sources]
    target = store or options.default_store(paths)
    out.note(f"ingesting into {target}")
    from comem_cli.store.plan import require_sources
    from comem_cli.store.run import IngestRun
    from comem_cli.store.setup import WriteOptions

    require_sources(paths, target)
    files = options.resolve_model(model)
    run = IngestRun(
        target, files, WriteOptions(split, chunk, overlap, device, dtype, yes, mode, write_adapter, residual_dtype)
    )
    if dry_run:
        show_plan(run.plan(paths))
        return
    try:
        summary, indexed = _write(run, paths, terms, index=not no_index)
    except BaseException as error:
        if not isinstance(error, Exception):  # an interruption
            out.note("stopped; run the same command again to go on from the last commit")
        raise
    show_summary(run, summary, indexed)
    if summary.failed:
        first = summary.failed[0]
        raise PartialError(
            f"{len(summary.failed)} of the sources could not be read, first {first.path}: {first.detail}",
            "mend or remove them, then run the same command again",
        )


def _write(run: IngestRun, paths: list[Path], terms: str | None, *, index: bool) -> tuple[Summary, int | None]:
    with run.open() as writer:
        bars: list[Any] = []

        def on_plan(plan: Plan) -> None:
            show_counts(plan)
            bars.append(stack.enter_context(out.progress("ingest", plan.bytes_to_read, "B")))

        from contextlib import ExitStack

        with ExitStack() as stack:
            summary = run.ingest(
                writer,
                paths,
                on_plan=on_plan,
                on_event=lambda event: out.event(event) if out.json else None,
                on_bytes=lambda n: bars[0].update(n),
                on_load=lambda: out.note(f"loading {run.files.name} ..."),
            )
        return summary, _index(run, writer, terms) if index else None


def _index(run: IngestRun, writer: Any, terms: str | None) -> int | None:
    """Bring the index in step unless the one there matches; return its chunks."""
    from comem_cli.select.store_index import built_terms, drop_index, refresh_index, sweep_indexes

    if next(writer.documents(), None) is None:
        drop_index(writer)  # the terms of the last documents go with them
        return None
    scheme = scheme_of(run.store, terms, lambda: run.files)
    if writer.index_is_fresh and built_terms(run.store) == scheme.name:
        sweep_indexes(writer)
        return None
    out.note("building the BM25 index ...")
    return refresh_index(writer, scheme)
