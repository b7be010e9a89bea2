"""Write the Lucene index of a store's chunks: anew, or out of one that holds most of them already.

An index is written in a hidden sibling folder, checked by Lucene, flushed to the disk and renamed; never changed
afterwards. It is always one segment: a term is looked up once, N, df and the mean length are those of its chunks alone,
and the terms of a chunk that was taken out are in none of its bytes.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from comem_cli.errors import ComemError, CorruptStoreError, from_os_error
from comem_cli.select.index import TERMS_FILE, check_index, open_index, recorded_terms
from comem_cli.select.lucene_access import damaged, lucene_classes, open_directory, writing, writing_classes
from comem_cli.select.selector import decode_ids
from comem_cli.select.terms import TOKENS, TermScheme

WRITE_BUFFER_MB = 128.0


def build_index(path: Path, chunks: Iterable[tuple[int, bytes]], scheme: TermScheme = TOKENS) -> int:
    """Build the index of (chunk id, token ids as uint32 LE bytes) at `path` and return the number of chunks.

    `chunks` streams: memory does not grow with their number. An index that was at `path` is served until the rename.
    The caller holds the store's writer lock, so leftovers of a killed build are its to remove.
    Raises CorruptStoreError on a chunk without whole token ids, NoSpaceError, or ComemError if Lucene fails.
    """
    with _beside(path) as building:
        count = _write(_Writer(building, scheme), chunks)
        _finish(building, scheme, count)
    return count


def update_index(
    path: Path,
    old: Path,
    live: Collection[int],
    read: Callable[[Sequence[int]], Iterable[tuple[int, bytes]]],
    scheme: TermScheme,
) -> int:
    """Build the index of the chunks `live` at `path` out of the one at `old`; return the number of chunks.

    An id stands for the same chunk in both. `read` gives (chunk id, token ids as uint32 LE bytes) of the ids that `old`
    lacks. The result is that of `build_index`, but for Lucene's order of the chunks. `old` stays as it is.
    Raises IndexStaleError if `old` is missing, damaged or of other terms; else as `build_index`.
    """
    check_index(old, checksums_only=True)  # before its bytes are taken over
    if recorded_terms(old) != scheme.identity:
        raise damaged(old, f"it is not over {scheme.name}")
    with open_index(old) as index:
        held = list(index.chunk_ids())
    known = set(held)
    dropped = [place for place, chunk_id in enumerate(held) if chunk_id not in live]
    missing = [chunk_id for chunk_id in live if chunk_id not in known]
    with _beside(path) as building:
        _share(old, building)
        _write(_Writer(building, scheme), read(missing), dropped)
        _finish(building, scheme, len(live))
    return len(live)


@contextmanager
def _beside(path: Path) -> Iterator[Path]:
    """Give an empty hidden folder beside `path`, and put it there if the block succeeds."""
    building = path.with_name(f".{path.name}.building")
    try:
        _remove(building)
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        building.mkdir(mode=0o700)
        yield building
        rename_over(building, path)
    except OSError as error:
        raise from_os_error(error) from error
    finally:
        shutil.rmtree(building, ignore_errors=True)  # gone after the rename; else the first error matters more


def _finish(building: Path, scheme: TermScheme, count: int) -> None:
    _record(building, scheme)
    _require_whole(building, count)
    for file in building.iterdir():
        file.chmod(0o600)


def _share(old: Path, building: Path) -> None:
    """Let Lucene's files of `old` stand in `building` too: it never changes one, so a second name is as good as a copy.

    The record of the terms is none of Lucene's and is written anew.
    """
    for file in old.iterdir():
        if file.name != TERMS_FILE:
            try:
                os.link(file, building / file.name)
            except OSError:  # a file system without such names
                shutil.copyfile(file, building / file.name)


class _Writer:
    """Writes chunks as one Lucene segment, in the order given; Lucene's commit flushes it to the disk."""

    def __init__(self, folder: Path, scheme: TermScheme) -> None:
        lucene, writers = lucene_classes(), writing_classes()
        self._folder = folder
        self._scheme = scheme
        with writing(folder):
            config = writers.IndexWriterConfig(lucene.WhitespaceAnalyzer())
            config.setRAMBufferSizeMB(WRITE_BUFFER_MB)
            config.setMergePolicy(writers.LogDocMergePolicy())  # merges neighbours only, so the order stays
            counted = writers.FieldType()
            counted.setIndexOptions(writers.IndexOptions.DOCS_AND_FREQS)  # no positions: half the bytes
            self._contents = writers.Field("contents", "", counted)
            self._chunk_id = writers.StoredField("id", "")
            self._document = lucene.Document()
            self._document.add(self._chunk_id)
            self._document.add(self._contents)
            self._directory = open_directory(folder)
            self._writer = writers.IndexWriter(self._directory, config)

    def add(self, chunk_id: int, token_ids: bytes) -> None:
        if not token_ids or len(token_ids) % 4:
            raise CorruptStoreError(f"chunk {chunk_id} does not hold whole token ids", "comem verify STORE")
        terms = " ".join(self._scheme.terms(decode_ids(token_ids)))
        with writing(self._folder):
            self._chunk_id.setStringValue(str(chunk_id))
            self._contents.setStringValue(terms)
            self._writer.addDocument(self._document)

    def drop(self, places: Sequence[int]) -> None:
        """Take out the chunks at these places of Lucene's order; only before anything is added."""
        if not places:
            return
        lucene = lucene_classes()
        with writing(self._folder):
            reader = lucene.DirectoryReader.open(self._writer)
            try:
                refused = [place for place in places if self._writer.tryDeleteDocument(reader, place) == -1]
            finally:
                reader.close()
        if refused:
            raise ComemError(f"{len(refused)} chunks could not be taken out of {self._folder}", "comem index STORE")

    def finish(self) -> None:
        with writing(self._folder):
            self._writer.forceMerge(1)  # also rewrites a segment out of which chunks were taken
            self._writer.close()
            self._directory.close()

    def abandon(self) -> None:
        with writing(self._folder):
            self._writer.rollback()
            self._directory.close()


def _write(writer: _Writer, chunks: Iterable[tuple[int, bytes]], dropped: Sequence[int] = ()) -> int:
    """Drop and add chunks and return how many were added; Java is free while `chunks` produces the next one."""
    count = 0
    try:
        writer.drop(dropped)
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
    """Put the folder `new`, whose files are flushed, at `path`: names in it and the rename are durable at the end.

    A crash between the two renames leaves none there.
    """
    old = path.with_name(f".{path.name}.old")
    _remove(old)
    _flush_names(new)
    if path.exists():
        path.rename(old)
    new.rename(path)
    _flush_names(path.parent)
    _remove(old)


def _flush_names(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _remove(folder: Path) -> None:
    if folder.exists():
        shutil.rmtree(folder)
