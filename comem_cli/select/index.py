"""Build, check and search the Lucene index of a store's chunks over their terms.

One Lucene document a chunk: field `contents` holds its terms, field `id` its chunk id (stored); the file `terms` names
the scheme that made them. An index is one folder, built aside and renamed, never changed afterwards; reading it takes
no lock and writes nothing. Lucene's internal order never shows: `search` returns every chunk that ties at the cut. Java
starts on first use.
"""

from __future__ import annotations

import importlib
import os
import shutil
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from comem_cli.errors import ComemError, CorruptStoreError, IndexStaleError, NoSpaceError, from_os_error
from comem_cli.select.jvm import JAVA, start_jvm
from comem_cli.select.selector import Hit, decode_ids
from comem_cli.select.terms import IDENTITIES, TOKENS, TermScheme

WRITE_BUFFER_MB = 128.0
SPARE_HITS = 32  # fetched beyond the cut, so that most ties are seen at once
TERMS_FILE = "terms"
ALL = 2**31 - 1  # count and score every match; also: no limit on clauses


class Bm25Index:
    """An open index; threads may share it. Made by `open_index`; close it or use it in a `with`."""

    def __init__(self, path: Path, directory: Any, reader: Any) -> None:
        lucene = _lucene()
        self.path = path
        self.count: int = reader.numDocs()
        self._directory, self._reader = directory, reader
        self._queries = lucene.QueryBuilder(lucene.WhitespaceAnalyzer())
        self._searchers: dict[tuple[float, float], Any] = {}
        lucene.IndexSearcher.setMaxClauseCount(ALL)

    def search(self, terms: Iterable[str], k: int, exclude: Collection[int], k1: float, b: float) -> list[Hit]:
        """Return the k best chunks outside `exclude`, best first, and every further one that ties with the k-th.

        Scores as in `bm25`, over the distinct `terms`; a tie is an equal 32-bit score. Fewer than k where fewer match.
        Raises IndexStaleError if the index turns out damaged.
        """
        text = " ".join(dict.fromkeys(terms))
        if not text or k < 1 or not self.count:
            return []
        with _reading(self.path):
            query = self._queries.createBooleanQuery("contents", text)
            searcher = self._searcher(k1, b)
            ranked = self._through_cut(searcher, query, k + len(exclude))
            fields = searcher.storedFields()
            hits = [Hit(_chunk_id(self.path, fields.document(document)), score) for document, score in ranked]
        kept = [hit for hit in hits if hit.chunk_id not in exclude]
        return [hit for hit in kept if hit.score >= kept[min(k, len(kept)) - 1].score]

    def chunks_with(self, term: str) -> int:
        """Count the chunks that hold a term: df."""
        lucene = _lucene()
        with _reading(self.path):
            return int(self._reader.docFreq(lucene.Term("contents", term)))

    def chunk_ids(self) -> Iterator[int]:
        """Stream the ids of all chunks in Lucene's order. Raises IndexStaleError if the index turns out damaged."""
        with _reading(self.path):
            fields = self._searcher(1.5, 0.75).storedFields()
            for document in range(self.count):
                yield _chunk_id(self.path, fields.document(document))

    def _through_cut(self, searcher: Any, query: Any, cut: int) -> list[tuple[int, float]]:
        """Return (Lucene document, score), best first, down to the last one that ties with the one at `cut`."""
        lucene = _lucene()
        size = cut + SPARE_HITS
        while True:
            collector = lucene.TopScoreDocCollector.create(min(size, self.count), ALL)
            searcher.search(query, collector)
            ranked = [(entry.doc, entry.score) for entry in collector.topDocs().scoreDocs]
            if len(ranked) < size or ranked[-1][1] < ranked[cut - 1][1]:
                return [pair for pair in ranked if pair[1] >= ranked[min(cut, len(ranked)) - 1][1]]
            size *= 8

    def _searcher(self, k1: float, b: float) -> Any:
        lucene = _lucene()
        if (k1, b) not in self._searchers:
            searcher = lucene.IndexSearcher(self._reader)
            searcher.setSimilarity(lucene.BM25Similarity(k1, b))
            self._searchers[k1, b] = searcher
        return self._searchers[k1, b]

    def close(self) -> None:
        """Release the index's files; searching afterwards is an error."""
        with _reading(self.path):
            self._reader.close()
            self._directory.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def open_index(path: Path) -> Bm25Index:
    """Open the index at `path`. Raises IndexStaleError if it is missing or damaged."""
    _require_folder(path)
    lucene = _lucene()
    with _reading(path):
        directory = _directory(path)
        try:
            return Bm25Index(path, directory, lucene.DirectoryReader.open(directory))
        except BaseException:
            directory.close()
            raise


def recorded_terms(path: Path) -> str | None:
    """Return the identity of the scheme that made the index at `path`; None where no scheme is recorded."""
    try:
        return (path / TERMS_FILE).read_text(encoding="utf-8", errors="replace").strip()
    except (FileNotFoundError, NotADirectoryError):
        return None


def build_index(path: Path, chunks: Iterable[tuple[int, bytes]], scheme: TermScheme = TOKENS) -> int:
    """Build the index of (chunk id, token ids as uint32 LE bytes) at `path` and return the number of chunks.

    `chunks` streams: memory does not grow with their number. The index is built in a hidden sibling folder, checked by
    Lucene, flushed to the disk, and renamed; an index that was at `path` is served until then. The caller holds the
    store's writer lock, so leftovers of a killed build are its to remove.
    Raises CorruptStoreError on a chunk without whole token ids, NoSpaceError, or ComemError if Lucene fails.
    """
    building = path.with_name(f".{path.name}.building")
    try:
        _remove(building)
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        building.mkdir(mode=0o700)
        count = _write(building, chunks, scheme)
        _record(building, scheme)
        _require_whole(building, count)
        for file in building.iterdir():
            file.chmod(0o600)
        rename_over(building, path)
        return count
    except OSError as error:
        raise from_os_error(error) from error
    finally:
        shutil.rmtree(building, ignore_errors=True)  # gone after the rename; else the first error matters more


def check_index(path: Path, checksums_only: bool = False) -> int:
    """Let Lucene check every byte of the index at `path`, and its structure too; return its number of chunks.

    Raises IndexStaleError if it is missing or damaged.
    """
    _require_folder(path)
    lucene = _lucene()
    with _reading(path):
        directory = _directory(path)
        try:
            checker = lucene.CheckIndex(directory)
            checker.setChecksumsOnly(checksums_only)
            clean: bool = checker.checkIndex().clean
            checker.close()
        finally:
            directory.close()
    if not clean:
        raise _damaged(path, "Lucene's check failed")
    if recorded_terms(path) not in IDENTITIES.values():
        raise _damaged(path, "its terms are of no known scheme")
    with open_index(path) as index:
        return index.count


class _Writer:
    """Writes chunks as one Lucene segment, in the order given; Lucene's commit flushes it to the disk."""

    def __init__(self, folder: Path, scheme: TermScheme) -> None:
        lucene = _lucene()
        self._folder = folder
        self._scheme = scheme
        with _writing(folder):
            config = lucene.IndexWriterConfig(lucene.WhitespaceAnalyzer())
            config.setRAMBufferSizeMB(WRITE_BUFFER_MB)
            config.setMergePolicy(lucene.LogDocMergePolicy())  # merges neighbours only, so the order stays
            counted = lucene.FieldType()
            counted.setIndexOptions(lucene.IndexOptions.DOCS_AND_FREQS)  # no positions: half the bytes
            self._contents = lucene.Field("contents", "", counted)
            self._chunk_id = lucene.StoredField("id", "")
            self._document = lucene.Document()
            self._document.add(self._chunk_id)
            self._document.add(self._contents)
            self._directory = _directory(folder)
            self._writer = lucene.IndexWriter(self._directory, config)

    def add(self, chunk_id: int, token_ids: bytes) -> None:
        if not token_ids or len(token_ids) % 4:
            raise CorruptStoreError(f"chunk {chunk_id} does not hold whole token ids", "comem verify STORE")
        terms = " ".join(self._scheme.terms(decode_ids(token_ids)))
        with _writing(self._folder):
            self._chunk_id.setStringValue(str(chunk_id))
            self._contents.setStringValue(terms)
            self._writer.addDocument(self._document)

    def finish(self) -> None:
        with _writing(self._folder):
            self._writer.forceMerge(1)  # a term is looked up once a segment
            self._writer.close()
            self._directory.close()

    def abandon(self) -> None:
        with _writing(self._folder):
            self._writer.rollback()
            self._directory.close()


def _write(folder: Path, chunks: Iterable[tuple[int, bytes]], scheme: TermScheme) -> int:
    """Write all chunks and return how many; Java is free while `chunks` produces the next one."""
    writer = _Writer(folder, scheme)
    count = 0
    try:
        for chunk_id, token_ids in chunks:
            writer.add(chunk_id, token_ids)
            count += 1
        writer.finish()
    except BaseException:
        writer.abandon()
        raise
    return count


def _record(folder: Path, scheme: TermScheme) -> None:
    """Write down which scheme made the terms, durably."""
    with (folder / TERMS_FILE).open("w", encoding="utf-8") as file:
        file.write(f"{scheme.identity}\n")
        file.flush()
        os.fsync(file.fileno())


def _require_whole(folder: Path, count: int) -> None:
    found = check_index(folder, checksums_only=True)
    if found != count:
        raise ComemError(f"the new BM25 index holds {found} chunks instead of {count}", "comem index STORE")


def rename_over(new: Path, path: Path) -> None:
    """Put the folder `new` at `path` and flush the rename; a crash between the two renames leaves none there."""
    old = path.with_name(f".{path.name}.old")
    _remove(old)
    if path.exists():
        path.rename(old)
    new.rename(path)
    parent = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(parent)
    finally:
        os.close(parent)
    _remove(old)


def _remove(folder: Path) -> None:
    if folder.exists():
        shutil.rmtree(folder)


def _lucene() -> Any:
    """Return the declarations of Lucene's classes, which can be imported only once Java runs."""
    start_jvm()
    return importlib.import_module("comem_cli.select.lucene")


def _directory(path: Path) -> Any:
    """Open Lucene's view of a folder, without its lock file: the store has its own lock, and readers write nothing."""
    lucene = _lucene()
    return lucene.FSDirectory.open(lucene.File(os.fspath(path.absolute())).toPath(), lucene.NoLockFactory.INSTANCE)


def _require_folder(path: Path) -> None:
    try:
        os.scandir(path).close()
    except (FileNotFoundError, NotADirectoryError) as error:
        raise IndexStaleError(f"there is no BM25 index at {path}", "comem index STORE") from error
    except OSError as error:
        raise from_os_error(error) from error


def _chunk_id(path: Path, document: Any) -> int:
    text = document.get("id") or ""
    if not (text.isascii() and text.isdigit() and len(text) < 19):
        raise _damaged(path, "a document in it is no chunk")
    return int(text)


def _damaged(path: Path, reason: str) -> IndexStaleError:
    return IndexStaleError(f"the BM25 index at {path} is damaged: {reason}", "comem index STORE")


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Hold Java, and turn whatever Lucene raises while it reads `path` into IndexStaleError."""
    lucene = _lucene()
    try:
        with JAVA:
            yield
    except lucene.JavaException as error:
        raise _damaged(path, _reason(error)) from error


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    """Hold Java, and turn whatever Lucene raises while it writes into an error that users can act on."""
    lucene = _lucene()
    try:
        with JAVA:
            yield
    except lucene.JavaException as error:
        reason = _reason(error)
        if "No space left" in reason or "Disk quota exceeded" in reason:
            raise NoSpaceError(
                f"no space left for the BM25 index {path}", "free some space: comem index STORE"
            ) from error
        raise ComemError(f"the BM25 index {path} was not written: {reason}", "comem index STORE") from error


def _reason(error: Any) -> str:
    """Return the Java class and the first line of its message."""
    message = (error.innermessage or "").partition("\n")[0]
    return f"{error.classname.rpartition('.')[2]}: {message}" if message else str(error.classname)
