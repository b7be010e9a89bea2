"""`comem overlap-write`: rewrite a store's residuals with another left context, or compare the two first."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from comem_cli.commands import options
from comem_cli.commands.terms import scheme_of
from comem_cli.errors import UsageError
from comem_cli.output import out

if TYPE_CHECKING:
    from comem_cli.store.rewrite_run import RewriteRun


def overlap_write(
    store: Annotated[Path | None, typer.Argument(metavar="[STORE]", help="Default: the only one in ./stores.")] = None,
    overlap: Annotated[int | None, typer.Option(help="Left-context tokens of each chunk, 32 for instance.")] = None,
    mode: Annotated[str | None, typer.Option(help="chunk, or document: all before it as context.")] = None,
    compare: Annotated[Path | None, typer.Option(metavar="FILE", help="Questions to compare; rewrite nothing.")] = None,
    top_k: Annotated[int, typer.Option(help="Chunks to select, with --compare.")] = 12,
    max_new_tokens: Annotated[int, typer.Option(help="Longest answer in tokens, with --compare.")] = 32,
    model: options.Model = None,
    device: options.Device = "auto",
    dtype: options.Dtype = "auto",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be done, write nothing.")] = False,
    json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Rewrite a store so that each chunk sees what precedes it.

    It can help and it can hurt: in the authors' later measurements 32 tokens repaired multikey needles, and LongEval
    fell by 10 points. Compare on your own questions first: --compare FILE reads JSON lines {"question": ...,
    "answers": [...]} (answers are optional) and answers each from the stored residuals, from residuals in the new mode,
    and by replay of all layers.

    Chunks are written aside from the stored token ids and take the place of the old ones in one step; until then the
    store answers as before. Run the same command again to go on after an interruption. Bytes a token do not change.
    """
    out.configure(json=json, quiet=quiet)
    if overlap is None and mode is None:
        raise UsageError("no mode to rewrite into", "pass --overlap 32, --mode document or --mode chunk")
    target = store or options.only_store()
    out.note(f"opening {target} ...")
    from comem_cli.store.rewrite_run import RewriteRun
    from comem_cli.store.setup import WriteOptions

    chosen = WriteOptions(overlap=overlap, mode=mode, device=device, dtype=dtype)
    if compare is not None:
        from comem_cli.read.compare import read_questions

        questions = read_questions(compare)
        run = RewriteRun(target, lambda: options.resolve_model(model), chosen)
        from comem_cli.commands.overlap_view import show_comparison

        show_comparison(run, questions, top_k, max_new_tokens)
        return
    run = RewriteRun(target, lambda: options.resolve_model(model), chosen)
    _rewrite(run, dry_run)


def _rewrite(run: RewriteRun, dry_run: bool) -> None:
    from comem_cli.commands.overlap_view import show_cost, show_plan
    from comem_cli.select.store_index import IndexFolder

    scheme = scheme_of(run.store, None, lambda: run.setup.files)
    plan = run.plan()
    show_plan(run, plan, final=dry_run)
    if dry_run:
        return
    try:
        with out.progress("overlap-write", plan.tokens, "token") as bar:
            written = run.run(
                IndexFolder(run.store, scheme),
                on_event=lambda event: out.event(event) if out.json else None,
                on_tokens=bar.update,
                on_load=lambda: out.note(f"loading {run.setup.files.name} ..."),
                on_index=lambda: out.note("building the BM25 index ..."),
            )
    except BaseException as error:
        if not isinstance(error, Exception):  # an interruption
            out.note("stopped; the store is as it was. Run the same command again to go on from the last commit")
        raise
    show_cost(run, plan, written)
