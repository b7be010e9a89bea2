"""A writer that also takes damaged rows out of the catalogue, so that what they stood for can be written again.

Nothing readable is lost: whatever depends on a damaged row is refused when it is read. Chunks that are whole stay, and
an ingest of the same files finds them by their keys.
"""

from __future__ import annotations

from collections.abc import Iterable

from comem_cli.store import format
from comem_cli.store.check_catalogue import CatalogueState
from comem_cli.store.edits import CONTENT_MODULUS, PLACED, content_term
from comem_cli.store.rows import ChunkRow, Row, ShardRow
from comem_cli.store.writer import StoreWriter


class MendingWriter(StoreWriter):
    """Hold the writer lock of a store that may be damaged; meta and roots must be whole."""

    def recover(self) -> None:
        """Describe again the shards whose rows are damaged or lost, then recover as any writer: it sweeps by them."""
        self._describe_shards()
        super().recover()

    def discard(self, state: CatalogueState) -> None:
        """Take the damaged rows that `state` names, and the documents that depend on them, out in one transaction.

        Raises: NoSpaceError (14), CorruptStoreError (13), ComemError (1).
        """
        flawed = state.flawed
        with self._generation() as facts:
            places = [row[0] for row in flawed.get("placement", ())]
            for number in state.damaged.union(places):
                self._catalogue.execute("DELETE FROM placement WHERE document_id IS ?", (number,))
                self._catalogue.execute("DELETE FROM document WHERE id IS ?", (number,))
            for row in flawed.get("chunk", ()):
                self._catalogue.execute("DELETE FROM placement WHERE chunk_id IS ?", (row[0],))
                self._catalogue.execute("DELETE FROM chunk WHERE id IS ?", (row[0],))
            for row in flawed.get("ledger", ()):
                self._catalogue.execute("DELETE FROM ledger WHERE at IS ?", (row[0],))
            facts["content"] = f"{self._live_content():032x}"
        self._catalogue.checkpoint()

    def discard_ledger(self, state: CatalogueState) -> None:
        """Take the damaged rows of the ledger out: measurements, on which nothing depends."""
        if "ledger" in state.flawed:
            self.discard(CatalogueState(flawed={"ledger": state.flawed["ledger"]}))

    def discard_chunks(self, ids: Iterable[int]) -> None:
        """Take chunks out that no document places."""
        doomed = list(ids)
        if doomed:
            with self._generation():
                self._catalogue.delete_in("chunk", "id", doomed)

    def drop_empty_shards(self) -> None:
        """Take the shards without chunks out, and their files."""
        held = {row[0] for row in self._catalogue.execute("SELECT DISTINCT shard FROM chunk")}
        empty = [row.id for row in self._catalogue.rows(ShardRow) if row.id not in held]
        if empty:
            with self._generation():
                self._catalogue.delete_in("shard", "id", empty)
            self.recover()

    def rebuild_sqlite_indexes(self) -> None:
        """Build SQLite's own indexes again from its tables."""
        self._catalogue.execute("REINDEX")

    def _live_content(self) -> int:
        live = self._catalogue.rows(ChunkRow, f"WHERE {PLACED}")
        return sum(map(content_term, live)) % CONTENT_MODULUS

    def _describe_shards(self) -> None:
        """Write the row of each shard that a chunk lies in and whose own row is damaged or lost."""
        flawed = {values[0] for values, flaw in self._catalogue.scan(ShardRow) if flaw is not None}
        lost = "SELECT DISTINCT shard FROM chunk WHERE shard IS NOT NULL AND shard NOT IN (SELECT id FROM shard)"
        wanted = flawed.union(row[0] for row in self._catalogue.execute(lost))
        if not wanted:
            return
        ends: dict[int, int] = {}
        for values, flaw in self._catalogue.scan(ChunkRow, "WHERE shard IS NOT NULL"):
            number, row, n_tokens = values[2:5]
            if flaw is None and number in wanted:
                end = row // format.ROWS_PER_BLOCK + format.blocks_of(n_tokens)
                ends[number] = max(end, ends.get(number, 0))
            elif number in flawed:  # a damaged chunk refers to it as well, and SQLite wants it there
                ends.setdefault(number, 1)
        with self._generation() as facts:
            # The chunks' references to these rows are whole again before the transaction ends.
            self._catalogue.execute("PRAGMA defer_foreign_keys=ON")
            for number in flawed:
                self._catalogue.execute("DELETE FROM shard WHERE id IS ?", (number,))
            for number, end in ends.items():
                self._catalogue.insert(self._described(number, end))
            facts["next_shard"] = str(max(int(facts["next_shard"]), *(number + 1 for number in ends), 0))

    def _described(self, number: int, end: int) -> Row:
        """Describe a shard from its file, else from the chunks in it; `end`: blocks up to the last of them."""
        path = format.shard_path(self.path, number)
        step = format.block_bytes(self.layout) + format.CRC_BYTES
        empty = format.shard_file_bytes(self.layout, 0, self.capacity)
        size = path.stat().st_size if path.is_file() else 0
        most = self.capacity // format.ROWS_PER_BLOCK
        blocks = (size - empty) // step if (size - empty) % step == 0 else end
        blocks = blocks if end <= blocks <= most else end
        return ShardRow(number, blocks, format.shard_file_bytes(self.layout, blocks, self.capacity))
