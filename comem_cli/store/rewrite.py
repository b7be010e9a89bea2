"""Rewrite a store into another write mode, from its own token ids; the source files are not read.

1. Chunks of the new mode are written beside the old ones, placed by no document yet. Their keys are in the catalogue,
   so the same command after a crash computes none of them again.
2. The BM25 index of the new chunks is built aside.
3. One transaction turns placements, fingerprint, content digest and index name over. Until it commits, every reader
   gets the old mode; snapshots that are open keep working.
4. What no document places any more goes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Protocol

from comem_cli.model.modes import ChunkWriter, WriteMode
from comem_cli.store.edits import CONTENT_MODULUS, content_part
from comem_cli.store.fingerprint import Fingerprint
from comem_cli.store.rows import ChunkRow, PlacementRow
from comem_cli.store.write_queue import Event, WriteQueue
from comem_cli.store.writer import StoreWriter


class Indexes(Protocol):
    """Builds the BM25 indexes of a store."""

    def build(self, name: str, chunks: Iterable[tuple[int, bytes]]) -> object:
        """Build the index `name` of (chunk id, token ids) aside."""
        ...

    def keep_only(self, name: str) -> None:
        """Remove every index but `name`."""
        ...


class Rewrite:
    """Turn an open store over to `target`, which differs from its fingerprint in the mode only.

    make_writer, on_event, device: as for `WriteQueue`. on_tokens receives the tokens of each document when it is done.
    """

    def __init__(
        self,
        store: StoreWriter,
        target: Fingerprint,
        mode: WriteMode,
        make_writer: Callable[[], ChunkWriter],
        *,
        on_event: Event,
        on_tokens: Callable[[int], None],
        device: Callable[[], str],
    ) -> None:
        self._store = store
        self._target = target
        self._mode = mode
        self._on_tokens = on_tokens
        self.queue = WriteQueue(store, target, mode, make_writer, on_event=on_event, device=device)

    def write(self) -> None:
        """Make every chunk of the new mode durable (step 1)."""
        for chunks in self._documents():
            self.queue.add([chunk.ids for _, chunk in chunks])
            self._on_tokens(sum(chunk.n_tokens for _, chunk in chunks))
            self.queue.commit_if_due()
        self.queue.flush()
        self.queue.commit()

    def swap(self, indexes: Indexes, recorded: Mapping[str, str]) -> None:
        """Build the index and turn the store over (steps 2 and 3); `recorded`: facts of this Write."""
        terms = (content_part(chunk_id, key) for chunk_id, key, _ in self._new_chunks())
        content = f"{sum(terms) % CONTENT_MODULUS:032x}"
        indexes.build(content, ((chunk_id, ids) for chunk_id, _, ids in self._new_chunks()))
        self._store.swap(self._target, recorded, map(self._moved, self._documents()), content)

    def _documents(self) -> Iterator[Sequence[tuple[PlacementRow, ChunkRow]]]:
        """Yield the old chunks of each document, in order."""
        for number in [document.id for document in self._store.documents()]:
            yield self._store.document_chunks(number)

    def _keyed(self, chunks: Sequence[tuple[PlacementRow, ChunkRow]]) -> list[tuple[int, str]]:
        """Return id and key of the new chunk that stands for each old one of a document."""
        pending = self._mode.pending([chunk.ids for _, chunk in chunks], self.queue.key)
        ids = self._store.chunk_ids(chunk.key for chunk in pending)
        return [(ids[chunk.key], chunk.key) for chunk in pending]

    def _new_chunks(self) -> Iterator[tuple[int, str, bytes]]:
        """Yield id, key and token ids of every new chunk once."""
        seen: set[int] = set()
        for chunks in self._documents():
            for (chunk_id, key), (_, old) in zip(self._keyed(chunks), chunks, strict=True):
                if chunk_id not in seen:
                    seen.add(chunk_id)
                    yield chunk_id, key, old.ids

    def _moved(self, chunks: Sequence[tuple[PlacementRow, ChunkRow]]) -> list[PlacementRow]:
        new = self._keyed(chunks)
        return [replace(place, chunk_id=chunk_id) for (chunk_id, _), (place, _) in zip(new, chunks, strict=True)]
