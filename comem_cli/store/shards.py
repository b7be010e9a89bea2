"""Shard files on disk: write one, sweep those that no commit owns, and keep the array's shape in step.

A shard is immutable once it is renamed into place. Its number is never used again after a commit.
"""

from __future__ import annotations

import shutil
from collections.abc import Collection
from pathlib import Path

from comem_cli.errors import from_os_error
from comem_cli.store import durable, format
from comem_cli.store.lock import NoReaders
from comem_cli.store.row_layout import RowLayout


def write_shard(store: Path, shard: int, builder: format.ShardBuilder) -> int:
    """Write a shard file durably and return its size in bytes. It is an orphan until the catalogue names it.

    Raises: NoSpaceError (14), ComemError (1).
    """
    path = format.shard_path(store, shard)
    durable.make_dir(path.parent)
    parts = builder.parts()
    durable.write_file(path, parts)
    return sum(len(part) for part in parts)


def write_array_document(store: Path, layout: RowLayout, capacity: int, shards: Collection[int]) -> None:
    """Let the array's shape cover the committed `shards`, if it does not yet.

    It grows only after the commit, so that a plain zarr reader never sees rows that were not committed.
    """
    _write_if_changed(
        store / format.ARRAY_NAME / format.METADATA_NAME,
        format.array_document(layout, capacity, max(shards, default=-1) + 1),
    )


def make_folders(store: Path, version: int, with_residuals: bool) -> None:
    """Create the root group of a format version and, for a store with residuals, the array's directories."""
    if with_residuals:
        durable.make_dir(store / format.ARRAY_NAME)
        durable.make_dir(store / format.ARRAY_NAME / "c")
    _write_if_changed(store / format.METADATA_NAME, format.group_document(version))


def sweep(store: Path, live: Collection[int], next_shard: int) -> None:
    """Remove what no commit owns: temporary files and shard directories outside `live`. Needs the writer lock.

    Shards below `next_shard` were committed once and then dropped: an open snapshot may still read them, so they wait
    until there is no reader.

    Raises: ComemError (1).
    """
    array = store / format.ARRAY_NAME
    try:
        for folder in (store, array):
            for tmp in folder.glob(f"*{durable.TMP_SUFFIX}"):
                tmp.unlink()
        names = {str(number) for number in live}
        orphans = [path for path in (array / "c").glob("*") if path.name not in names and path.is_dir()]
        if not orphans:
            return
        with NoReaders(store) as alone:
            for path in orphans:
                if alone or not path.name.isdigit() or int(path.name) >= next_shard:
                    durable.fault_point("unlink.before")
                    shutil.rmtree(path)
                    durable.fault_point("unlink.after")
    except OSError as error:
        raise from_os_error(error) from error
    durable.sync_dir(array / "c")


def _write_if_changed(path: Path, document: bytes) -> None:
    if not path.is_file() or path.read_bytes() != document:
        durable.write_file(path, (document,))
