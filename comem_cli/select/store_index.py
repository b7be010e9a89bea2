"""Build and open the BM25 index that belongs to one generation of a store.

The index lies in `index/<content digest>`; the catalogue names the one that matches its live chunks. It is built aside
and named in a commit of its own, so a crash leaves the old index named, or none.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from pathlib import Path

from comem_cli.errors import IndexStaleError
from comem_cli.select.index import Bm25Index, build_index, check_index, open_index
from comem_cli.store.reader import INDEX_DIR, StoreReader
from comem_cli.store.writer import StoreWriter


def rebuild_index(writer: StoreWriter) -> int:
    """Build the index of the store's live chunks, name it in the catalogue, remove others; return its chunks.

    Raises: NoSpaceError (14), CorruptStoreError (13), ComemError (1).
    """
    folder = IndexFolder(writer.path)
    name = writer.content
    with StoreReader(writer.path) as reader:
        count = folder.build(name, ((chunk.id, chunk.ids) for chunk in reader.iter_chunks()))
    writer.set_index(name, writer.content)
    folder.keep_only(name)
    return count


class IndexFolder:
    """Hold the indexes of one store; the caller holds its writer lock."""

    def __init__(self, store: Path) -> None:
        self._path = store / INDEX_DIR

    def build(self, name: str, chunks: Iterable[tuple[int, bytes]]) -> int:
        """Build an index of (chunk id, token ids as uint32 LE bytes) aside; return the number of chunks.

        Raises: NoSpaceError (14), CorruptStoreError (13), ComemError (1).
        """
        return build_index(self._path / name, chunks)

    def keep_only(self, name: str) -> None:
        """Remove every other index; one that a reader has open stays readable to it."""
        for other in self._path.glob("*"):
            if other.name != name and other.is_dir():
                shutil.rmtree(other)


def open_store_index(reader: StoreReader) -> Bm25Index:
    """Open the index that matches the reader's snapshot.

    Raises: IndexStaleError (15) where there is none, or only one of another generation.
    """
    path = index_path(reader)
    check_index(path, checksums_only=True)  # Lucene itself would read a flipped bit as other postings
    return open_index(path)


def index_path(reader: StoreReader) -> Path:
    """Return the folder of the matching index; raises IndexStaleError (15) without Java."""
    name, fresh = reader.index()
    hint = f"comem index {reader.path}"
    if name is None:
        raise IndexStaleError(f"{reader.path} has no BM25 index", hint)
    if not fresh:
        raise IndexStaleError(f"the BM25 index of {reader.path} is older than its documents", hint)
    path = reader.path / INDEX_DIR / name
    if not path.is_dir():
        raise IndexStaleError(f"the BM25 index of {reader.path} is missing", hint)
    return path
