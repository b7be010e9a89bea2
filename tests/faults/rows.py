"""All rows of the fault table, and what is imported once, before the forks."""

from __future__ import annotations

from tests.faults import (
    jobs,
    row_damage,
    row_forget,
    row_full,
    row_hostile,
    row_kill,
    row_mixed,
    row_places,
    row_signals,
    row_sources,
    row_stateful,
    row_syscalls,
    row_together,
)

_MODULES = (
    row_kill,
    row_syscalls,
    row_full,
    row_damage,
    row_together,
    row_signals,
    row_mixed,
    row_sources,
    row_hostile,
    row_forget,
    row_places,
    row_stateful,
)
ROWS = tuple(sorted((row for module in _MODULES for row in module.ROWS), key=lambda row: row.number))


def warm() -> None:
    """Import what the jobs import, and put the stub in the place of the model; forks that need Java start it."""
    import numpy  # noqa: F401
    import torch
    import transformers  # noqa: F401

    import comem_cli.model.device
    import comem_cli.store.fetch  # noqa: F401

    torch.set_num_threads(1)
    jobs.install()
