"""Write adapters of a store: which one writes it, and the model that carries it.

The fingerprint's `write_adapter` is the sha256 of the adapter's weights, or "none". Questions are written by the stock
layers; only chunks are written through the adapter. Importing this loads no torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from comem_cli.errors import FingerprintError
from comem_cli.model.adapter import Adapter, Interface, choose_adapter, installed_adapters
from comem_cli.model.cache import cache_directory

if TYPE_CHECKING:
    from transformers import PreTrainedModel

NONE = "none"


def adapter_for_write(asked: str | None, stored: str, interface: Interface) -> Adapter | None:
    """Return the adapter that writes: the one asked for, else the one that wrote the store, else none.

    asked: a directory, "none", or None. stored: the fingerprint's `write_adapter`, "none" for a new store. An adapter
    is never picked up by itself. Raises: UsageError (2) for what is no adapter, FingerprintError (12) for an adapter of
    something else and for a stored one that is not at hand.
    """
    if asked is not None:
        return choose_adapter(asked, "write", interface)
    return None if stored == NONE else adapter_with(stored)


def adapter_with(digest: str) -> Adapter:
    """Find an installed adapter by the sha256 of its weights; raises FingerprintError (12) where there is none."""
    for adapter in installed_adapters():
        if adapter.kind == "write" and adapter.digest == digest:
            return adapter
    raise FingerprintError(
        f"the store was written with the Write adapter {digest[:12]}, which is not in {cache_directory() / 'adapters'}",
        "copy its directory there, or pass it to comem ingest with --write-adapter DIR",
    )


def writing_model(model: PreTrainedModel, digest: str) -> PreTrainedModel:
    """Return the model that writes a store's chunks: itself, or a fork with the adapter of this sha256 merged in."""
    return model if digest == NONE else merged(model, adapter_with(digest))


def merged(model: PreTrainedModel, adapter: Adapter) -> PreTrainedModel:
    """Merge an adapter into a fork; raises ModelError where its weights do not fit."""
    from comem_cli.model.lora import adapted

    return adapted(model, adapter)
