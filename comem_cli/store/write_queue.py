"""Write the chunks of documents that a store lacks, in the store's mode, with a ledger row for each commit.

Residuals become durable shard by shard, at least every COMMIT_SECONDS. What a commit holds is never computed again: the
key of a chunk says whether the store has it. Ingest and rewrite share this. Where the store keeps int8, the ledger row
also has how far its residuals are from what Write gave.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

from comem_cli.model.modes import ChunkWriter, WriteMode
from comem_cli.model.shapes import Pending
from comem_cli.store.fingerprint import Fingerprint, chunk_key
from comem_cli.store.row_layout import RowLayout
from comem_cli.store.rows import LedgerRow
from comem_cli.store.writer import COMPUTE_DTYPE, StoreWriter

COMMIT_SECONDS = 20.0
Event = Callable[[dict[str, Any]], None]


class WriteQueue:
    """Run chunks through one mode's writer and put them into the store.

    fingerprint: what the residuals mean (of the store, or of what it is being rewritten into). make_writer builds the
    chunk writer (and loads the model) when the first chunk needs it; None at split 0, where token ids are all that is
    kept. on_event receives a `chunk_batch` event a commit. chunks, tokens: what commits made durable so far.
    """

    def __init__(
        self,
        store: StoreWriter,
        fingerprint: Fingerprint,
        mode: WriteMode,
        make_writer: Callable[[], ChunkWriter] | None,
        *,
        on_event: Event,
        device: Callable[[], str],
    ) -> None:
        self._store = store
        self._mode = mode
        self._digest = fingerprint.digest()
        self._layout = RowLayout.of(fingerprint, store.width)
        self.key = partial(chunk_key, self._digest)
        self._make_writer = make_writer
        self._writer: ChunkWriter | None = None
        self._on_event = on_event
        self._device = device
        self._queued: set[str] = set()
        self._error_sum: float = 0.0  # of int8 rows in this commit: relative errors
        self._error_max: float = 0.0
        self.chunks = self.tokens = 0
        self._reset_ledger()

    def add(self, document: Sequence[bytes]) -> list[str]:
        """Queue those of a document's chunks that the store lacks; return the key of each.

        document: token ids of each chunk, uint32 LE bytes, in order.
        """
        pending = self._mode.pending(document, self.key)
        keys = [chunk.key for chunk in pending]
        present = self._store.stored(keys) | self._queued
        for chunk in pending:
            if chunk.key in present:
                continue
            present.add(chunk.key)
            if self._make_writer is None:
                self._put(chunk, None)
            else:
                self._queued.add(chunk.key)
                self._keep(self._run(chunk))
        return keys

    def flush(self) -> None:
        """Run the chunks that still wait for a full batch."""
        if self._writer is not None:
            self._keep(self._rest(self._writer))

    def commit(self) -> None:
        """Make the buffered chunks durable, with what they cost, and the documents that waited for them."""
        ledger = self._ledger() if self._batch_chunks else None
        generation = self._store.commit(ledger)
        if ledger:
            self.chunks += self._batch_chunks
            self.tokens += self._batch_tokens
            counts = {"chunks": self.chunks, "tokens": self.tokens}
            self._on_event({"type": "chunk_batch", "generation": generation, **counts})
        self._reset_ledger()

    def commit_if_due(self) -> None:
        """Commit if the last one was COMMIT_SECONDS ago."""
        if time.monotonic() - self._since > COMMIT_SECONDS:
            self.commit()

    def _run(self, chunk: Pending) -> Iterable[tuple[Pending, bytes]]:
        if self._writer is None:
            assert self._make_writer is not None
            start = time.monotonic()
            self._writer = self._make_writer()
            self._since += time.monotonic() - start  # loading the model is no part of Write
        start = time.perf_counter()
        done = list(self._writer.add(chunk))
        self._forward_ms += (time.perf_counter() - start) * 1e3
        return done

    def _rest(self, writer: ChunkWriter) -> Iterator[tuple[Pending, bytes]]:
        start = time.perf_counter()
        for done in writer.flush():
            self._forward_ms += (time.perf_counter() - start) * 1e3
            yield done
            start = time.perf_counter()

    def _keep(self, written: Iterable[tuple[Pending, bytes]]) -> None:
        for chunk, rows in written:
            self._put(chunk, rows)
            self._queued.discard(chunk.key)
        self.commit_if_due()

    def _put(self, chunk: Pending, rows: bytes | None) -> None:
        n_tokens = len(chunk.ids) // 4
        if not self._store.fits(n_tokens):
            self.commit()
        self._store.add(chunk.key, chunk.ids, None if rows is None else self._encoded(rows))
        self._batch_chunks += 1
        self._batch_tokens += n_tokens
        self._forward_tokens += chunk.n_tokens

    def _encoded(self, rows: bytes) -> bytes:
        """Turn rows as Write gives them into what the store keeps, and sum up what that loses."""
        stored = self._layout.encode(rows)
        if self._layout.quantised:
            from comem_cli.store.int8 import relative_errors

            errors = relative_errors(rows, stored, self._layout)
            self._error_sum += float(errors.sum())
            self._error_max = max(self._error_max, float(errors.max()))
        return stored

    def _ledger(self) -> LedgerRow:
        """Describe what the buffered chunks cost; forward_tokens: the chunks' tokens with their left context.

        relative_error: of int8 rows, |h - h'| / |h|, the sum and the largest over this commit's tokens.
        """
        wall_ms = (time.monotonic() - self._since) * 1e3
        cost = (self._batch_chunks, self._batch_tokens, wall_ms, self._forward_ms, 0.0)
        device = self._device() if self._make_writer else "none"
        dtype = self._store.recorded.get(COMPUTE_DTYPE, "none")
        detail: dict[str, Any] = {"forward_tokens": self._forward_tokens, "fingerprint": self._digest}
        if self._layout.quantised and self._make_writer:
            detail["relative_error"] = {"sum": self._error_sum, "max": self._error_max}
        return LedgerRow(time.time(), f"write:{self._mode.name}", *cost, device, dtype, json.dumps(detail))

    def _reset_ledger(self) -> None:
        self._since = time.monotonic()
        self._forward_ms = 0.0
        self._error_sum = self._error_max = 0.0
        self._batch_chunks = self._batch_tokens = self._forward_tokens = 0
