"""Check and search the Lucene index of a store's chunks over their terms; `index_write` makes it.

One Lucene document a chunk: field `contents` holds its terms, field `id` its chunk id (stored); the file `terms` names
the scheme that made them. Reading an index takes no lock and writes nothing. Lucene's internal order never shows:
`search` returns every chunk that ties at the cut.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Self

from comem_cli.errors import IndexStaleError, from_os_error
from comem_cli.select.lucene_access import damaged, lucene_classes, open_directory, reading, writing_classes
from comem_cli.select.selector import Hit
from comem_cli.select.terms import READABLE

SPARE_HITS = 32  # fetched beyond the cut, so that most ties are seen at once
TERMS_FILE = "terms"
_FOOTER = (0xC02893E8).to_bytes(4, "big") + bytes(4)  # before the checksum of a file
_CRC_BYTES, _READ_BYTES = 8, 2**20
ALL = 2**31 - 1  # count and score every match; also: no limit on clauses


class Bm25Index:
    """An open index; threads may share it. Made by `open_index`; close it or use it in a `with`."""

    def __init__(self, path: Path, directory: Any, reader: Any) -> None:
        lucene = lucene_classes()
        self.path = path
        self.count: int = reader.numDocs()
        self._directory, self._reader = directory, reader
        self._analyzer = lucene.WhitespaceAnalyzer()
        self._queries = lucene.QueryBuilder(self._analyzer)
        self._searchers: dict[tuple[float, float], Any] = {}
        lucene.IndexSearcher.setMaxClauseCount(ALL)

    def search(
        self, terms: Iterable[str], k: int, exclude: Collection[int], k1: float, b: float, common: float = 1.0
    ) -> list[Hit]:
        """Return the k best chunks outside `exclude`, best first, and every further one that ties with the k-th.

        Scores as in `bm25`, over the distinct `terms` that at most a share `common` of the chunks hold; a tie is an
        equal 32-bit score. Fewer than k where fewer match. Raises IndexStaleError if the index turns out damaged.
        """
        text = " ".join(dict.fromkeys(terms))
        if not text or k < 1 or not self.count:
            return []
        with reading(self.path):
            query = self._queries.createBooleanQuery("contents", text) if common >= 1 else self._rare(text, common)
            searcher = self._searcher(k1, b)
            ranked = self._through_cut(searcher, query, k + len(exclude))
            fields = searcher.storedFields()
            hits = [Hit(_chunk_id(self.path, fields.document(document)), score) for document, score in ranked]
        kept = [hit for hit in hits if hit.chunk_id not in exclude]
        return [hit for hit in kept if hit.score >= kept[min(k, len(kept)) - 1].score]

    def _rare(self, text: str, common: float) -> Any:
        """Make a query of the terms that at most a share `common` of the chunks hold, with one call for all df."""
        lucene = lucene_classes()
        like = lucene.MoreLikeThis(self._reader)
        like.setAnalyzer(self._analyzer)
        like.setMinTermFreq(1)
        like.setMinDocFreq(1)
        like.setMaxDocFreq(int(common * self.count))
        like.setMaxQueryTerms(ALL)
        like.setMaxNumTokensParsed(ALL)
        return like.like("contents", [lucene.StringReader(text)])

    def chunks_with(self, term: str) -> int:
        """Count the chunks that hold a term: df."""
        lucene = lucene_classes()
        with reading(self.path):
            return int(self._reader.docFreq(lucene.Term("contents", term)))

    def chunk_ids(self) -> Iterator[int]:
        """Stream the ids of all chunks in Lucene's order. Raises IndexStaleError if the index turns out damaged."""
        with reading(self.path):
            fields = self._searcher(1.5, 0.75).storedFields()
            for document in range(self.count):
                yield _chunk_id(self.path, fields.document(document))

    def _through_cut(self, searcher: Any, query: Any, cut: int) -> list[tuple[int, float]]:
        """Return (Lucene document, score), best first, down to the last one that ties with the one at `cut`."""
        lucene = lucene_classes()
        size = cut + SPARE_HITS
        while True:
            collector = lucene.TopScoreDocCollector.create(min(size, self.count), ALL)
            searcher.search(query, collector)
            ranked = [(entry.doc, entry.score) for entry in collector.topDocs().scoreDocs]
            if len(ranked) < size or ranked[-1][1] < ranked[cut - 1][1]:
                return [pair for pair in ranked if pair[1] >= ranked[min(cut, len(ranked)) - 1][1]]
            size *= 8

    def _searcher(self, k1: float, b: float) -> Any:
        lucene = lucene_classes()
        if (k1, b) not in self._searchers:
            searcher = lucene.IndexSearcher(self._reader)
            searcher.setSimilarity(lucene.BM25Similarity(k1, b))
            self._searchers[k1, b] = searcher
        return self._searchers[k1, b]

    def close(self) -> None:
        """Release the index's files; searching afterwards is an error."""
        with reading(self.path):
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
    lucene = lucene_classes()
    with reading(path):
        directory = open_directory(path)
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


def check_index(path: Path, checksums_only: bool = False) -> int:
    """Let Lucene check every byte of the index at `path`, and its structure too; return its number of chunks.

    Raises IndexStaleError if it is missing or damaged.
    """
    _require_folder(path)
    writers = writing_classes()
    with reading(path):
        directory = open_directory(path)
        try:
            checker = writers.CheckIndex(directory)
            checker.setChecksumsOnly(checksums_only)
            clean: bool = checker.checkIndex().clean
            checker.close()
        finally:
            directory.close()
    if not clean:
        raise damaged(path, "Lucene's check failed")
    if recorded_terms(path) not in READABLE:
        raise damaged(path, "its terms are of no known scheme")
    with open_index(path) as index:
        return index.count


def check_checksums(path: Path) -> None:
    """Check the checksum at the end of every file of the index at `path`: what Lucene would, without Java.

    A file ends with a footer: a magic number, 0, and the CRC-32 of all before it as 64 bits (`CodecUtil.writeFooter` of
    Lucene 9). Which files belong together is told by ids that Lucene compares as it opens them.
    Raises IndexStaleError if the index is missing or damaged.
    """
    _require_folder(path)
    for name in sorted(os.listdir(path)):
        if name != TERMS_FILE:
            try:
                with (path / name).open("rb") as file:
                    whole = _ends_with_its_checksum(file, os.fstat(file.fileno()).st_size)
            except FileNotFoundError as error:
                raise IndexStaleError(f"the BM25 index at {path} is gone", "comem index STORE") from error
            except OSError as error:
                raise from_os_error(error) from error
            if not whole:
                raise damaged(path, f"{name} does not match its checksum")


def _ends_with_its_checksum(file: BinaryIO, size: int) -> bool:
    crc, left = 0, size - _CRC_BYTES
    footer = b""
    while left > 0:
        part = file.read(min(left, _READ_BYTES))
        if not part:
            return False
        crc, left = zlib.crc32(part, crc), left - len(part)
        footer = (footer + part)[-len(_FOOTER) :]
    return footer == _FOOTER and file.read(_CRC_BYTES) == crc.to_bytes(_CRC_BYTES, "big")


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
        raise damaged(path, "a document in it is no chunk")
    return int(text)
