"""Check the BM25 index of a store's snapshot: that it is there, whole, and holds the live chunks."""

from __future__ import annotations

import re

from comem_cli.errors import IndexStaleError
from comem_cli.select.index import TERMS_FILE, check_index, open_index
from comem_cli.store.findings import Finding
from comem_cli.store.reader import INDEX_DIR, StoreReader

_OURS = re.compile(rf"_\w+\.\w+|segments_\w+|{TERMS_FILE}")


def check_store_index(reader: StoreReader, live: set[int], deep: bool) -> list[Finding]:
    """Check the index: Lucene's checksums and the number of chunks; with `deep` its structure and every chunk's id.

    live: ids of the chunks that a document places.
    """
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
        ids = _indexed(reader, name) if deep else None
    except IndexStaleError as error:
        return [Finding("index-damaged", where, error.message)]
    if count != len(live):
        return [Finding("index-damaged", where, f"holds {count} chunks, the store {len(live)}")]
    if ids is not None and ids != live:
        return [Finding("index-damaged", where, "holds other chunks than the store")]
    others = sorted(file.name for file in path.iterdir() if not _OURS.fullmatch(file.name))
    return [Finding("stranger", f"{where}/{other}", "not a file of the index") for other in others]


def _indexed(reader: StoreReader, name: str) -> set[int]:
    with open_index(reader.path / INDEX_DIR / name) as index:
        return set(index.chunk_ids())
