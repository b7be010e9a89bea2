"""The chunks of one document, and chunks by key: what re-keying a store reads from its catalogue."""

from __future__ import annotations

from collections.abc import Iterable

from comem_cli.store.catalogue import Catalogue
from comem_cli.store.rows import ChunkRow, PlacementRow


def document_chunks(catalogue: Catalogue, document_id: int) -> list[tuple[PlacementRow, ChunkRow]]:
    """Return a document's chunks in order, each with its place.

    Raises: CorruptStoreError (13) for a damaged or missing row.
    """
    placements = list(catalogue.rows(PlacementRow, "WHERE document_id = ? ORDER BY number", (document_id,)))
    chunks = {row.id: row for row in catalogue.rows_in(ChunkRow, "id", (place.chunk_id for place in placements))}
    lost = [place.chunk_id for place in placements if place.chunk_id not in chunks]
    if lost:
        raise catalogue.corrupt(f"a catalogue row refers to {lost[0]}, which is not there")
    return [(place, chunks[place.chunk_id]) for place in placements]


def chunk_ids(catalogue: Catalogue, keys: Iterable[str]) -> dict[str, int]:
    """Map those of `keys` that the store holds to the ids of their chunks.

    Raises: CorruptStoreError (13).
    """
    return {row.key: row.id for row in catalogue.rows_in(ChunkRow, "key", keys)}
