"""One corpus of an evaluation, as `ask` would see it: a temporary store at split 0, with its index.

Split 0 keeps token ids only, so ingesting costs next to nothing; selection, document order and the fit into the window
are those of `ask`, because they are its code. Residuals are made by the arms from the ids kept here.
"""

from __future__ import annotations

import errno
import tempfile
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from pathlib import Path, PurePosixPath
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from comem_cli.errors import UsageError
from comem_cli.evaluate.task import Document, Span
from comem_cli.model.load import ModelFiles
from comem_cli.read.evidence import Evidence, EvidenceFinder
from comem_cli.select.selector import Selector
from comem_cli.select.store_index import rebuild_index
from comem_cli.select.terms import DEFAULT_TERMS, TermScheme, term_scheme
from comem_cli.store.reader import Place, StoreReader
from comem_cli.store.rows import ChunkRow
from comem_cli.store.run import IngestRun
from comem_cli.store.setup import WriteOptions

if TYPE_CHECKING:
    import tokenizers


class Workspace:
    """Hold the store of one corpus; a context manager that removes it again."""

    def __init__(
        self,
        documents: Sequence[Document],
        files: ModelFiles,
        tokenizer: tokenizers.Tokenizer,
        selector: Selector,
        chunk: int,
        terms: str = DEFAULT_TERMS,
    ) -> None:
        """Ingest the documents, and index them by `terms`.

        Raises UsageError (2) for a document whose text or name cannot be ingested.
        """
        self._texts = {document.name: document.text for document in documents}
        self._offsets: dict[str, list[int]] = {}
        with ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="comem-eval-")))
            _write_sources(folder / "sources", documents)
            _ingest(folder, files, chunk, term_scheme(terms, tokenizer))
            self.reader = stack.enter_context(StoreReader(folder / "store"))
            self.finder = stack.enter_context(EvidenceFinder(self.reader, tokenizer, selector))
            self._open = stack.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open.close()

    def find(self, question: str, room: int) -> Evidence:
        """Select the pack for a question; raises as `EvidenceFinder.find`."""
        return self.finder.find(question, room)

    def place(self, chunk: ChunkRow) -> Place:
        """Return the first place of a chunk."""
        return self.reader.places([chunk.id])[chunk.id][0]

    def document_up_to(self, place: Place) -> list[bytes]:
        """Return the ids of a document's chunks through the one at `place`: uint32 LE bytes each."""
        return [row.ids for row in self.reader.document_chunks(place.document_id)[: place.number + 1]]

    def held(self, spans: Iterable[Span], pack: Sequence[ChunkRow]) -> list[bool]:
        """Tell for each span whether every byte of it is in a chunk of the pack."""
        covered: dict[str, list[tuple[int, int]]] = {}
        for places in self.reader.places([chunk.id for chunk in pack]).values():
            for place in places:
                covered.setdefault(place.path, []).append((place.byte_start, place.byte_end))
        return [_inside(self._bytes(span), sorted(covered.get(span.document, []))) for span in spans]

    def _bytes(self, span: Span) -> tuple[int, int]:
        """Return the UTF-8 bytes of a span of characters."""
        text = self._texts[span.document]
        first = len(text[: span.start].encode())
        return first, first + len(text[span.start : span.end].encode())


def _inside(span: tuple[int, int], parts: Sequence[tuple[int, int]]) -> bool:
    """Tell whether sorted byte ranges cover a span without a gap."""
    at, end = span
    for start, stop in parts:
        if start <= at < stop:
            at = stop
    return at >= end


def _write_sources(folder: Path, documents: Sequence[Document]) -> None:
    for document in documents:
        name = PurePosixPath(document.name)
        if name.is_absolute() or ".." in name.parts or any(part.startswith(".") for part in name.parts):
            raise UsageError(f"'{document.name}' is no name of a document", "use relative paths without leading dots")
        path = folder / name
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("xb") as file:
                file.write(document.text.encode())
        except (FileExistsError, NotADirectoryError, IsADirectoryError) as error:
            raise UsageError(
                f"two documents are named '{document.name}', or one is a folder of the other",
                "give each document a name of its own",
            ) from error
        except OSError as error:
            if error.errno != errno.ENAMETOOLONG:
                raise
            shown = document.name[:40]
            raise UsageError(f"the document name '{shown}...' is too long", "use names of up to 255 bytes") from error


def _ingest(folder: Path, files: ModelFiles, chunk: int, scheme: TermScheme) -> None:
    run = IngestRun(folder / "store", files, WriteOptions(split=0, chunk=chunk))
    ignored: dict[str, Any] = {name: _nothing for name in ("on_plan", "on_event", "on_bytes", "on_load")}
    with run.open() as writer:
        summary = run.ingest(writer, [folder / "sources"], **ignored)
        rebuild_index(writer, scheme)
    for skip in summary.skips:
        raise UsageError(f"document '{skip.path}' cannot be ingested: {skip.reason}", "mend the benchmark's file")


def _nothing(*args: object) -> None:
    """Ignore an event."""
