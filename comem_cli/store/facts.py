"""What a store takes and what writing it cost, from the catalogue alone: no model, no numpy.

Formulas, bytes a token: a residual takes 2d (bf16, d the model's width) or d + 36 (int8); a full KV cache in bf16 would
take 2 · layers · kv_heads · head_dim · 2 (keys and values): 8,192 against 147,456 for Qwen3-8B (the paper's Table 6).
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from comem_cli.store.reader import Counts, StoreReader, Sums
from comem_cli.store.row_layout import BF16_BYTES
from comem_cli.store.rows import DocumentRow, LedgerRow

ID_BYTES = 4  # a token id in the catalogue


@dataclass(frozen=True)
class TokenBytes:
    """Bytes a token. The store's parts are divided by its live tokens, the sources by their placed tokens.

    residual_formula: of the store's residual dtype, 0 at split 0. full_kv: None where the store does not record the
    model's KV sizes. The catalogue includes `token_ids`.
    """

    residuals: float
    residual_formula: int
    catalogue: float
    token_ids: float
    index: float
    total: float
    text: float
    full_kv: int | None


@dataclass(frozen=True)
class WriteCost:
    """What the ledger measured for one kind of Write on one device in one dtype; times in ms, kept apart.

    wall_ms: reading, tokenising, forward (`forward_ms` is a part of it) and buffering; io_ms: commits, on top.
    """

    kind: str
    device: str
    dtype: str
    chunks: int = 0
    tokens: int = 0
    wall_ms: float = 0.0
    forward_ms: float = 0.0
    io_ms: float = 0.0

    @property
    def seconds(self) -> float:
        """Return the whole measured time in s."""
        return (self.wall_ms + self.io_ms) / 1e3

    @property
    def tokens_per_s(self) -> float | None:
        """Return the throughput of the whole time; None where no time was measured."""
        return self.tokens / self.seconds if self.seconds > 0 else None


@dataclass(frozen=True)
class ResidualError:
    """How far int8 residuals are from what Write gave: |h - h'| / |h|, mean and largest over `rows` tokens."""

    rows: int
    mean: float
    max: float


def token_bytes(reader: StoreReader, counts: Counts, sums: Sums) -> TokenBytes | None:
    """Divide every part of a store by its tokens; None for a store without tokens."""
    if not counts.tokens:
        return None
    parts = (counts.residual_bytes, counts.catalogue_bytes, counts.index_bytes)
    residuals, catalogue, index = (size / counts.tokens for size in parts)
    return TokenBytes(
        residuals=residuals,
        residual_formula=reader.layout.row_bytes if reader.fingerprint.split else 0,
        catalogue=catalogue,
        token_ids=ID_BYTES * sums.stored_tokens / counts.tokens,
        index=index,
        total=residuals + catalogue + index,
        text=sums.source_bytes / sums.placed_tokens,
        full_kv=full_kv_bytes(reader.recorded),
    )


def full_kv_bytes(recorded: Mapping[str, str]) -> int | None:
    """Return the bf16 bytes a token of a KV cache over all layers: 2 · layers · kv_heads · head_dim · 2."""
    sizes = [recorded.get(name, "") for name in ("n_layers", "kv_heads", "head_dim")]
    if not all(size.isdecimal() for size in sizes):
        return None
    layers, kv_heads, head_dim = map(int, sizes)
    return 2 * layers * kv_heads * head_dim * BF16_BYTES


def padding_share(sums: Sums) -> float:
    """Return the share of residual rows that hold no token; 0 without residuals."""
    return 1 - sums.stored_tokens / sums.rows if sums.rows else 0.0


def write_costs(rows: Iterable[LedgerRow]) -> list[WriteCost]:
    """Sum the ledger up by kind, device and dtype, in the order in which they first appear."""
    found: dict[tuple[str, str, str], WriteCost] = {}
    for row in rows:
        key = (row.kind, row.device, row.dtype)
        sofar = found.get(key, WriteCost(*key))
        found[key] = replace(
            sofar,
            chunks=sofar.chunks + row.chunks,
            tokens=sofar.tokens + row.tokens,
            wall_ms=sofar.wall_ms + row.wall_ms,
            forward_ms=sofar.forward_ms + row.forward_ms,
            io_ms=sofar.io_ms + row.io_ms,
        )
    return list(found.values())


def residual_error(rows: Iterable[LedgerRow], fingerprint: str) -> ResidualError | None:
    """Sum up what the ledger measured for a fingerprint's digest; None where nothing was, as for bf16."""
    count, total, largest = 0, 0.0, 0.0
    for row in rows:
        detail = json.loads(row.detail)
        error = detail.get("relative_error")
        if error is not None and detail.get("fingerprint") == fingerprint:
            count += row.tokens
            total += error["sum"]
            largest = max(largest, error["max"])
    return ResidualError(count, total / count, largest) if count else None


def source_changed(root: str, document: DocumentRow) -> bool:
    """Tell whether a source file is gone or differs in size or mtime from what was ingested."""
    try:
        status = (Path(root) / os.fsdecode(document.path)).stat()
    except OSError:
        return True
    return (status.st_size, status.st_mtime_ns) != (document.size, document.mtime_ns)


def changed_sources(reader: StoreReader) -> list[tuple[str, str]]:
    """List (root, path) of every source file that is gone or changed since ingest; reads no file."""
    roots = reader.roots()
    return [(roots[row.root_id], row.name) for row in reader.documents() if source_changed(roots[row.root_id], row)]
