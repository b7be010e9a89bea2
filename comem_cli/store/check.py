"""Check a store: the catalogue, the files, the index. Takes no writer lock, loads no model, writes nothing.

The fast check reads the whole catalogue, sizes and indexes of the shards, both zarr.json and the BM25 index's sums.
`read_data` reads every residual against its checksums as well, and computes every chunk's key from its token ids;
`sample` reads the residuals of that many random chunks.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from comem_cli.errors import CorruptStoreError
from comem_cli.store import catalogue as catalogues
from comem_cli.store.check_catalogue import CatalogueState, check_catalogue
from comem_cli.store.check_files import check_metadata, check_sample, check_shard, check_strangers
from comem_cli.store.findings import Finding
from comem_cli.store.reader import StoreReader

# From the snapshot, the ids of its live chunks, and whether to read every byte.
CheckIndex = Callable[[StoreReader, set[int], bool], list[Finding]]
_ATTEMPTS = 3  # a writer that commits meanwhile can make a sound store look damaged


@dataclass(frozen=True)
class CheckOptions:
    """Say how much to read. sample: chunks, drawn with `seed`."""

    read_data: bool = False
    sample: int = 0
    seed: int = 0


@dataclass(frozen=True)
class Report:
    """Hold what was found and how much was looked at; bytes are those of residual files.

    state: the sound rows, None where the catalogue cannot be read at all.
    """

    store: Path
    findings: tuple[Finding, ...]
    generation: int | None = None
    documents: int = 0
    chunks: int = 0
    shards: int = 0
    rows: int = 0
    bytes_read: int = 0
    state: CatalogueState | None = field(default=None, repr=False, compare=False)

    @property
    def damage(self) -> tuple[Finding, ...]:
        """Return the findings that are damage."""
        return tuple(finding for finding in self.findings if finding.damage)

    def to_json(self) -> dict[str, Any]:
        """Return every field but the rows."""
        names = ("generation", "documents", "chunks", "shards", "rows", "bytes_read")
        found = [finding.to_json(self.store) for finding in self.findings]
        return {"store": str(self.store), **{name: getattr(self, name) for name in names}, "findings": found}


def check_store(store: Path, options: CheckOptions, check_index: CheckIndex) -> Report:
    """Check the store at `store` as of one generation.

    Raises: NoStoreError (10), FingerprintError (12) for a newer format, ComemError (1) where it cannot be read.
    """
    for attempt in range(_ATTEMPTS):
        report = _check(store, options, check_index)
        if not report.damage or attempt == _ATTEMPTS - 1 or _generation(store) == report.generation:
            break
    return report


def _check(store: Path, options: CheckOptions, check_index: CheckIndex) -> Report:
    unreadable = _require_readable(store)
    if unreadable:
        return Report(store, (unreadable,))
    with StoreReader(store) as reader:
        state = check_catalogue(reader, keys=options.read_data, whole=options.read_data)
        read = _check_shards(reader, state, options)
        state.findings += check_metadata(reader, max(state.shards, default=-1) + 1)
        state.findings += check_strangers(reader, set(state.shards))
        state.findings += check_index(reader, set(state.cited_by), options.read_data)
        return Report(
            store,
            tuple(sorted(state.findings, key=lambda finding: not finding.damage)),
            reader.generation,
            len(state.documents),
            len(state.chunks),
            len(state.shards),
            state.rows,
            read,
            state,
        )


def _check_shards(reader: StoreReader, state: CatalogueState, options: CheckOptions) -> int:
    by_shard = state.by_shard()
    read = 0
    for number, shard in sorted(state.shards.items()):
        read += check_shard(reader, state, shard, by_shard.get(number, []), options.read_data)
    held = [chunk for chunks in by_shard.values() for chunk in chunks]
    if options.sample and not options.read_data:
        drawn = random.Random(options.seed).sample(held, min(options.sample, len(held)))
        read += check_sample(reader, state, drawn)
    return read


def _require_readable(store: Path) -> Finding | None:
    """Tell whether a snapshot can be opened; what keeps it from that is damage of the whole store."""
    if not store.is_dir():
        StoreReader(store)  # says that there is none
    code = "catalogue-unreadable"
    try:
        catalogue = catalogues.open_readable(store)
        try:
            code = "catalogue-meta"
            catalogue.meta()
        finally:
            catalogue.close()
    except CorruptStoreError as error:
        return Finding(code, catalogues.CATALOGUE_NAME, error.message)
    return None


def _generation(store: Path) -> int | None:
    try:
        with StoreReader(store) as reader:
            return reader.generation
    except CorruptStoreError:
        return None
