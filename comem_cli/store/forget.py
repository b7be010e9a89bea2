"""Forget documents verifiably: nothing of them is left in any byte of the store, or the command says what is.

    forget.pending written -> COMMIT: documents go -> COMMIT: chunks and roots go, empty shards unlinked
    -> live chunks leave the shards that hold dead rows -> index built again -> -wal emptied, catalogue rewritten if a
    trace is left in it -> every byte of every file scanned -> forget.pending removed

Every step can be run again, so a killed `forget` is finished by the next one, whatever it is asked to forget. All
shards with rows of no chunk are compacted, also those of older versions of a document. An open reader keeps its
snapshot: what it may read waits for it, and the report says so.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path

from comem_cli.errors import UsageError
from comem_cli.store import durable, format, pending
from comem_cli.store.catalogue import CATALOGUE_NAME
from comem_cli.store.doomed import Doomed, find_doomed, names, unplaced_use
from comem_cli.store.lock import NoReaders
from comem_cli.store.pending import PENDING_NAME, Forgotten, ForgottenChunk
from comem_cli.store.reader import INDEX_DIR
from comem_cli.store.reclaim import CATALOGUE_ROOM, Moved, compact, with_dead_rows
from comem_cli.store.remains import Remains
from comem_cli.store.rows import ChunkRow, DocumentRow, RootRow, ShardRow
from comem_cli.store.traces import Needle, Scanned, Trace, files_below, scan
from comem_cli.store.unshared import narrow, shared_runs
from comem_cli.store.writer import StoreWriter

WAIT_SECONDS = 2.0  # for readers to end
NEEDLES = 200_000  # looked for at once; more take another pass over the store
HOLDER = "comem forget"  # what the lock file says: a command line would hold the path


@dataclass(frozen=True)
class Report:
    """What was forgotten and what the last scan read and found.

    documents: paths relative to their roots, of an unfinished `forget` too. again: those of an unfinished one that were
    stored again since then; they stay. readers: somebody had the store open all
    the time, so bytes may be left. indexed: whether the index was built again. needles: byte strings looked for.
    """

    documents: tuple[str, ...]
    again: tuple[str, ...]
    chunks: int
    moved: Moved
    indexed: bool
    scanned: Scanned
    needles: int
    readers: bool

    @property
    def traces(self) -> tuple[Trace, ...]:
        """Return what was found of the documents."""
        return self.scanned.traces

    @property
    def done(self) -> bool:
        """Tell whether nothing is left."""
        return not self.traces and not self.readers


class Forget:
    """Forget documents of an open store, which nothing is buffered in.

    reindex builds the store's index again and names it; keep_only removes every index of other content. decode turns
    token ids (uint32 LE) into text, for documents whose source is gone; None: their text is not looked for.
    """

    def __init__(
        self,
        writer: StoreWriter,
        *,
        reindex: Callable[[], object],
        keep_only: Callable[[str], None],
        decode: Callable[[bytes], str] | None = None,
        wait_seconds: float = WAIT_SECONDS,
    ) -> None:
        self._writer = writer
        self._reindex, self._keep_only = reindex, keep_only
        self._decode = decode
        self._wait_seconds = wait_seconds

    def run(self, paths: Sequence[str], *, yes: bool = False) -> Report:
        """Forget `paths`, and what an unfinished run left; without paths that alone.

        Raises: UsageError (2) for a path that is not in the store, and without `yes` where more than half of it would
        go; NoSpaceError (14) before anything is changed where live chunks have no room to move to;
        CorruptStoreError (13), ComemError (1).
        """
        writer = self._writer
        doomed = self._doomed(paths)
        doomed.require_consent(yes)
        if not doomed.documents and not pending.exists(writer.path):
            raise UsageError("no document to forget", f"comem forget {writer.path} PATH")
        room = pending.room(len(doomed.documents), len(doomed.chunks), doomed.tokens)
        self._require_room(doomed, room)
        if doomed.documents:
            pending.save(writer.path, chain(pending.load(writer.path), self._forgotten(doomed)), room)
        writer.remove_documents(row.id for _, row in doomed.documents)
        writer.drop_unplaced()
        moved = compact(writer, with_dead_rows(writer.catalogue))
        indexed = self._index()
        readers = self._purge()
        scanned, needles = self._scan(readers)
        gone, again = self._outcome()
        report = Report(gone, again, len(doomed.chunks), moved, indexed, scanned, needles, readers)
        if report.done:
            pending.remove(writer.path)
        return report

    def _outcome(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Return the names of the documents that went, and of those that an ingest has stored again."""
        catalogue = self._writer.catalogue
        roots = {root.id: root.path for root in catalogue.rows(RootRow)}
        stored = {(roots.get(row.root_id), row.path) for row in catalogue.rows(DocumentRow)}
        forgotten = list(pending.load(self._writer.path))
        again = [one.name for one in forgotten if (one.root, one.path) in stored]
        return tuple(one.name for one in forgotten if (one.root, one.path) not in stored), tuple(again)

    def _doomed(self, paths: Sequence[str]) -> Doomed:
        doomed = find_doomed(self._writer.catalogue, paths)
        unknown = [
            path
            for path in doomed.unmatched
            if not any(names(path, one.root, one.path) for one in pending.load(self._writer.path))
        ]
        if unknown:
            raise UsageError(
                f"{self._writer.path} holds no document {unknown[0]}",
                "name it as a citation does, by its absolute path, or by its folder",
            )
        return doomed

    def _forgotten(self, doomed: Doomed) -> Iterator[Forgotten]:
        """Yield each document with what can be looked for, each chunk once."""
        writer, seen = self._writer, set[int]()
        for root, row in doomed.documents:
            chunks = [chunk for _, chunk in writer.document_chunks(row.id) if chunk.id in doomed.chunks]
            own = [chunk for chunk in dict.fromkeys(chunks) if chunk.id not in seen]
            seen.update(chunk.id for chunk in own)
            one = Forgotten(root, row.path, row.sha256, chunks=tuple(map(self._chunk, own)))
            text = pending.source_windows(one.absolute)
            if not text and self._decode:
                text = pending.text_windows("".join(self._decode(chunk.ids) for chunk in own).encode())
            yield Forgotten(root, row.path, row.sha256, text, one.chunks)

    def _chunk(self, chunk: ChunkRow) -> ForgottenChunk:
        rows = pending.residual_windows(self._writer.path, chunk, self._writer.layout)
        return ForgottenChunk(chunk.key, chunk.ids, rows)

    def _require_room(self, doomed: Doomed, intent: int) -> None:
        """Look that the intent, the transactions and the largest shard to be moved fit; dead shards free their own."""
        writer = self._writer
        free = durable.free_bytes(writer.path)
        first = intent + CATALOGUE_ROOM
        if free < first:
            raise durable.no_space(writer.path, first)
        use = list(unplaced_use(writer.catalogue, doomed.chunks))
        blocks = min(sum(live for live, _ in use), writer.capacity // format.ROWS_PER_BLOCK)
        move = format.shard_file_bytes(writer.layout, blocks, writer.capacity) if blocks else 0
        freed = 0 if _in_use(writer.path) else sum(size for live, size in use if not live)
        if free + freed < first + move:
            raise durable.no_space(writer.path, first + move - freed)

    def _index(self) -> bool:
        """Bring the index in step with what is left; return whether it was built again."""
        writer = self._writer
        build = bool(writer.catalogue.meta()["index_name"]) and not writer.index_is_fresh
        empty = next(writer.documents(), None) is None
        if build and empty:
            writer.set_index("", "")
        elif build:
            self._reindex()
        self._keep_only(writer.content)
        return build and not empty

    def _purge(self) -> bool:
        """Unlink dropped shards and empty the -wal file; return whether a reader was there until the last try."""
        writer = self._writer
        last = time.monotonic() + self._wait_seconds
        while True:
            alone = not _in_use(writer.path)  # no reader now: none has an index open that was removed before
            writer.recover()
            emptied = writer.catalogue.checkpoint()
            if alone and emptied and not self._orphans():
                return False
            if time.monotonic() > last:
                return True
            time.sleep(0.05)

    def _orphans(self) -> bool:
        live = {str(row.id) for row in self._writer.catalogue.rows(ShardRow)}
        folder = self._writer.path / format.ARRAY_NAME / "c"
        return folder.is_dir() and any(path.name not in live for path in folder.iterdir())

    def _scan(self, readers: bool) -> tuple[Scanned, int]:
        """Rewrite the catalogue if it holds a trace or a quarter is free, then scan everything; count the needles."""
        writer = self._writer
        catalogue = writer.catalogue
        free, pages = *catalogue.integers("PRAGMA freelist_count"), *catalogue.integers("PRAGMA page_count")
        if not readers and (free * 4 > pages or self._pass(_catalogue_files(writer.path))[0].traces):
            catalogue.vacuum()
            catalogue.checkpoint()
        return self._pass(path for path in files_below(writer.path) if path.name != PENDING_NAME)

    def _pass(self, files: Iterable[Path]) -> tuple[Scanned, int]:
        """Look for every needle in `files`, as many at once as fit."""
        store, catalogue = self._writer.path, self._writer.catalogue
        remains = Remains(store, catalogue, self._writer.layout)
        paths, total = list(files), 0
        needles = (needle for one in pending.load(store) for needle in one.needles())
        result = Scanned(0, 0, ())
        while True:
            batch = list(islice(needles, NEEDLES))
            if total and not batch:
                return result, total
            total += len(batch)
            batch = _unshared(batch, (ids for (ids,) in catalogue.execute("SELECT ids FROM chunk")))
            found = scan(store, paths, batch, remains.explain, (format.ARRAY_NAME, INDEX_DIR))
            result = Scanned(found.files, found.bytes, (*result.traces, *found.traces))


def _unshared(needles: Sequence[Needle], live: Iterable[bytes]) -> list[Needle]:
    """Leave out the runs of token ids that a live chunk holds too, in both widths."""
    shared = shared_runs({needle.raw for needle in needles if needle.what == pending.IDS_32}, live)
    shared |= {short for short in map(narrow, shared) if short}
    return [needle for needle in needles if needle.raw not in shared]


def _catalogue_files(store: Path) -> list[Path]:
    return [path for path in files_below(store) if path.parent == store and path.name.startswith(CATALOGUE_NAME)]


def _in_use(store: Path) -> bool:
    with NoReaders(store) as alone:
        return not alone
