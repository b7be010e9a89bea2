"""The one-time cost of each arm: W for stored residuals, I0 for stored token ids. DESIGN.md §7.

W is what the store's own ledger measured under its present fingerprint: reading, extracting, tokenising, layers
[0:j), buffering and commits, per token written, times the tokens that the store holds now. Left out: loading the model,
the last transaction of each command, chunks that were replaced or dropped since, and the BM25 index, which both arms
need. Of a store that was rewritten into another mode W is the rewrite alone, which reads no source.

I0 is measured here by the same ledger: an ingest at split 0 of the same sources into a temporary store, scaled to all
tokens where some sources changed. With none left the stored token ids are written again instead; reading and tokenising
are then missing, which makes the store look dearer than it is.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from comem_cli.errors import ComemError
from comem_cli.model.load import ModelFiles
from comem_cli.store.facts import source_changed, write_costs
from comem_cli.store.reader import StoreReader
from comem_cli.store.rows import LedgerRow
from comem_cli.store.run import IngestRun
from comem_cli.store.setup import WriteOptions
from comem_cli.store.writer import COMPUTE_DTYPE, StoreWriter


@dataclass(frozen=True)
class WriteTime:
    """W in s, and the ledger it comes from: seconds = (wall_s + io_s) · stored_tokens / ledger_tokens."""

    seconds: float
    wall_s: float
    forward_s: float  # a part of wall_s
    io_s: float
    ledger_tokens: int
    stored_tokens: int
    kinds: tuple[str, ...]
    devices: tuple[str, ...]
    dtypes: tuple[str, ...]


@dataclass(frozen=True)
class RawTime:
    """I0 in s: seconds = measured_s · stored_tokens / measured_tokens; method: "sources" or "token ids"."""

    seconds: float
    measured_s: float
    measured_tokens: int
    stored_tokens: int
    method: str


def write_time(reader: StoreReader) -> WriteTime:
    """Return W of a store; raises ComemError (1) where its ledger has no Write under the store's fingerprint."""
    digest = reader.fingerprint.digest()
    costs = write_costs(row for row in reader.ledger() if _belongs(row, reader.fingerprint.mode, digest))
    tokens = sum(cost.tokens for cost in costs)
    if not tokens:
        raise ComemError(
            f"the ledger of {reader.path} has no measured Write of what it holds",
            "write the documents into a new store: comem ingest PATH --store DIR",
        )
    wall, forward, io = (
        sum(getattr(cost, name) for cost in costs) / 1e3 for name in ("wall_ms", "forward_ms", "io_ms")
    )
    stored = reader.counts().tokens
    names = [tuple(dict.fromkeys(getattr(cost, name) for cost in costs)) for name in ("kind", "device", "dtype")]
    return WriteTime((wall + io) * stored / tokens, wall, forward, io, tokens, stored, *names)


def _belongs(row: LedgerRow, mode: str, digest: str) -> bool:
    """Tell whether a ledger row measured a Write under the store's present fingerprint."""
    if row.kind not in ("write", f"write:{mode}"):
        return False
    return bool(json.loads(row.detail).get("fingerprint", digest) == digest)


def raw_time(reader: StoreReader, files: ModelFiles) -> RawTime:
    """Measure I0: the replay arm's ingest of the same documents into a temporary store."""
    roots = reader.roots()
    unchanged = [
        Path(roots[row.root_id], row.name) for row in reader.documents() if not source_changed(roots[row.root_id], row)
    ]
    stored = reader.counts().tokens
    with tempfile.TemporaryDirectory(prefix="comem-") as folder:
        seconds, tokens = _ingest(Path(folder, "sources"), files, reader.fingerprint.chunk, unchanged)
        if tokens:
            return RawTime(seconds * stored / tokens, seconds, tokens, stored, "sources")
        seconds = _store_ids(Path(folder, "ids"), reader)
    return RawTime(seconds, seconds, stored, stored, "token ids")


def _ingest(target: Path, files: ModelFiles, chunk: int, paths: Sequence[Path]) -> tuple[float, int]:
    """Ingest files at split 0; return s and tokens of its ledger, which measures what that of W does."""
    if not paths:
        return 0.0, 0
    run = IngestRun(target, files, WriteOptions(split=0, chunk=chunk))
    with run.open() as writer:
        run.ingest(
            writer,
            paths,
            on_plan=lambda plan: None,
            on_event=lambda event: None,
            on_bytes=lambda size: None,
            on_load=lambda: None,
        )
    with StoreReader(target) as raw:
        costs = write_costs(raw.ledger())
    return sum(cost.seconds for cost in costs), sum(cost.tokens for cost in costs)


def _store_ids(target: Path, reader: StoreReader) -> float:
    """Store the token ids of every chunk at split 0; return s."""
    raw = replace(reader.fingerprint, split=0, overlap=0, mode="chunk", shapes="[]")
    chunks = list(reader.iter_chunks())
    start = time.perf_counter()
    with StoreWriter.create_or_open(target, raw, reader.width, {COMPUTE_DTYPE: "none"}) as writer:
        for chunk in chunks:
            writer.add(chunk.key, chunk.ids, None)
        writer.commit()
    return time.perf_counter() - start
