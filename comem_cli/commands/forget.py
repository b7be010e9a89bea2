"""`comem forget`: take documents out of a store so that no byte of them is left in it."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from comem_cli.commands import options
from comem_cli.commands.forget_view import show_plan, show_report
from comem_cli.output import out

if TYPE_CHECKING:
    from tokenizers import Tokenizer

    from comem_cli.select.terms import TermScheme
    from comem_cli.store.forget import Report
    from comem_cli.store.writer import StoreWriter


def forget(
    store: Annotated[Path, typer.Argument(metavar="STORE", help="The store.")],
    paths: Annotated[
        list[str] | None,
        typer.Argument(metavar="[PATH]...", help="Documents or folders, as stored or as absolute paths."),
    ] = None,
    model: options.Model = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would go, write nothing.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Allow forgetting more than half of a store.")] = False,
    json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Take documents out of a store, verifiably.

    Residuals, token ids, spans and index terms go; chunks that other documents have as well stay. Then every byte of
    the store is searched for paths, text, token ids and residuals of what went, and the result is printed. The source
    files are not touched: the next ingest of their folder stores them again, unless they are removed or ignored.

    Run the same command again after an interruption; without PATH it finishes what was begun. Exit code 3 says that
    somebody still reads the store: what that reader may need goes after it, with the same command.
    """
    out.configure(json=json, quiet=quiet)
    if dry_run:
        show_plan(store, paths or [])
        return
    out.note(f"opening {store} ...")
    from comem_cli.store.forget import HOLDER
    from comem_cli.store.writer import StoreWriter

    with StoreWriter.open(store, HOLDER) as writer:
        show_report(store, _run(writer, paths or [], yes, model))


def _run(writer: StoreWriter, paths: list[str], yes: bool, model: str | None) -> Report:
    from comem_cli.commands.terms import scheme_of
    from comem_cli.errors import NoSpaceError
    from comem_cli.select.store_index import IndexFolder, rebuild_index
    from comem_cli.select.terms import TOKENS, FoldedTerms
    from comem_cli.store.forget import Forget

    scheme: TermScheme = TOKENS
    if writer.catalogue.meta()["index_name"]:
        scheme = scheme_of(writer.path, None, lambda: options.resolve_model(model))
    indexes = IndexFolder(writer.path, scheme)

    def reindex() -> None:
        out.note("building the index of what is left ...")
        try:
            rebuild_index(writer, scheme)
        except NoSpaceError:  # the old one is of no use any more, and its bytes may be enough
            indexes.keep_only("")
            rebuild_index(writer, scheme)

    decode = partial(_text, scheme.tokenizer) if isinstance(scheme, FoldedTerms) else None
    return Forget(writer, reindex=reindex, keep_only=indexes.keep_only, decode=decode).run(paths, yes=yes)


def _text(tokenizer: Tokenizer, ids: bytes) -> str:
    from comem_cli.select.selector import decode_ids

    return tokenizer.decode(list(decode_ids(ids)), skip_special_tokens=False)
