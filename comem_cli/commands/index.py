"""`comem index`: build the BM25 index of a store again."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from comem_cli.commands import options
from comem_cli.output import out


def index(
    store: Annotated[Path | None, typer.Argument(metavar="[STORE]", help="Default: the only one in ./stores.")] = None,
    json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Build the BM25 index of a store.

    It covers the token ids of every stored chunk. Ingest builds it too, unless it is told --no-index.
    """
    out.configure(json=json, quiet=quiet)
    target = store or options.only_store()
    out.note(f"building the BM25 index of {target} ...")
    from comem_cli.select.store_index import rebuild_index
    from comem_cli.store.writer import StoreWriter

    with StoreWriter.open(target) as writer:
        count = rebuild_index(writer)
    if out.json:
        out.document({"store": str(target), "chunks": count})
    else:
        out.text(f"{target}: {count} chunks indexed")
