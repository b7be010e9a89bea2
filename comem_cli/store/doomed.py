"""Which documents and chunks a `forget` takes out, and what it needs to do so.

A PATH names a document by its path in the store or by its absolute path, or a folder and with it all documents below.
A chunk goes with the last document that has it; one that others have as well stays, with their citations.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from comem_cli.errors import UsageError
from comem_cli.store import format
from comem_cli.store.catalogue import Catalogue
from comem_cli.store.fingerprint import Fingerprint
from comem_cli.store.reclaim import shard_use
from comem_cli.store.row_layout import RowLayout
from comem_cli.store.rows import ChunkRow, DocumentRow, PlacementRow, RootRow


@dataclass(frozen=True)
class Doomed:
    """What goes: documents with the path of their root, ids of chunks that nobody else has; and what stays.

    shared: chunks that stay because others have them. tokens: of the chunks that go. rows_bytes: their residuals.
    stored: documents before. unmatched: paths that name nothing in the store.
    """

    documents: tuple[tuple[bytes, DocumentRow], ...]
    chunks: frozenset[int]
    shared: int
    tokens: int
    rows_bytes: int
    stored: int
    unmatched: tuple[str, ...]

    def require_consent(self, yes: bool) -> None:
        """Raise UsageError (2) where more than half of the store's documents would go, without the user's yes."""
        if not yes and len(self.documents) * 2 > self.stored:
            raise UsageError(
                f"{len(self.documents)} of the store's {self.stored} documents would be forgotten",
                "run the same command again with --yes if they are meant to go",
            )


def find_doomed(catalogue: Catalogue, paths: Sequence[str]) -> Doomed:
    """Say what forgetting `paths` takes out of the store.

    Raises: UsageError (2) for an empty path, and a relative one that several roots have; CorruptStoreError (13).
    """
    if "" in paths:  # it would stand for the working folder: a shell variable that is not set must not forget that
        raise UsageError("an empty PATH names no document", "pass . for all documents below the working folder")
    roots = {root.id: root.path for root in catalogue.rows(RootRow)}
    documents = [(roots.get(row.root_id, b""), row) for row in catalogue.rows(DocumentRow, "ORDER BY root_id, path")]
    chosen: dict[int, tuple[bytes, DocumentRow]] = {}
    unmatched = []
    for path in paths:
        found = [(root, row) for root, row in documents if names(path, root, row.path)]
        _require_one_root(path, found)
        chosen.update((row.id, (root, row)) for root, row in found)
        if not found:
            unmatched.append(path)
    placed = {row.chunk_id for row in catalogue.rows_in(PlacementRow, "document_id", chosen)}
    kept = {
        row.chunk_id for row in catalogue.rows_in(PlacementRow, "chunk_id", placed) if row.document_id not in chosen
    }
    doomed = frozenset(placed - kept)
    tokens = blocks = 0
    for row in catalogue.rows_in(ChunkRow, "id", doomed):
        tokens += row.n_tokens
        blocks += format.blocks_of(row.n_tokens) if row.shard is not None else 0
    facts = catalogue.meta()
    layout = RowLayout.of(Fingerprint.from_dict(json.loads(facts["fingerprint"])), int(facts["width"]))
    rows_bytes = blocks * (format.block_bytes(layout) + format.CRC_BYTES)
    return Doomed(tuple(chosen.values()), doomed, len(kept), tokens, rows_bytes, len(documents), tuple(unmatched))


def names(path: str, root: bytes, relative: bytes) -> bool:
    """Tell whether a PATH names a document: itself or a folder above it, in the store or on the disk."""
    raw = os.path.normpath(os.fsencode(path))
    absolute = os.path.join(root, relative)
    asked = {os.path.abspath(raw), os.path.realpath(raw)}
    return _at_or_below(relative, raw) or any(_at_or_below(absolute, one) for one in asked)


def unplaced_use(catalogue: Catalogue, doomed: Iterable[int]) -> Iterator[tuple[int, int]]:
    """Yield (blocks that stay, bytes of the file) of each shard that holds a row of no chunk once `doomed` went."""
    gone: dict[int, int] = {}
    for chunk in catalogue.rows_in(ChunkRow, "id", doomed):
        if chunk.shard is not None:
            gone[chunk.shard] = gone.get(chunk.shard, 0) + format.blocks_of(chunk.n_tokens)
    for use in shard_use(catalogue):
        live = use.live - gone.get(use.shard, 0)
        if live < use.blocks:
            yield live, use.bytes


def _at_or_below(path: bytes, folder: bytes) -> bool:
    return path == folder or path.startswith(folder.rstrip(b"/") + b"/")


def _require_one_root(path: str, found: Sequence[tuple[bytes, DocumentRow]]) -> None:
    """Refuse a document's relative path that stands for different files."""
    raw = os.path.normpath(os.fsencode(path))
    same = sorted({os.fsdecode(os.path.join(root, row.path)) for root, row in found if row.path == raw})
    if len(same) > 1:
        raise UsageError(f"{path} names several documents: {', '.join(same)}", f"name one of them: {Path(same[0])}")
