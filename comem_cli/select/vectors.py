"""Keep the vectors of a store's chunks and search them exactly.

`index/dense-<encoder digest>/` holds `vectors` (rows, width) fp32 little-endian, `owners` (rows,) int64 chunk ids, and
`meta.json`: the content digest of the live chunks, the encoder, the shape and a checksum of both. It stands outside the
store's commits: whoever opens it compares the content digest, and other content is stale. It is built aside and
renamed, never changed afterwards. A chunk has one row a window of the encoder and scores as its best one.

The search is one matrix product in blocks of rows: exact, and linear in the store. An approximate index would take the
place of `Vectors.search` and nothing else.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Collection, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from comem_cli.errors import IndexStaleError, from_os_error
from comem_cli.select.encoder import SentenceEncoder, find_encoder
from comem_cli.select.index_write import rename_over
from comem_cli.select.selector import Hit
from comem_cli.store.durable import sync_dir, write_file
from comem_cli.store.reader import INDEX_DIR, StoreReader

VECTORS_PREFIX = "dense-"
META, ROWS, OWNERS = "meta.json", "vectors", "owners"
TEXTS = 64  # chunks encoded at once
BLOCK = 65_536  # rows a product
DIGITS = 5  # of a cosine: what lies beyond depends on the threads of the product, and must not decide the order


class Vectors:
    """The open vectors of one store, with their encoder."""

    def __init__(self, rows: Any, owners: Any, encoder: SentenceEncoder) -> None:
        import numpy as np

        self._rows, self._encoder = rows, encoder
        self.chunk_ids, self._group = np.unique(owners, return_inverse=True)

    def search(self, text: str, k: int, exclude: Collection[int] = ()) -> list[Hit]:
        """Return the k chunks outside `exclude` of highest cosine, best first, and all that tie with the k-th."""
        import numpy as np

        vectors, _ = self._encoder.encode([text], "query")
        scores = np.full(len(self.chunk_ids), -1.0, dtype=np.float32)
        for start in range(0, len(self._rows), BLOCK):
            block = slice(start, start + BLOCK)
            np.maximum.at(scores, self._group[block], self._rows[block] @ vectors[0])
        scores = scores.round(DIGITS)
        scores[np.isin(self.chunk_ids, list(exclude))] = -1.0
        k = min(k, len(scores))
        if not k:
            return []
        cut = np.partition(scores, len(scores) - k)[len(scores) - k]
        kept = np.flatnonzero((scores >= cut) & (scores > -1.0))
        hits = [Hit(int(self.chunk_ids[place]), float(scores[place])) for place in kept]
        return sorted(hits, key=lambda hit: -hit.score)


def build_vectors(store: Path, encoder: SentenceEncoder, chunks: Iterable[tuple[int, str]], content: str) -> int:
    """Encode (chunk id, text) into the store's vectors, replacing all others; return the number of chunks.

    content: the digest of those chunks. Memory does not grow with their number. The caller holds the writer lock.
    Raises: NoSpaceError (14), ComemError (1).
    """
    index = store / INDEX_DIR
    path = index / f"{VECTORS_PREFIX}{encoder.files.digest[:16]}"
    building = index / f".{path.name}.building"
    try:
        shutil.rmtree(building, ignore_errors=True)
        building.mkdir(mode=0o700, parents=True)
        count, rows = _write(building, encoder, iter(chunks))
        meta = {
            "content": content,
            "encoder": encoder.files.digest,
            "model": encoder.files.spec,
            "rows": rows,
            "width": encoder.width,
            "sha256": [_sha256(building / ROWS), _sha256(building / OWNERS)],
        }
        write_file(building / META, [json.dumps(meta).encode()])
        sync_dir(building)
        rename_over(building, path)
    except OSError as error:
        raise from_os_error(error) from error
    finally:
        shutil.rmtree(building, ignore_errors=True)
    for other in index.glob(f"{VECTORS_PREFIX}*"):
        if other != path:
            shutil.rmtree(other)
    return count


def open_vectors(reader: StoreReader, device: str = "cpu") -> Vectors:
    """Open the vectors that match the reader's snapshot, and load their encoder.

    Raises: IndexStaleError (15) where there are none, of other content, damaged, or of an encoder that has changed;
    ModelError (1) where the encoder cannot be loaded.
    """
    import numpy as np

    path, meta = _matching(reader)
    again = f"comem index {reader.path} --dense {meta['model']}"
    files = find_encoder(meta["model"])
    if files.digest != meta["encoder"]:
        raise IndexStaleError(f"the vectors of {reader.path} were made by another version of {meta['model']}", again)
    flaw = vectors_flaw(path, sums=True)
    if flaw:
        raise IndexStaleError(f"{path}: {flaw}", again)
    shape = (meta["rows"], meta["width"])
    rows = np.memmap(path / ROWS, dtype="<f4", mode="r", shape=shape) if meta["rows"] else np.zeros(shape, "<f4")
    return Vectors(rows, np.fromfile(path / OWNERS, dtype="<i8"), SentenceEncoder(files, device))


def vectors_path(reader: StoreReader) -> Path:
    """Return the folder of the matching vectors; raises IndexStaleError (15). Loads nothing."""
    return _matching(reader)[0]


def vectors_flaw(path: Path, *, sums: bool) -> str | None:
    """Say what is damaged about the vectors at `path`, None where nothing is; `sums` reads every byte."""
    meta = _meta(path)
    if meta is None:
        return f"{META} is damaged"
    sizes = (meta["rows"] * meta["width"] * 4, meta["rows"] * 8)
    for name, size, digest in zip((ROWS, OWNERS), sizes, meta["sha256"], strict=True):
        file = path / name
        if not file.is_file() or file.stat().st_size != size or (sums and _sha256(file) != digest):
            return f"{name} is damaged"
    return None


def vectors_content(path: Path) -> str | None:
    """Return the content digest that the vectors at `path` were made from; None where they are damaged."""
    meta = _meta(path)
    return None if meta is None else str(meta["content"])


def _matching(reader: StoreReader) -> tuple[Path, dict[str, Any]]:
    found = sorted((reader.path / INDEX_DIR).glob(f"{VECTORS_PREFIX}*"))
    hint = f"comem index {reader.path} --dense MODEL"
    if not found:
        raise IndexStaleError(f"{reader.path} has no vectors for the selector dense", hint)
    meta = _meta(found[0])
    if meta is None:
        raise IndexStaleError(f"the vectors of {reader.path} are damaged", hint)
    if meta["content"] != reader.content:
        again = f"comem index {reader.path} --dense {meta['model']}"
        raise IndexStaleError(f"the vectors of {reader.path} are older than its documents", again)
    return found[0], meta


def _meta(path: Path) -> dict[str, Any] | None:
    try:
        meta = json.loads((path / META).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None  # a damaged folder is a stale one: callers say so
    wanted = {"content", "encoder", "model", "rows", "width", "sha256"}
    return meta if isinstance(meta, dict) and wanted <= meta.keys() else None


def _write(folder: Path, encoder: SentenceEncoder, chunks: Iterator[tuple[int, str]]) -> tuple[int, int]:
    """Write rows and owners; return how many chunks and rows."""
    import numpy as np

    count = rows = 0
    with (folder / ROWS).open("wb") as vectors_file, (folder / OWNERS).open("wb") as owners_file:
        while batch := list(islice(chunks, TEXTS)):
            vectors, positions = encoder.encode([text for _, text in batch])
            vectors_file.write(vectors.astype("<f4").tobytes())
            ids = np.array([batch[position][0] for position in positions], dtype="<i8")
            owners_file.write(ids.tobytes())
            count, rows = count + len(batch), rows + len(vectors)
    for name in (ROWS, OWNERS):
        (folder / name).chmod(0o600)
    return count, rows


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
