"""Run a rewrite from a store's path to its new mode: settle the settings, plan, measure.

Cost is compared with theory: FLOPs of the lower half under the new mode over those under the old one, for the documents
of this store, against the forward time a token that the ledger has for each (same device and dtype).
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from comem_cli.errors import FingerprintError, UsageError
from comem_cli.model import load
from comem_cli.model.flops import lower_flops
from comem_cli.model.modes import ChunkWriter, make_mode
from comem_cli.store.fingerprint import Fingerprint, chunk_key
from comem_cli.store.reader import StoreReader
from comem_cli.store.rewrite import Indexes, Rewrite
from comem_cli.store.rows import LedgerRow
from comem_cli.store.setup import WriteOptions, WriteSetup
from comem_cli.store.write_queue import Event
from comem_cli.store.writer import COMPUTE_DTYPE, StoreWriter


@dataclass(frozen=True)
class RewritePlan:
    """Say what a rewrite has to do. Tokens count every place of a chunk; flop_ratio is new mode over old mode.

    forward_tokens: tokens that the lower half runs, left context included. ready: chunks that an interrupted run wrote.
    estimate_s: the ledger's forward time of the old mode times flop_ratio, None without such a row.
    """

    documents: int
    chunks: int
    ready: int
    tokens: int
    forward_tokens: int
    flop_ratio: float
    bytes_per_token: int
    extra_bytes: int
    estimate_s: float | None


@dataclass(frozen=True)
class Measured:
    """What the ledger holds for one fingerprint on one device in one dtype; wall_s includes commits."""

    tokens: int
    wall_s: float
    forward_s: float


class RewriteRun:
    """Hold everything a rewrite needs before anything is written.

    Raises NoStoreError (10) before `resolve` is called, what `WriteSetup` raises, UsageError (2) for a store without
    residuals, FingerprintError (12) for another dtype than the store's.
    """

    def __init__(self, store: Path, resolve: Callable[[], load.ModelFiles], options: WriteOptions) -> None:
        with StoreReader(store) as reader:
            self.old: Fingerprint = reader.fingerprint
            dtype = reader.recorded.get(COMPUTE_DTYPE, "none")
            documents = reader.counts().documents
        if self.old.split == 0:
            raise UsageError(
                f"{store} was written at split 0: it holds no residuals to rewrite",
                "comem ingest PATH --store DIR --split J",
            )
        if not documents:
            raise UsageError(f"{store} holds no documents", f"comem ingest PATH --store {store}")
        if options.dtype not in ("auto", dtype):
            raise FingerprintError(
                f"the store was written with {COMPUTE_DTYPE} {dtype}, not {options.dtype}",
                f"run the same command again with --dtype {dtype}",
            )
        self.store = store
        self.setup = WriteSetup(store, resolve(), options, rewrite=True)
        self.fingerprint = self.setup.fingerprint
        self._flops = lower_flops(self.setup.files.directory, self.old.split)
        self._old_mode = make_mode(self.old.mode, self.old.overlap, self.setup.identity.window)

    @property
    def done(self) -> bool:
        """Tell whether the store is in the wanted mode already."""
        return self.old == self.fingerprint

    def plan(self) -> RewritePlan:
        """Read the store's chunks and say what there is to do; nothing is written."""
        key, mode = partial(chunk_key, self.fingerprint.digest()), self.setup.mode
        documents = chunks = tokens = forward_tokens = old_flops = new_flops = 0
        keys: set[str] = set()
        with StoreReader(self.store) as reader:
            for document in reader.documents():
                rows = reader.document_chunks(document.id)
                lengths = [row.n_tokens for row in rows]
                documents, chunks, tokens = documents + 1, chunks + len(rows), tokens + sum(lengths)
                forward_tokens += sum(new for _, new in mode.forwards(lengths))
                old_flops += self._flops.forwards(self._old_mode.forwards(lengths))
                new_flops += self._flops.forwards(mode.forwards(lengths))
                keys.update(chunk.key for chunk in mode.pending([row.ids for row in rows], key))
            ratio = new_flops / old_flops if old_flops else 1.0
            before = self._measured(reader.ledger(), self.old)
            return RewritePlan(
                documents=documents,
                chunks=len(keys),
                ready=len(reader.stored(keys)),
                tokens=tokens,
                forward_tokens=forward_tokens,
                flop_ratio=ratio,
                bytes_per_token=reader.layout.row_bytes,
                extra_bytes=reader.counts().residual_bytes,
                estimate_s=before.forward_s / before.tokens * tokens * ratio if before else None,
            )

    def run(
        self,
        indexes: Indexes,
        *,
        on_event: Event,
        on_tokens: Callable[[int], None],
        on_load: Callable[[], None],
        on_index: Callable[[], None],
    ) -> int:
        """Rewrite the store and return the number of chunks that this run computed.

        Takes the writer lock. on_load is called before the model is loaded, if it is at all; on_index before the index
        is built.
        """

        def make_writer() -> ChunkWriter:
            on_load()
            return self.setup.make_writer()

        with StoreWriter.open(self.store) as writer:
            writer.fingerprint.require_same(self.old)  # nobody rewrote it meanwhile
            setup = self.setup
            job = Rewrite(
                writer,
                self.fingerprint,
                setup.mode,
                make_writer,
                on_event=on_event,
                on_tokens=on_tokens,
                device=setup.device,
            )
            if not self.done:
                job.write()
                on_index()
                job.swap(indexes, {**writer.recorded, **setup.record()})
            writer.drop_unplaced()
            if writer.index_is_fresh:
                indexes.keep_only(writer.content)
        return job.queue.chunks

    def cost(self) -> dict[str, Any]:
        """Return what was measured, for the new and the old mode, and the ratio of their forward times a token."""
        with StoreReader(self.store) as reader:
            ledger = reader.ledger()
        new, old = self._measured(ledger, self.fingerprint), self._measured(ledger, self.old)
        ratio = None
        if new and old and not self.done and old.forward_s:
            ratio = (new.forward_s / new.tokens) / (old.forward_s / old.tokens)
        return {
            "new": vars(new) | {"tokens_per_s": new.tokens / new.wall_s} if new else None,
            "old": vars(old) | {"tokens_per_s": old.tokens / old.wall_s} if old else None,
            "forward_ratio": ratio,
        }

    def _measured(self, ledger: list[LedgerRow], fingerprint: Fingerprint) -> Measured | None:
        digest, device = fingerprint.digest(), self.setup.device()
        rows = [row for row in ledger if json.loads(row.detail).get("fingerprint") == digest and row.device == device]
        if not rows:
            return None
        wall = sum(row.wall_ms + row.io_ms for row in rows) / 1e3
        return Measured(sum(row.tokens for row in rows), wall, sum(row.forward_ms for row in rows) / 1e3)
