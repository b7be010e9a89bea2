"""`comem ingest`: write the residuals of a folder of documents into a store."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from comem_cli.commands import options
from comem_cli.errors import PartialError
from comem_cli.output import out

if TYPE_CHECKING:
    from comem_cli.store.ingest import Summary
    from comem_cli.store.plan import Plan
    from comem_cli.store.run import IngestRun


def ingest(
    paths: Annotated[list[Path], typer.Argument(metavar="PATH...", help="Folders or files to ingest.")],
    store: Annotated[Path | None, typer.Option(metavar="DIR", help="Store; default stores/NAME of the folder.")] = None,
    split: Annotated[int | None, typer.Option(help="Layers to run once, 0..L. Default: the store's, else L/3.")] = None,
    overlap: Annotated[int | None, typer.Option(help="Left-context tokens of each chunk. Default: 0.")] = None,
    chunk: Annotated[int | None, typer.Option(help="Tokens a chunk. Default: the store's, else 512.")] = None,
    model: options.Model = None,
    device: options.Device = "auto",
    dtype: options.Dtype = "auto",
    no_index: Annotated[bool, typer.Option("--no-index", help="Do not build the BM25 index.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be done, write nothing.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Allow removing more than half of a store.")] = False,
    json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Write documents into a store: run every chunk through layers [0:split) once and keep the residuals.

    Run the same command again to take up changes, or to go on after an interruption. Exit code 3 says that some
    files could not be read; they are named, and the rest is stored.
    """
    out.configure(json=json, quiet=quiet)
    target = store or options.default_store(paths)
    out.note(f"ingesting into {target}")
    from comem_cli.store.run import IngestRun, WriteOptions

    files = options.resolve_model(model)
    run = IngestRun(target, files, WriteOptions(split, chunk, overlap, device, dtype, yes))
    if dry_run:
        _show_plan(run.plan(paths), final=True)
        return
    summary, indexed = _write(run, paths, index=not no_index)
    _report(run, summary, indexed)
    if summary.failed:
        first = summary.failed[0]
        raise PartialError(
            f"{len(summary.failed)} of the sources could not be read, first {first.path}: {first.detail}",
            "mend or remove them, then run the same command again",
        )


def _write(run: IngestRun, paths: list[Path], *, index: bool) -> tuple[Summary, int | None]:
    with run.open() as writer:
        bars: list[Any] = []

        def on_plan(plan: Plan) -> None:
            _show_plan(plan, final=False)
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
        return summary, _index(writer) if index else None


def _index(writer: Any) -> int | None:
    """Build the index unless the one there matches; return its chunks."""
    if writer.index_is_fresh or not any(True for _ in writer.documents()):
        return None
    out.note("building the BM25 index ...")
    from comem_cli.select.store_index import rebuild_index

    return rebuild_index(writer)


def _show_plan(plan: Plan, *, final: bool) -> None:
    counts = {
        "read": len(plan.changed),
        "unchanged": plan.unchanged,
        "removed": len(plan.gone),
        "skipped": len(plan.skips),
        "bytes": plan.bytes_to_read,
    }
    if out.json:
        out.event({"type": "plan", **counts})
        return
    line = (
        f"{counts['read']} files to read ({counts['bytes']:,} bytes), {counts['unchanged']} unchanged, "
        f"{counts['removed']} to remove, {counts['skipped']} skipped"
    )
    (out.text if final else out.note)(line)
    if final:
        for source in plan.changed:
            out.text(f"read\t{source.path}")
        for row in plan.gone:
            out.text(f"remove\t{row.name}")
        for skip in plan.skips:
            out.text(f"skip\t{skip.path}\t{skip.reason}")


def _report(run: IngestRun, summary: Summary, indexed: int | None) -> None:
    quiet_reasons = {"ignored", "ignore-file", "vcs"}
    if out.json:
        counts = {k: v for k, v in vars(summary).items() if k != "skips"}
        out.event({"type": "summary", "store": str(run.store), **counts, "indexed_chunks": indexed})
        return
    for skip in summary.skips:
        if skip.failed:
            out.warning(f"not read: {skip.path}: {skip.reason} ({skip.detail})")
        elif skip.reason not in quiet_reasons:
            out.note(f"skipped: {skip.path}: {skip.reason}")
    out.text(
        f"{run.store}: {summary.files} files read, {summary.unchanged} unchanged, {summary.removed} removed; "
        f"{summary.written_chunks} chunks ({summary.written_tokens:,} tokens) written at split {run.fingerprint.split}"
    )
