"""Ingest: files -> text -> token chunks -> residuals -> the store, bounded in memory and resumable at any moment.

A chunk whose key the store holds already (unchanged text, a duplicate, or work of an interrupted run) is not written
again. Residuals become durable shard by shard, at least every COMMIT_SECONDS; a document becomes visible when all its
chunks are. Running the same command again after a crash goes on from the last commit.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from comem_cli.corpus.chunk import Chunk, chunk
from comem_cli.corpus.extract import extract
from comem_cli.corpus.walk import Skip, SourceFile
from comem_cli.store.edits import Placement
from comem_cli.store.fingerprint import chunk_key
from comem_cli.store.plan import Plan
from comem_cli.store.rows import LedgerRow
from comem_cli.store.writer import StoreWriter

if TYPE_CHECKING:
    import tokenizers

    from comem_cli.model.write import BatchWriter, Pending

COMMIT_SECONDS = 20.0
Event = Callable[[dict[str, Any]], None]


@dataclass
class Summary:
    """Count what an ingest did. `tokens` are those of all chunks of the files read, `written_tokens` of new ones."""

    files: int = 0
    unchanged: int = 0
    removed: int = 0
    chunks: int = 0
    written_chunks: int = 0
    tokens: int = 0
    written_tokens: int = 0
    skips: list[Skip] = field(default_factory=list)

    @property
    def failed(self) -> list[Skip]:
        """Return the sources that a user would have wanted and did not get."""
        return [skip for skip in self.skips if skip.failed]


class Ingest:
    """Run one plan against an open store writer.

    make_batches builds the batch writer (and loads the model) when the first chunk needs it; None at split 0, where
    token ids are all that is kept. on_event receives `chunk_batch` and `skip` events; on_bytes the bytes of each
    source file when it is done.
    """

    def __init__(
        self,
        writer: StoreWriter,
        tokenizer: tokenizers.Tokenizer,
        make_batches: Callable[[], BatchWriter] | None,
        *,
        on_event: Event,
        on_bytes: Callable[[int], None],
        device: Callable[[], str],
    ) -> None:
        self._writer = writer
        self._tokenizer = tokenizer
        self._make_batches = make_batches
        self._batches: BatchWriter | None = None
        self._on_event, self._on_bytes = on_event, on_bytes
        self._device = device
        self._digest = writer.fingerprint.digest()
        self._queued: set[str] = set()
        self._summary = Summary()
        self._reset_ledger()

    def run(self, plan: Plan) -> Summary:
        """Do what the plan says and return the counts; raises what store and model raise."""
        self._summary.unchanged = plan.unchanged
        for skip in plan.skips:
            self._skip(skip)
        for source in plan.changed:
            self._file(source, plan)
            self._on_bytes(source.size)
            if time.monotonic() - self._since > COMMIT_SECONDS:
                self._commit()
        if self._batches is not None:
            self._store(self._flush())
        self._writer.remove_documents(row.id for row in plan.gone)
        self._summary.removed += len(plan.gone)
        self._commit()
        self._writer.drop_unplaced()
        return self._summary

    def _file(self, source: SourceFile, plan: Plan) -> None:
        known = plan.known.get(os.fsencode(source.absolute))
        extracted = extract(source)
        if isinstance(extracted, Skip):
            self._skip(extracted)
            if known is not None and not extracted.failed:  # it turned binary or empty: the old text is gone
                self._writer.remove_documents([known.id])
                self._summary.removed += 1
            return
        chunks = chunk(extracted, self._tokenizer, self._writer.fingerprint.chunk)
        keys = self._write(chunks)
        root_id = known.root_id if known else self._writer.add_root(source.root)
        path: str | bytes = known.path if known else source.path
        places = [Placement(key, *c.bytes, *c.lines) for key, c in zip(keys, chunks, strict=True)]
        facts = (extracted.size, extracted.mtime_ns, extracted.sha256, extracted.encoding, extracted.kind)
        self._writer.put_document(root_id, path, *facts, places)
        self._summary.files += 1
        self._summary.chunks += len(chunks)
        self._summary.tokens += sum(c.n_tokens for c in chunks)

    def _write(self, chunks: list[Chunk]) -> list[str]:
        """Queue the chunks that the store lacks; return the key of each."""
        lefts = self._left_contexts(chunks)
        keys = [chunk_key(self._digest, left, c.ids) for left, c in zip(lefts, chunks, strict=True)]
        present = self._writer.stored(keys) | self._queued
        for key, left, c in zip(keys, lefts, chunks, strict=True):
            if key in present:
                continue
            present.add(key)
            if self._make_batches is None:
                self._add(key, c.ids, None)
            else:
                self._queued.add(key)
                self._store(self._batch(key, c.ids, left))
        return keys

    def _left_contexts(self, chunks: list[Chunk]) -> list[bytes]:
        """Return the left context of each chunk: the `overlap` token ids before it in its document."""
        width = 4 * self._writer.fingerprint.overlap
        if not width:
            return [b""] * len(chunks)
        text = b"".join(c.ids for c in chunks)
        starts = [c.number * 4 * self._writer.fingerprint.chunk for c in chunks]
        return [text[max(0, start - width) : start] for start in starts]

    def _batch(self, key: str, ids: bytes, left: bytes) -> Iterable[tuple[Pending, bytes]]:
        from comem_cli.model.write import Pending

        if self._batches is None:
            assert self._make_batches is not None
            start = time.monotonic()
            self._batches = self._make_batches()
            self._since += time.monotonic() - start  # loading the model is no part of Write
        start = time.perf_counter()
        done = list(self._batches.add(Pending(key, ids, left)))
        self._forward_ms += (time.perf_counter() - start) * 1e3
        return done

    def _flush(self) -> Iterable[tuple[Pending, bytes]]:
        assert self._batches is not None
        start = time.perf_counter()
        for done in self._batches.flush():
            self._forward_ms += (time.perf_counter() - start) * 1e3
            yield done
            start = time.perf_counter()

    def _store(self, written: Iterable[tuple[Pending, bytes]]) -> None:
        for pending, rows in written:
            self._add(pending.key, pending.ids, rows)
            self._queued.discard(pending.key)

    def _add(self, key: str, ids: bytes, rows: bytes | None) -> None:
        if not self._writer.fits(len(ids) // 4):
            self._commit()
        self._writer.add(key, ids, rows)
        self._chunks += 1
        self._tokens += len(ids) // 4

    def _commit(self) -> None:
        """Make the buffered chunks durable, with what they cost."""
        wall_ms = (time.monotonic() - self._since) * 1e3
        ledger = None
        if self._chunks:
            dtype = self._writer.recorded.get("compute_dtype", "none")
            cost = (self._chunks, self._tokens, wall_ms, self._forward_ms, 0.0)
            device = self._device() if self._make_batches else "none"
            ledger = LedgerRow(time.time(), "write", *cost, device, dtype)
        generation = self._writer.commit(ledger)
        if self._chunks:
            self._summary.written_chunks += self._chunks
            self._summary.written_tokens += self._tokens
            counts = {"chunks": self._summary.written_chunks, "tokens": self._summary.written_tokens}
            self._on_event({"type": "chunk_batch", "generation": generation, **counts})
        self._reset_ledger()

    def _reset_ledger(self) -> None:
        self._since = time.monotonic()
        self._forward_ms = 0.0
        self._chunks = self._tokens = 0

    def _skip(self, skip: Skip) -> None:
        self._summary.skips.append(skip)
        event = {"type": "skip", "path": skip.path, "reason": skip.reason, "detail": skip.detail}
        self._on_event({**event, "failed": skip.failed, "root": str(skip.root)})
