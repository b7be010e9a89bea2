"""`comem stats`: what a store holds. Reads the catalogue only; loads no model and no numpy."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from comem_cli.commands import options
from comem_cli.output import out


def stats(
    store: Annotated[Path | None, typer.Argument(metavar="[STORE]", help="Default: the only one in ./stores.")] = None,
    json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Show documents, chunks, tokens, bytes and the fingerprint of a store."""
    out.configure(json=json, quiet=quiet)
    target = store or options.only_store()
    from comem_cli.store.reader import StoreReader

    with StoreReader(target) as reader:
        counts = vars(reader.counts())
        name, fresh = reader.index()
        facts: dict[str, Any] = {
            "store": str(target),
            "store_id": reader.store_id,
            "generation": reader.generation,
            **counts,
            "index": "none" if name is None else "fresh" if fresh else "stale",
            "fingerprint": reader.fingerprint.to_dict(),
            "recorded": reader.recorded,
        }
    if out.json:
        out.document(facts)
        return
    rows = [(key, f"{value:,}" if isinstance(value, int) else value) for key, value in facts.items()]
    flat = [row for row in rows if not isinstance(row[1], dict)]
    nested = [
        (f"{key}.{name}", inner) for key, value in rows if isinstance(value, dict) for name, inner in value.items()
    ]
    out.table(("fact", "value"), flat + nested)
