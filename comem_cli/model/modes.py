"""Write modes: what the lower layers see to the left of a chunk. Every mode stores exactly c residuals a chunk.

| mode | lower-layer context of a chunk | key of a chunk |
|---|---|---|
| chunk | its own tokens | its ids |
| overlap w | the w tokens before it in its document, then dropped | those ids and its own |
| document | the document so far | the key before it and its own ids: a chain over the whole prefix |

A mode turns a document into `Pending` chunks and makes the writer that runs them. Equal keys mean equal residuals. The
paper's §4, Overlap-Write, and its document-context writer. Importing this loads no torch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import TYPE_CHECKING, ClassVar, Protocol

from comem_cli.errors import UsageError
from comem_cli.model.shapes import Pending, Shape, batch_shapes

if TYPE_CHECKING:
    from comem_cli.model.split import SplitModel

MODES = ("chunk", "overlap", "document")
Key = Callable[[bytes, bytes], str]  # (what stands for the left context, own ids) -> key, 32 hex characters


class ChunkWriter(Protocol):
    """Runs chunks through layers [0:j)."""

    def add(self, chunk: Pending) -> Iterator[tuple[Pending, bytes]]:
        """Take a chunk; yield (chunk, residual rows as bf16 LE bytes) of those that are done."""
        ...

    def flush(self) -> Iterator[tuple[Pending, bytes]]:
        """Yield the rest."""
        ...


class WriteMode(Protocol):
    """One way to write the chunks of a document."""

    @property
    def name(self) -> str:
        """Return the mode's name in the fingerprint."""
        ...

    @property
    def overlap(self) -> int:
        """Return the left-context tokens in the fingerprint."""
        ...

    def pending(self, document: Sequence[bytes], key: Key) -> list[Pending]:
        """Turn a document's chunks, ids as uint32 LE bytes in order, into what the writer takes."""
        ...

    def forwards(self, lengths: Sequence[int]) -> list[tuple[int, int]]:
        """Return (cached tokens, new tokens) of each chunk's forward; `lengths` in tokens, of one document."""
        ...

    def shapes(self, chunk: int, tokens_per_batch: int, *, routed: bool) -> tuple[Shape, ...]:
        """Choose the batch shapes for chunks of up to `chunk` tokens."""
        ...

    def writer(self, split: SplitModel, shapes: Sequence[Shape]) -> ChunkWriter:
        """Make the writer that runs this mode's chunks."""
        ...


@dataclass(frozen=True)
class OverlapMode:
    """Write each chunk after the `left` tokens before it, any number, whose own residuals are dropped."""

    name: ClassVar[str] = "overlap"
    left: int

    @property
    def overlap(self) -> int:
        """Return `left`."""
        return self.left

    def pending(self, document: Sequence[bytes], key: Key) -> list[Pending]:
        """Key each chunk by its left context and its ids."""
        text, width = b"".join(document), 4 * self.left
        starts = _starts(map(len, document))
        lefts = [text[max(0, start - width) : start] for start in starts]
        return [Pending(key(left, ids), ids, left) for left, ids in zip(lefts, document, strict=True)]

    def forwards(self, lengths: Sequence[int]) -> list[tuple[int, int]]:
        """Run left context and chunk together."""
        return [(0, min(self.left, start) + n) for start, n in zip(_starts(lengths), lengths, strict=True)]

    def shapes(self, chunk: int, tokens_per_batch: int, *, routed: bool) -> tuple[Shape, ...]:
        """Make room for the left context."""
        return batch_shapes(chunk, self.left, tokens_per_batch, routed=routed)

    def writer(self, split: SplitModel, shapes: Sequence[Shape]) -> ChunkWriter:
        """Batch chunks by shape."""
        from comem_cli.model.write import BatchWriter

        return BatchWriter(split, shapes)


@dataclass(frozen=True)
class ChunkMode(OverlapMode):
    """Write each chunk by itself, positions from 0: the paper's default, w = 0."""

    name: ClassVar[str] = "chunk"
    left: int = field(default=0, init=False)


@dataclass(frozen=True)
class DocumentMode:
    """Write each chunk after the document so far; `window`: tokens that the model attends to, the chunk included."""

    name: ClassVar[str] = "document"
    overlap: ClassVar[int] = 0
    window: int

    def pending(self, document: Sequence[bytes], key: Key) -> list[Pending]:
        """Chain the keys: each covers the whole prefix through the one before it."""
        chunks: list[Pending] = []
        last: Pending | None = None
        for ids in document:
            last = Pending(key(bytes.fromhex(last.key) if last else b"", ids), ids, previous=last)
            chunks.append(last)
        return chunks

    def forwards(self, lengths: Sequence[int]) -> list[tuple[int, int]]:
        """Go on from the cached keys, as many as the window leaves beside a chunk."""
        keep = self.window - max(lengths, default=0)
        return [(min(start, keep), n) for start, n in zip(_starts(lengths), lengths, strict=True)]

    def shapes(self, chunk: int, tokens_per_batch: int, *, routed: bool) -> tuple[Shape, ...]:
        """Run one chunk a step."""
        return (Shape(1, chunk),)

    def writer(self, split: SplitModel, shapes: Sequence[Shape]) -> ChunkWriter:
        """Stream documents with a KV cache."""
        from comem_cli.model.document import DocumentWriter

        return DocumentWriter(split, self.window - max(shape.length for shape in shapes))


def make_mode(name: str, overlap: int, window: int) -> WriteMode:
    """Build the mode of a fingerprint; `window`: of the model, in tokens.

    Raises: UsageError (2) for an unknown mode, and for an overlap that contradicts it.
    """
    if name not in MODES:
        raise UsageError(f"unknown mode '{name}'", "pass --mode chunk or --mode document, or --overlap 32")
    if (name == "overlap") != (overlap > 0):
        raise UsageError(f"mode {name} does not go with --overlap {overlap}", "pass either --mode or --overlap")
    if name == "document":
        return DocumentMode(window)
    return OverlapMode(overlap) if overlap else ChunkMode()


def _starts(lengths: Iterable[int]) -> list[int]:
    """Return where each part begins."""
    return list(accumulate(lengths, initial=0))[:-1]
