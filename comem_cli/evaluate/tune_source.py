"""The documents of `comem tune`: a store that is there, or files ingested at split 0 into a temporary one.

Of a store only the token ids are used: its sources may be gone, and its split and mode do not matter.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from comem_cli.errors import UsageError
from comem_cli.model.load import ModelFiles
from comem_cli.store.catalogue import CATALOGUE_NAME
from comem_cli.store.identify import require_tokenizer
from comem_cli.store.reader import StoreReader
from comem_cli.store.run import IngestRun
from comem_cli.store.setup import CHUNK, WriteOptions


def is_store(path: Path) -> bool:
    """Tell whether a path is a store."""
    return (path / CATALOGUE_NAME).is_file()


@contextmanager
def open_source(
    paths: Sequence[Path], files: ModelFiles, chunk: int | None, warn: Callable[[str], None]
) -> Iterator[StoreReader]:
    """Open the store, or ingest the files below `paths`; chunk: tokens, None for the store's, else 512.

    warn receives one line a file that cannot be read. Raises: UsageError (2) for another chunk than the store's, for
    stores among files and where there is no text, FingerprintError (12) for another tokenizer.
    """
    stores = [path for path in paths if is_store(path)]
    if stores and len(paths) > 1:
        raise UsageError(f"{stores[0]} is a store: it cannot be mixed with other paths", "name one store, or files")
    if stores:
        with StoreReader(stores[0]) as reader:
            require_tokenizer(reader.fingerprint, files)
            if chunk not in (None, reader.fingerprint.chunk):
                raise UsageError(
                    f"{stores[0]} holds chunks of {reader.fingerprint.chunk} tokens, not {chunk}",
                    "leave out --chunk, or name the documents themselves",
                )
            yield reader
        return
    with tempfile.TemporaryDirectory(prefix="comem-tune-") as folder:
        _ingest(Path(folder, "store"), paths, files, chunk or CHUNK, warn)
        with StoreReader(Path(folder, "store")) as reader:
            yield reader


def _ingest(store: Path, paths: Sequence[Path], files: ModelFiles, chunk: int, warn: Callable[[str], None]) -> None:
    run = IngestRun(store, files, WriteOptions(split=0, chunk=chunk))
    with run.open() as writer:
        summary = run.ingest(
            writer,
            paths,
            on_plan=lambda plan: None,
            on_event=lambda event: None,
            on_bytes=lambda size: None,
            on_load=lambda: None,
        )
    for skip in summary.failed:
        warn(f"cannot read {skip.path}: {skip.reason}")
    if not summary.chunks:
        raise UsageError(f"no text below {', '.join(map(str, paths))}", "name a store, or folders and files with text")
