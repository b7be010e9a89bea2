"""A small deterministic store for the tests, and an independent description of what it must hold."""

from __future__ import annotations

import random
import struct
from dataclasses import dataclass
from pathlib import Path

from comem_cli.store.edits import Placement
from comem_cli.store.fingerprint import Fingerprint, chunk_key
from comem_cli.store.reader import StoreReader
from comem_cli.store.rows import LedgerRow
from comem_cli.store.writer import StoreWriter

WIDTH = 8
CHUNK = 64
RECORDED = {"compute_dtype": "float32", "attention": "eager"}


def fingerprint(**changes: object) -> Fingerprint:
    values: dict[str, object] = {
        "format_version": 1,
        "weights": "w",
        "config": "c",
        "tokenizer": "t",
        "bos": "1:1",
        "split": 2,
        "chunk": CHUNK,
        "overlap": 0,
        "mode": "chunk",
        "shapes": "[[8,64]]",
    }
    return Fingerprint.from_dict({**Fingerprint(**values).to_dict(), **changes})  # type: ignore[arg-type]


@dataclass(frozen=True)
class Sample:
    """One chunk: its key, token ids and residual bytes."""

    key: str
    ids: bytes
    residual: bytes

    @property
    def n_tokens(self) -> int:
        return len(self.ids) // 4


def sample(seed: int, n_tokens: int = CHUNK, width: int = WIDTH) -> Sample:
    rng = random.Random(seed)
    ids = struct.pack(f"<{n_tokens}I", *(rng.randrange(50_000) for _ in range(n_tokens)))
    return Sample(chunk_key(fingerprint().digest(), b"", ids), ids, rng.randbytes(n_tokens * width * 2))


def open_store(path: Path, **changes: object) -> StoreWriter:
    return StoreWriter.create_or_open(path, fingerprint(**changes), WIDTH, RECORDED)


def put(writer: StoreWriter, name: str | bytes, chunks: list[Sample], root: str = "/src") -> None:
    """Add what is not stored and place it, the way ingest does."""
    number = writer.add_root(Path(root))
    known = writer.stored(chunk.key for chunk in chunks)
    for chunk in chunks:
        if chunk.key not in known:
            writer.add(chunk.key, chunk.ids, chunk.residual if writer.fingerprint.split else None)
    places = [Placement(chunk.key, 10 * i, 10 * i + 10, i + 1, i + 2) for i, chunk in enumerate(chunks)]
    writer.put_document(number, name, 100, 123, "ab" * 32, "utf-8", "text", places)


def ledger(kind: str = "chunk-write") -> LedgerRow:
    return LedgerRow(1.5, kind, 2, 128, 20.0, 15.0, 0.0, "cpu", "float32")


def contents(path: Path) -> dict[tuple[str, str], list[tuple[str, bytes, bytes]]]:
    """Read everything back: (root, path) -> [(key, ids, residual)]."""
    with StoreReader(path) as reader:
        return all_of(reader)


def all_of(reader: StoreReader) -> dict[tuple[str, str], list[tuple[str, bytes, bytes]]]:
    """Read everything of one snapshot."""
    found: dict[tuple[str, str], list[tuple[str, bytes, bytes]]] = {}
    order = reader.chunk_ids_in_order()
    rows = dict(zip(order, reader.chunks(order), strict=True))
    places = reader.places(order)
    for document in reader.documents():
        here = [
            (place.number, chunk_id)
            for chunk_id, some in places.items()
            for place in some
            if place.document_id == document.id
        ]
        chunks = []
        for _, chunk_id in sorted(here):
            out = bytearray(rows[chunk_id].n_tokens * reader.width * 2)
            reader.fetch([chunk_id], memoryview(out))
            chunks.append((rows[chunk_id].key, rows[chunk_id].ids, bytes(out)))
        found[reader.roots()[document.root_id], document.name] = chunks
    return found


def expected(chunks: list[Sample]) -> list[tuple[str, bytes, bytes]]:
    return [(chunk.key, chunk.ids, chunk.residual) for chunk in chunks]
