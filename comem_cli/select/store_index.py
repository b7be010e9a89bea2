"""Build and open the BM25 index that belongs to one generation of a store.

The index lies in `index/<content digest>`; the catalogue names the one that matches its live chunks. It is built aside,
anew or out of the one before, and named in a commit of its own, so a crash leaves the old index named, or none. Which
terms it counts is recorded in it: whoever opens it takes those, and an index that records none, or those of another
version, is stale. Vectors of `select.vectors` lie beside it and go with the content that they were made from.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING

from comem_cli.errors import IndexStaleError
from comem_cli.select.bm25 import K1, B
from comem_cli.select.index import Bm25Index, check_checksums, open_index, recorded_terms
from comem_cli.select.index_write import build_index, update_index
from comem_cli.select.jvm import in_background
from comem_cli.select.selector import decode_ids
from comem_cli.select.terms import READABLE, TermScheme, recorded_scheme
from comem_cli.select.vectors import VECTORS_PREFIX, build_vectors, vectors_content
from comem_cli.store.reader import INDEX_DIR, StoreReader
from comem_cli.store.writer import StoreWriter

if TYPE_CHECKING:
    import tokenizers

    from comem_cli.select.encoder import SentenceEncoder

WARM_UPS = 3  # each some ms
READ_CHUNKS = 256  # rows in memory while an index is updated


def rebuild_index(writer: StoreWriter, scheme: TermScheme) -> int:
    """Build the index of the store's live chunks anew, name it in the catalogue, remove others; return its chunks.

    Raises: NoSpaceError (14), CorruptStoreError (13), ComemError (1).
    """
    folder = IndexFolder(writer.path, scheme)
    name = writer.content
    with StoreReader(writer.path) as reader:
        count = folder.build(name, ((chunk.id, chunk.ids) for chunk in reader.iter_chunks()))
    _name(writer, folder)
    return count


def refresh_index(writer: StoreWriter, scheme: TermScheme) -> int:
    """Bring the index in step with the store's live chunks as `rebuild_index` does; return its chunks.

    The index there is gives what it holds already, where it is sound and of this scheme.
    """
    folder = IndexFolder(writer.path, scheme)
    with StoreReader(writer.path) as reader:
        old, _ = reader.index()
        count = None
        try:
            if old:
                count = folder.update(writer.content, old, reader)
        except IndexStaleError:
            pass  # nothing to build on: a new one mends that
    if count is None:
        return rebuild_index(writer, scheme)
    _name(writer, folder)
    return count


def drop_index(writer: StoreWriter) -> None:
    """Name no index and remove what is there, vectors too: what a store without documents has.

    Raises: NoSpaceError (14), CorruptStoreError (13), ComemError (1).
    """
    if writer.catalogue.meta()["index_name"]:
        writer.set_index("", "")
    _keep_only(writer.path / INDEX_DIR, "")


def sweep_indexes(writer: StoreWriter) -> None:
    """Remove what a killed build left beside the index, which must be fresh: terms of deleted text are in it."""
    _keep_only(writer.path / INDEX_DIR, writer.content)


def _name(writer: StoreWriter, folder: IndexFolder) -> None:
    """Name the index of the live chunks in a commit, then remove the others."""
    writer.set_index(writer.content, writer.content)
    folder.keep_only(writer.content)


def rebuild_vectors(
    writer: StoreWriter,
    encoder: SentenceEncoder,
    tokenizer: tokenizers.Tokenizer,
    on_chunk: Callable[[], None] = lambda: None,
) -> int:
    """Encode the store's live chunks, decoded by the tokenizer that made their ids; return their number.

    Raises: NoSpaceError (14), CorruptStoreError (13), ComemError (1).
    """

    def texts(reader: StoreReader) -> Iterator[tuple[int, str]]:
        for chunk in reader.iter_chunks():
            yield chunk.id, tokenizer.decode(list(decode_ids(chunk.ids)), skip_special_tokens=False)
            on_chunk()

    with StoreReader(writer.path) as reader:
        return build_vectors(writer.path, encoder, texts(reader), reader.content)


class IndexFolder:
    """Hold the indexes of one store; the caller holds its writer lock."""

    def __init__(self, store: Path, scheme: TermScheme) -> None:
        self._path = store / INDEX_DIR
        self._scheme = scheme

    def build(self, name: str, chunks: Iterable[tuple[int, bytes]]) -> int:
        """Build an index of (chunk id, token ids as uint32 LE bytes) aside; return the number of chunks.

        Raises: NoSpaceError (14), CorruptStoreError (13), ComemError (1).
        """
        return build_index(self._path / name, chunks, self._scheme)

    def update(self, name: str, old: str, reader: StoreReader) -> int:
        """Build the index of a snapshot's live chunks aside, out of the one named `old`; return its chunks.

        Raises: IndexStaleError (15) where that one is missing, damaged or of other terms; else as `build`.
        """
        path = self._path / old
        if path.is_symlink():
            raise IndexStaleError(f"{path} is a link", "comem index STORE")

        def read(ids: Sequence[int]) -> Iterator[tuple[int, bytes]]:
            for start in range(0, len(ids), READ_CHUNKS):
                yield from ((row.id, row.ids) for row in reader.chunks(ids[start : start + READ_CHUNKS]))

        return update_index(self._path / name, path, dict.fromkeys(reader.chunk_ids_in_order()), read, self._scheme)

    def keep_only(self, name: str) -> None:
        """Remove every other index and vectors of other content; one that a reader has open stays readable to it."""
        _keep_only(self._path, name)


def _keep_only(folder: Path, name: str) -> None:
    for other in folder.glob("*"):
        content = vectors_content(other) if other.name.startswith(VECTORS_PREFIX) else other.name
        if content != name and other.is_symlink():
            other.unlink()
        elif content != name and other.is_dir():
            shutil.rmtree(other)


def open_store_index(reader: StoreReader) -> Bm25Index:
    """Open the index that matches the reader's snapshot.

    Raises: IndexStaleError (15) where there is none, or only one of another generation or of unknown terms.
    """
    return _opened(index_path(reader))


def opening_index(reader: StoreReader, tokenizer: tokenizers.Tokenizer) -> Future[Bm25Index]:
    """Begin to start Java and open the matching index on a thread of its own, beside other work; return its future.

    There it is searched for the words of a chunk: Java loads and compiles what a search needs with the first ones.
    Raises IndexStaleError (15) as `index_path`, and as `open_store_index` from the future.
    """
    path = index_path(reader)
    first = next(reader.iter_chunks(), None)
    words = index_scheme(reader, tokenizer).terms(decode_ids(first.ids)) if first else []

    def opened() -> Bm25Index:
        index = _opened(path)
        for common in (1.0, 0.5) * WARM_UPS:  # the two ways to make a query
            index.search(words, 1, (), K1, B, common)
        return index

    return in_background(opened)


def _opened(path: Path) -> Bm25Index:
    check_checksums(path)  # Lucene itself would read a flipped bit as other postings
    return open_index(path)


def index_path(reader: StoreReader, terms: str | None = None) -> Path:
    """Return the folder of the matching index, whose terms must be those named; raises IndexStaleError (15).

    Needs no Java. terms: a name of `terms.IDENTITIES`; None takes what the index was built over.
    """
    name, fresh = reader.index()
    hint = f"comem index {reader.path}" + (f" --terms {terms}" if terms else "")
    if name is None:
        raise IndexStaleError(f"{reader.path} has no BM25 index", hint)
    if not fresh:
        raise IndexStaleError(f"the BM25 index of {reader.path} is older than its documents", hint)
    path = reader.path / INDEX_DIR / name
    if path.is_symlink() or not path.is_dir():
        raise IndexStaleError(f"the BM25 index of {reader.path} is missing", hint)
    found = _scheme_name(path)
    if found is None:
        raise IndexStaleError(
            f"the BM25 index of {reader.path} counts terms of an older comem: {recorded_terms(path) or 'not recorded'}",
            hint,
        )
    if terms not in (None, found):
        raise IndexStaleError(f"the BM25 index of {reader.path} is over {found}, not over {terms}", hint)
    return path


def index_scheme(reader: StoreReader, tokenizer: tokenizers.Tokenizer) -> TermScheme:
    """Return the scheme that made the matching index; raises IndexStaleError (15) as `index_path`."""
    path = index_path(reader)
    identity = recorded_terms(path)
    if identity not in READABLE:  # a writer has replaced the index in this moment
        raise IndexStaleError(f"the BM25 index of {reader.path} is missing", f"comem index {reader.path}")
    return recorded_scheme(identity, tokenizer)


def built_terms(store: Path) -> str | None:
    """Name the terms of the index that a store has, fresh or not; None where there is none to follow."""
    with StoreReader(store) as reader:
        name, _ = reader.index()
    return _scheme_name(store / INDEX_DIR / name) if name else None


def _scheme_name(path: Path) -> str | None:
    """Return the name of an index's scheme if this comem can make the very same terms, else None."""
    return READABLE.get(recorded_terms(path) or "")
