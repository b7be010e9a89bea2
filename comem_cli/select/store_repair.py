"""Put the repair of a store together with its index: `check --repair` and `ask --repair` share it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from comem_cli.model.load import ModelFiles
from comem_cli.select.check_index import check_store_index
from comem_cli.select.store_index import rebuild_index
from comem_cli.store.repair import Repair


def store_repair(store: Path, resolve: Callable[[], ModelFiles], *, device: str, note: Callable[[str], None]) -> Repair:
    """Make the repair of the store at `store`; note receives one line a step. Raises nothing; see `Repair.run`."""
    return Repair(
        store,
        resolve,
        check_index=check_store_index,
        rebuild_index=rebuild_index,
        device=device,
        on_load=lambda name: note(f"loading {name} ..."),
    )
