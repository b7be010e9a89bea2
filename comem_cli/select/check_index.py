"""Check the BM25 index of a store's snapshot: that it is there, whole, and holds the live chunks; vectors as well."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from comem_cli.errors import IndexStaleError
from comem_cli.select.index import TERMS_FILE, check_index, open_index
from comem_cli.select.terms import READABLE
from comem_cli.select.vectors import VECTORS_PREFIX, vectors_content, vectors_flaw
from comem_cli.store.check_files import leftover, stranger
from comem_cli.store.findings import Finding
from comem_cli.store.reader import INDEX_DIR, StoreReader

_OURS = re.compile(rf"_\w+\.\w+|segments_\w+|{TERMS_FILE}")


def check_store_index(reader: StoreReader, live: set[int], deep: bool) -> list[Finding]:
    """Check the index: Lucene's checksums and the number of chunks; with `deep` its structure and every chunk's id.

    live: ids of the chunks that a document places.
    """
    return [*_check_bm25(reader, live, deep), *_check_folder(reader, deep)]


def _check_bm25(reader: StoreReader, live: set[int], deep: bool) -> list[Finding]:
    name, fresh = reader.index()
    if name is None:
        return [Finding("index-none", INDEX_DIR, "the store has no BM25 index")] if live else []
    where = f"{INDEX_DIR}/{name}"
    if not fresh:
        return [Finding("index-stale", where, "older than the documents")]
    path = reader.path / INDEX_DIR / name
    if path.is_symlink() or not path.is_dir():
        return [Finding("index-missing", where, "the catalogue names it, and it is not there")]
    try:
        count = check_index(path, checksums_only=not deep)
        ids = _indexed(path) if deep else None
    except IndexStaleError as error:
        return [Finding("index-damaged", where, error.message)]
    if (path / TERMS_FILE).read_bytes() not in [f"{identity}\n".encode() for identity in READABLE]:
        return [Finding("index-damaged", where, f"the file {TERMS_FILE} names no scheme")]
    if count != len(live):
        return [Finding("index-damaged", where, f"holds {count} chunks, the store {len(live)}")]
    if ids is not None and ids != live:
        return [Finding("index-damaged", where, "holds other chunks than the store")]
    others = sorted(file.name for file in path.iterdir() if not _OURS.fullmatch(file.name))
    return [stranger(f"{where}/{other}") for other in others]


def _check_folder(reader: StoreReader, deep: bool) -> Iterator[Finding]:
    """Name what lies beside the index: vectors, leftovers, strange files."""
    folder = reader.path / INDEX_DIR
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        where = f"{INDEX_DIR}/{path.name}"
        if path.name == reader.index()[0]:
            continue
        if not path.is_dir():
            yield stranger(where)
        elif not path.name.startswith(VECTORS_PREFIX) or vectors_content(path) not in (None, reader.content):
            yield leftover(where, "leftover-index")
        else:
            flaw = vectors_flaw(path, sums=deep)
            if flaw:
                yield Finding("vectors-damaged", where, flaw)


def _indexed(path: Path) -> set[int]:
    with open_index(path) as index:
        return set(index.chunk_ids())
