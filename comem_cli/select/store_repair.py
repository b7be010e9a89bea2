"""Put the repair of a store together with its index: `check --repair` and `ask --repair` share it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from comem_cli.model.load import ModelFiles, tokenizer
from comem_cli.select.check_index import check_store_index
from comem_cli.select.store_index import built_terms, rebuild_index
from comem_cli.select.terms import DEFAULT_TERMS, TOKENS, TermScheme, term_scheme
from comem_cli.store.repair import Repair


def store_repair(store: Path, resolve: Callable[[], ModelFiles], *, device: str, note: Callable[[str], None]) -> Repair:
    """Make the repair of the store at `store`; note receives one line a step. Raises nothing; see `Repair.run`."""
    return Repair(
        store,
        resolve,
        check_index=check_store_index,
        rebuild_index=lambda writer: rebuild_index(writer, _scheme(store, resolve)),
        device=device,
        on_load=lambda name: note(f"loading {name} ..."),
    )


def _scheme(store: Path, resolve: Callable[[], ModelFiles]) -> TermScheme:
    """Return the terms of the index that stands there, else the default ones."""
    name = built_terms(store) or DEFAULT_TERMS
    return TOKENS if name == TOKENS.name else term_scheme(name, tokenizer(resolve()))
