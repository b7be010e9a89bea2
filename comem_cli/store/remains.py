"""Explain finds that are no trace: bytes that the store holds for something that stays.

A path may be part of another document's path, and the first row of a residual is the same for every chunk that begins
with the same token.
"""

from __future__ import annotations

from pathlib import Path

from comem_cli.store import format
from comem_cli.store.catalogue import Catalogue
from comem_cli.store.pending import RESIDUAL
from comem_cli.store.row_layout import RowLayout
from comem_cli.store.traces import Needle


class Remains:
    """What stays in a store: names, facts, digests, and the chunks that own the rows of its shards."""

    def __init__(self, store: Path, catalogue: Catalogue, layout: RowLayout) -> None:
        self._shards = store / format.ARRAY_NAME / "c"
        self._catalogue = catalogue
        self._step = format.block_bytes(layout) + format.CRC_BYTES
        self._texts: list[bytes] | None = None
        self._holders: dict[bytes, list[tuple[bytes, int]]] = {}

    def explain(self, path: Path, offset: int, needle: Needle, block: bytes, at: int) -> bool:
        """Tell whether the needle found at `offset` of the file `path`, at `at` of `block`, belongs to what stays."""
        if needle.what == RESIDUAL and path.parent.parent == self._shards:
            return self._owned(int(path.parent.name), offset)
        if needle.raw not in self._holders:
            self._holders[needle.raw] = [
                (text, start) for text in self._all_texts() for start in _starts(text, needle.raw)
            ]
        return any(at >= start and block.startswith(text, at - start) for text, start in self._holders[needle.raw])

    def _owned(self, shard: int, offset: int) -> bool:
        """Tell whether a byte of a shard file is in the rows of a chunk of the catalogue."""
        row = offset // self._step * format.ROWS_PER_BLOCK
        sql = "SELECT COUNT(*) FROM chunk WHERE shard = ? AND row <= ? AND row + n_tokens > ?"
        return self._catalogue.integers(sql, (shard, row, row)) != (0,)

    def _all_texts(self) -> list[bytes]:
        if self._texts is None:
            queries = (
                "SELECT path FROM document",
                "SELECT path FROM root",
                "SELECT sha256 FROM document",
                "SELECT key FROM chunk",
                "SELECT value FROM meta",
                "SELECT detail FROM ledger",
                "SELECT sql FROM sqlite_master WHERE sql IS NOT NULL",
            )
            rows = (value for sql in queries for (value,) in self._catalogue.execute(sql))
            texts = [value if isinstance(value, bytes) else str(value).encode() for value in rows]
            parents = sorted(self._shards.parent.glob("*.json")) + sorted(self._shards.parent.parent.glob("*.json"))
            self._texts = [*dict.fromkeys(texts), *(path.read_bytes() for path in parents)]
        return self._texts


def _starts(text: bytes, needle: bytes) -> list[int]:
    """Return every place of `needle` in `text`."""
    found, at = [], text.find(needle)
    while at >= 0:
        found.append(at)
        at = text.find(needle, at + 1)
    return found
