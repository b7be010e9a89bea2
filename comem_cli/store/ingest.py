"""Ingest: files -> text -> token chunks -> residuals -> the store, bounded in memory and resumable at any moment.

The next files are read and tokenised in a thread beside the forward; all else, the store above all, stays in this one.
A chunk whose key the store holds already (unchanged text, a duplicate, or work of an interrupted run) is not written
again. A document becomes visible when all its chunks are durable. Running the same command again after a crash goes on
from the last commit.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from comem_cli.corpus.ahead import in_order
from comem_cli.corpus.chunk import Chunk, chunk
from comem_cli.corpus.extract import extract
from comem_cli.corpus.walk import Skip, SourceFile
from comem_cli.model.modes import ChunkWriter, WriteMode
from comem_cli.store.edits import Placement
from comem_cli.store.plan import Plan
from comem_cli.store.reclaim import compact_sparse
from comem_cli.store.write_queue import Event, WriteQueue
from comem_cli.store.writer import StoreWriter

if TYPE_CHECKING:
    import tokenizers


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


@dataclass(frozen=True, slots=True)
class _Document:
    """Hold what a file gives: its facts (size, mtime_ns, sha256, encoding, kind) and its chunks."""

    facts: tuple[int, int, str, str, str]
    chunks: list[Chunk]


class Ingest:
    """Run one plan against an open store writer.

    mode: of the store's fingerprint. make_writer: as for `WriteQueue`. on_event receives `chunk_batch` and `skip`
    events; on_bytes the bytes of each source file when it is done.
    """

    def __init__(
        self,
        writer: StoreWriter,
        tokenizer: tokenizers.Tokenizer,
        mode: WriteMode,
        make_writer: Callable[[], ChunkWriter] | None,
        *,
        on_event: Event,
        on_bytes: Callable[[int], None],
        device: Callable[[], str],
    ) -> None:
        self._writer = writer
        self._tokenizer = tokenizer
        self._chunk = writer.fingerprint.chunk
        self._queue = WriteQueue(writer, writer.fingerprint, mode, make_writer, on_event=on_event, device=device)
        self._on_event, self._on_bytes = on_event, on_bytes
        self._summary = Summary()
        self._emptied: list[int] = []  # documents whose file holds no text any more

    def run(self, plan: Plan) -> Summary:
        """Do what the plan says and return the counts; raises what store and model raise."""
        queue, summary = self._queue, self._summary
        summary.unchanged = plan.unchanged
        for skip in plan.skips:
            self._skip(skip)
        with closing(in_order(plan.changed, self._read)) as files:
            for source, read in files:
                self._take(source, read(), plan)
                self._on_bytes(source.size)
                queue.commit_if_due()
        queue.flush()
        gone = [*(row.id for row in plan.gone), *self._emptied]
        plan.require_consent(len(gone))
        self._writer.remove_documents(gone)
        summary.removed += len(gone)
        queue.commit()
        self._writer.drop_unplaced()
        compact_sparse(self._writer)
        summary.written_chunks, summary.written_tokens = queue.chunks, queue.tokens
        return summary

    def _read(self, source: SourceFile) -> _Document | Skip:
        """Read and tokenise a file; runs beside everything else and touches nothing of it."""
        got = extract(source)
        if isinstance(got, Skip):
            return got
        chunks = chunk(got, self._tokenizer, self._chunk)
        return _Document((got.size, got.mtime_ns, got.sha256, got.encoding, got.kind), chunks)

    def _take(self, source: SourceFile, found: _Document | Skip, plan: Plan) -> None:
        known = plan.known.get(os.fsencode(source.absolute))
        if isinstance(found, Skip):
            self._skip(found)
            if known is not None and not found.failed:  # it turned binary or empty: the old text is gone
                self._emptied.append(known.id)
            return
        keys = self._queue.add([c.ids for c in found.chunks])
        root_id = known.root_id if known else self._writer.add_root(source.root)
        path: str | bytes = known.path if known else source.path
        places = [Placement(key, *c.bytes, *c.lines) for key, c in zip(keys, found.chunks, strict=True)]
        self._writer.put_document(root_id, path, *found.facts, places)
        self._summary.files += 1
        self._summary.chunks += len(found.chunks)
        self._summary.tokens += sum(c.n_tokens for c in found.chunks)

    def _skip(self, skip: Skip) -> None:
        self._summary.skips.append(skip)
        event = {"type": "skip", "path": skip.path, "reason": skip.reason, "detail": skip.detail}
        self._on_event({**event, "failed": skip.failed, "root": str(skip.root)})
