"""`comem stats`: what a store holds and what it cost. Reads the catalogue only; loads no model and no numpy."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from comem_cli.commands import options
from comem_cli.output import out, stdout_is_terminal

if TYPE_CHECKING:
    from comem_cli.store.reader import StoreReader

LIBRARIES = ("torch", "transformers", "tokenizers", "zarr", "numpy")


def stats(
    store: Annotated[Path | None, typer.Argument(metavar="[STORE]", help="Default: the only one in ./stores.")] = None,
    sources: Annotated[bool, typer.Option("--sources", help="Count sources that changed since ingest.")] = False,
    json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Show what a store holds, takes and cost.

    Bytes a token are set against the sources' own and against a full KV cache (2 x layers x kv_heads x head_dim x 2).
    No model is loaded.
    """
    out.configure(json=json, quiet=quiet)
    target = store or options.only_store()
    from comem_cli.store.reader import StoreReader

    with StoreReader(target) as reader:
        facts = _facts(target, reader, sources)
    if out.json:
        out.document(facts)
        return
    from comem_cli.commands.stats_view import groups, readable

    if not stdout_is_terminal():
        rows = [(group, name, value, unit) for group, some in groups(facts) for name, value, unit in some]
        out.table(("group", "fact", "value", "unit"), rows)
        return
    for group, some in groups(facts):
        out.table((group, ""), [(f"  {name}", readable(value, unit)) for name, value, unit in some])


def _facts(target: Path, reader: StoreReader, sources: bool) -> dict[str, Any]:
    """Collect everything, raw; `--json` prints it as it is."""
    from dataclasses import asdict

    from comem_cli.store import facts

    name, fresh = reader.index()
    counts, sums = reader.counts(), reader.sums()
    sizes = facts.token_bytes(reader, counts, sums)
    ledger = reader.ledger()
    error = facts.residual_error(ledger, reader.fingerprint.digest())
    costs = [
        {**asdict(cost), "seconds": cost.seconds, "tokens_per_s": cost.tokens_per_s}
        for cost in facts.write_costs(ledger)
    ]
    found: dict[str, Any] = {
        "store": str(target),
        "store_id": reader.store_id,
        "generation": reader.generation,
        **asdict(counts),
        "source_bytes": sums.source_bytes,
        "padding_share": facts.padding_share(sums),
        "bytes_per_token": asdict(sizes) if sizes else None,
        "residual_error": asdict(error) if error else None,
        "write": costs,
        "index": "none" if name is None else "fresh" if fresh else "stale",
        "index_terms": None if name is None else _terms(target, name),
        "fingerprint": reader.fingerprint.to_dict(),
        "recorded": reader.recorded,
        "versions": _versions(),
    }
    if sources:
        changed = facts.changed_sources(reader)
        found["changed_sources"] = [{"root": root, "path": path} for root, path in changed]
    return found


def _terms(target: Path, name: str) -> str | None:
    """Name the terms of an index, or say what it records where this comem does not know them."""
    from comem_cli.select.index import recorded_terms
    from comem_cli.select.terms import READABLE
    from comem_cli.store.reader import INDEX_DIR

    recorded = recorded_terms(target / INDEX_DIR / name)
    return READABLE.get(recorded or "", recorded)


def _versions() -> dict[str, str]:
    """Return what is installed now; `recorded` has what the store was written with."""
    import platform
    from importlib.metadata import version

    from comem_cli import __version__

    return {"comem": __version__, "python": platform.python_version(), **{name: version(name) for name in LIBRARIES}}
