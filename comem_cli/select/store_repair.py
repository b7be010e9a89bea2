"""Put the repair of a store together with its index: `check --repair` and `ask --repair` share it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from comem_cli.model.load import ModelFiles, tokenizer
from comem_cli.select.check_index import check_store_index
from comem_cli.select.store_index import built_terms, rebuild_index
from comem_cli.select.terms import DEFAULT_TERMS, term_scheme
from comem_cli.store.identify import require_tokenizer
from comem_cli.store.repair import Repair
from comem_cli.store.writer import StoreWriter


def store_repair(store: Path, resolve: Callable[[], ModelFiles], *, device: str, note: Callable[[str], None]) -> Repair:
    """Make the repair of the store at `store`; note receives one line a step. See `Repair.run`.

    The index is rebuilt over the terms that it had; where that is lost too, over the default ones.
    """

    def rebuild(writer: StoreWriter) -> int:
        note("building the BM25 index ...")
        name = built_terms(store) or DEFAULT_TERMS
        if name != "folded":
            return rebuild_index(writer, term_scheme(name, None))
        files = resolve()
        require_tokenizer(writer.fingerprint, files)
        return rebuild_index(writer, term_scheme(name, tokenizer(files)))

    return Repair(
        store,
        resolve,
        check_index=check_store_index,
        rebuild_index=rebuild,
        device=device,
        on_load=lambda name: note(f"loading {name} ..."),
    )
