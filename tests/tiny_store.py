"""A small real store written by a tiny model, in process, and ways to damage it."""

from __future__ import annotations

import sqlite3
import struct
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from comem_cli.model import load
from comem_cli.select.store_index import rebuild_index
from comem_cli.select.terms import DEFAULT_TERMS, term_scheme
from comem_cli.store import format
from comem_cli.store.catalogue import CATALOGUE_NAME
from comem_cli.store.reader import StoreReader
from comem_cli.store.rows import ChunkRow
from comem_cli.store.run import IngestRun
from comem_cli.store.setup import WriteOptions
from tests.tiny import save_tiny

CHUNK = 48
SPLIT = 2
PLACES = ("harbour", "basin", "lighthouse", "gate", "ledger", "pilots")


@dataclass(frozen=True)
class TinyStore:
    """A store, its model on disk and its sources."""

    path: Path
    model: Path
    sources: Path

    @property
    def files(self) -> load.ModelFiles:
        return load.resolve(str(self.model))


def write_sources(folder: Path, documents: int = 2, sentences: int = 6) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(documents):
        lines = [
            f"The {PLACES[(number + i) % 6]} keeps entry {number * 9 + i} about the {PLACES[(3 * i + 1) % 6]} at dusk."
            for i in range(sentences - number)
        ]
        (folder / f"doc{number}.txt").write_text("\n".join(lines) + "\n")
    return folder


def make_store(
    folder: Path, family: str = "llama", *, layers: int = 6, model: Path | None = None, **options: Any
) -> TinyStore:
    """Write a store of two documents with its index. `options` are those of `WriteOptions`."""
    directory = model or save_tiny(folder / "model", family, layers, initializer_range=0.2)
    sources = write_sources(folder / "docs")
    store = TinyStore(folder / "store", directory, sources)
    chosen = WriteOptions(**{"split": SPLIT, "chunk": CHUNK, "device": "cpu", "dtype": "fp32", **options})
    run = IngestRun(store.path, store.files, chosen)
    with run.open() as writer:
        ignored = {name: lambda *args: None for name in ("on_plan", "on_event", "on_bytes", "on_load")}
        run.ingest(writer, [sources], **ignored)
        rebuild_index(writer, term_scheme(DEFAULT_TERMS, load.tokenizer(store.files)))
    return store


def alter_residual(store: Path, *, mend: bool) -> ChunkRow:
    """Flip a bit of the first chunk's residual on disk; with `mend`, fix checksums and catalogue so that it fits."""
    with StoreReader(store) as reader:
        chunk = reader.chunks(reader.chunk_ids_in_order()[:1])[0]
        size = format.block_bytes(reader.layout)
    assert chunk.row is not None and chunk.shard is not None
    at = chunk.row // format.ROWS_PER_BLOCK * (size + format.CRC_BYTES)
    path = format.shard_path(store, chunk.shard)
    shard = bytearray(path.read_bytes())
    shard[at + 3] ^= 0x01
    if mend:
        import google_crc32c

        crc = struct.pack("<I", google_crc32c.value(bytes(shard[at : at + size])))
        shard[at + size : at + size + 4] = crc
        mended = replace(chunk, crcs=crc + chunk.crcs[4:])
        with sqlite3.connect(store / CATALOGUE_NAME) as catalogue:
            catalogue.execute(
                "UPDATE chunk SET crcs = ?, digest = ? WHERE id = ?", (mended.crcs, mended.digest(), chunk.id)
            )
        catalogue.close()
    path.write_bytes(shard)
    return chunk


def alter_weight(model: Path) -> None:
    """Change one weight of a model on disk."""
    from safetensors.torch import load_file, save_file

    path = model / "model.safetensors"
    tensors = load_file(path)
    tensors["model.layers.0.mlp.up_proj.weight"][0, 0] += 1.0
    save_file(tensors, path, metadata={"format": "pt"})
