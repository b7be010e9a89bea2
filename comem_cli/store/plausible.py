"""Refuse what a catalogue cannot mean, before anything is allocated, opened or written for it.

A store that came from elsewhere may carry valid digests over absurd values: a width of 10^12, a shard number that is a
path, token ids shorter than their count. Every function returns what is wrong in a few words, or None.
Only the standard library is used.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

from comem_cli.model.modes import MODES
from comem_cli.store import format
from comem_cli.store.fingerprint import Fingerprint
from comem_cli.store.row_layout import BF16, INT8, NARROWEST, WIDEST, RowLayout, quantiser_of
from comem_cli.store.rows import ChunkRow, DocumentRow, LedgerRow, MetaRow, PlacementRow, RootRow, Row, ShardRow

MAX_WIDTH = 2**17  # values a row; the widest open model has 2^14
MAX_CHUNK = 2**21  # tokens
MAX_LAYERS = 2**12
MAX_ROW = 2**25  # of a shard
MAX_CHUNK_BYTES = 2**32  # of a chunk's residual
MAX_NUMBER = 2**53  # of ids, sizes and counters
MAX_BATCH_TOKENS = 2**24
NUMBERS = ("format_version", "generation", "width", "capacity", "next_shard", "next_chunk", "next_document")

_HEX = re.compile(r"[0-9a-f]{32}")
_INDEX_NAME = re.compile(r"[A-Za-z0-9_-]{0,64}")
_TYPES: dict[str, tuple[type, ...]] = {
    "int": (int,),
    "str": (str,),
    "bytes": (bytes,),
    "float": (float,),
    "int | None": (int, type(None)),
}
_COLUMNS: dict[type[Row], tuple[tuple[str, tuple[type, ...]], ...]] = {}


def facts_flaw(facts: Mapping[str, str]) -> str | None:
    """Judge the named facts of a store, all of them there."""
    for name in NUMBERS:
        if not (facts[name].isascii() and facts[name].isdigit() and len(facts[name]) <= 16):
            return f"{name} is {facts[name][:40]!r}"
    width, capacity = int(facts["width"]), int(facts["capacity"])
    if not 1 <= width <= MAX_WIDTH:
        return f"width {width:,} is outside 1..{MAX_WIDTH:,}"
    if not (_HEX.fullmatch(facts["content"]) and _INDEX_NAME.fullmatch(facts["index_name"])):
        return "content or index_name is no name that comem gives"
    fingerprint = _object(facts["fingerprint"])
    recorded = _object(facts["recorded"])
    if fingerprint is None or recorded is None or not all(isinstance(value, str) for value in recorded.values()):
        return "fingerprint or recorded is not the JSON that comem writes"
    return (
        _fingerprint_flaw(fingerprint)
        or _residual_flaw(width, int(facts["format_version"]), fingerprint)
        or _capacity_flaw(RowLayout(width, fingerprint["residual_dtype"]), capacity, fingerprint["chunk"])
    )


def row_flaw(kind: type[Row], values: Sequence[object]) -> str | None:
    """Judge one row, the columns in order without the digest."""
    for (name, types), value in zip(_column_types(kind), values, strict=True):
        if not isinstance(value, types):
            return f"{name} is of type {type(value).__name__}"
        if isinstance(value, int) and not -MAX_NUMBER <= value <= 2**63 - 1:
            return f"{name} is {value}"
    check = _CHECKS.get(kind)
    return check(kind(*values)) if check else None


def _column_types(kind: type[Row]) -> tuple[tuple[str, tuple[type, ...]], ...]:
    if kind not in _COLUMNS:
        _COLUMNS[kind] = tuple((field.name, _TYPES[str(field.type)]) for field in fields(kind))
    return _COLUMNS[kind]


def _root(row: RootRow) -> str | None:
    return None if row.path.startswith(b"/") and b"\0" not in row.path else "path is not absolute"


def _document(row: DocumentRow) -> str | None:
    if row.path.startswith(b"/") or b"\0" in row.path or b".." in row.path.split(b"/"):
        return "path leaves its root"
    return None if 0 <= row.size < MAX_NUMBER else f"size is {row.size}"


def _shard(row: ShardRow) -> str | None:
    counts = (row.id, row.blocks, row.bytes)
    return None if all(0 <= count < MAX_NUMBER for count in counts) else "a number is out of range"


def _chunk(row: ChunkRow) -> str | None:
    if not (1 <= row.n_tokens <= MAX_CHUNK and len(row.ids) == 4 * row.n_tokens):
        return f"{len(row.ids)} bytes of ids are not {row.n_tokens} tokens"
    if not (0 <= row.id < MAX_NUMBER and _HEX.fullmatch(row.key)):
        return "id or key is none that comem gives"
    if row.shard is None or row.row is None:
        return None if row.shard is row.row is None and not row.crcs else "half a place in a shard"
    if not (0 <= row.shard < MAX_NUMBER and 0 <= row.row < MAX_ROW and row.row % format.ROWS_PER_BLOCK == 0):
        return f"shard {row.shard}, row {row.row} is no place of a chunk"
    blocks = format.blocks_of(row.n_tokens)
    return None if len(row.crcs) == blocks * format.CRC_BYTES else f"{len(row.crcs)} bytes of crcs for {blocks} blocks"


def _placement(row: PlacementRow) -> str | None:
    spans = (0, row.byte_start, row.byte_end), (0, row.line_first, row.line_last)
    fits = all(list(span) == sorted(span) for span in spans) and 0 <= row.number < MAX_NUMBER
    return None if fits else "a span or a number is out of range"


def _ledger(row: LedgerRow) -> str | None:
    return None if _object(row.detail) is not None else "detail is not a JSON object"


_CHECKS: dict[Any, Any] = {
    RootRow: _root,
    DocumentRow: _document,
    ShardRow: _shard,
    ChunkRow: _chunk,
    PlacementRow: _placement,
    LedgerRow: _ledger,
    MetaRow: None,
}


def _object(text: str) -> dict[str, Any] | None:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _fingerprint_flaw(values: Mapping[str, Any]) -> str | None:
    kinds = {field.name: int if field.type == "int" else str for field in fields(Fingerprint)}
    odd = sorted(kinds.keys() ^ values.keys())
    if odd:
        return f"fingerprint fields missing or unknown: {', '.join(odd)[:80]}"
    if any(type(values[name]) is not kind for name, kind in kinds.items()):
        return "a field of the fingerprint has the wrong type"
    chunk, overlap, split = (values[name] for name in ("chunk", "overlap", "split"))
    if not (1 <= chunk <= MAX_CHUNK and 0 <= overlap <= MAX_CHUNK and 0 <= split <= MAX_LAYERS):
        return f"chunk {chunk}, overlap {overlap} or split {split} of the fingerprint is out of range"
    if values["mode"] not in MODES or (values["mode"] == "overlap") != (overlap > 0):
        return f"mode {values['mode'][:20]!r} with overlap {overlap} is none of comem's"
    return _shapes_flaw(values["shapes"])


def _shapes_flaw(text: str) -> str | None:
    try:
        pairs = json.loads(text)
        if not isinstance(pairs, list):
            raise TypeError
        shapes = [(int(batch), int(length)) for batch, length in pairs]
    except (TypeError, ValueError, OverflowError, RecursionError):
        return "shapes of the fingerprint are no list of pairs"
    fits = all(batch > 0 < length and batch * length <= MAX_BATCH_TOKENS for batch, length in shapes)
    return None if fits and len(shapes) <= 64 else "shapes of the fingerprint are out of range"


def _residual_flaw(width: int, version: int, values: Mapping[str, Any]) -> str | None:
    dtype, quantiser = values["residual_dtype"], values["quantiser"]
    if dtype not in (BF16, INT8) or quantiser != quantiser_of(dtype):
        return f"residuals {dtype[:20]!r} with quantiser {quantiser[:20]!r} are none of comem's"
    if not version == values["format_version"] == format.version_of(dtype):
        return f"format {version} does not go with residuals of {dtype}"
    if dtype == INT8 and not NARROWEST <= width <= WIDEST:
        return f"width {width:,} of int8 residuals is outside {NARROWEST}..{WIDEST:,}"
    return None


def _capacity_flaw(layout: RowLayout, capacity: int, chunk: int) -> str | None:
    if chunk * layout.row_bytes > MAX_CHUNK_BYTES:
        return f"chunks of {chunk:,} tokens of width {layout.width:,} are too large"
    padded = format.blocks_of(chunk) * format.ROWS_PER_BLOCK
    most = max(padded, format.SHARD_ROWS, format.SHARD_BYTES // layout.row_bytes)
    fits = padded <= capacity <= most and capacity % format.ROWS_PER_BLOCK == 0
    return None if fits else f"capacity {capacity:,} does not go with chunks of {chunk:,} tokens"
