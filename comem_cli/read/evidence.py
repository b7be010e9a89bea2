"""Select the chunks for a question and say where they come from."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from comem_cli.errors import UsageError
from comem_cli.model.load import ModelIdentity
from comem_cli.select.selector import Candidates, Selected, Selector
from comem_cli.select.store_index import open_store_index
from comem_cli.store.facts import source_changed
from comem_cli.store.reader import Place, StoreReader
from comem_cli.store.rows import ChunkRow

if TYPE_CHECKING:
    import tokenizers


@dataclass(frozen=True)
class Source:
    """Cite one selected chunk: every place it stands in, its score and round, and whether its file changed since."""

    key: str
    places: tuple[Place, ...]
    score: float
    round: int
    stale: bool

    def to_json(self) -> dict[str, Any]:
        """Return the fields of the answer format; the first place is the citation, others follow in `also`."""
        first, *others = [
            {
                "path": place.path,
                "root": place.root,
                "bytes": [place.byte_start, place.byte_end],
                "lines": [place.line_first, place.line_last],
            }
            for place in self.places
        ]
        rest = {"also": others} if others else {}
        return {"key": self.key, **first, "score": self.score, "round": self.round, "stale": self.stale, **rest}


@dataclass(frozen=True)
class Evidence:
    """Hold the chunks of one question: `pack` in document order, `sources` best first, time in ms."""

    pack: tuple[ChunkRow, ...]
    sources: tuple[Source, ...]
    select_ms: float

    @property
    def tokens(self) -> int:
        """Count the tokens of all chunks."""
        return sum(chunk.n_tokens for chunk in self.pack)


class EvidenceFinder:
    """Select from one snapshot of a store, with its index open; a context manager."""

    def __init__(self, reader: StoreReader, tokenizer: tokenizers.Tokenizer, selector: Selector) -> None:
        self._reader = reader
        self._tokenizer = tokenizer
        self._selector = selector
        self._index = open_store_index(reader)
        self._rank = {chunk_id: rank for rank, chunk_id in enumerate(reader.chunk_ids_in_order())}
        self._documents = {row.id: row for row in reader.documents()}
        self._candidates = Candidates(self._index, reader.token_ids, self._rank.__getitem__)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._index.close()

    def find(self, question: str, room: int) -> Evidence:
        """Select chunks for a question; where they exceed `room` tokens, the last chosen are left out.

        Raises: NoEvidenceError (4), UsageError (2) where not even one fits, IndexStaleError (15),
        CorruptStoreError (13).
        """
        start = time.perf_counter()
        ids = self._tokenizer.encode(question, add_special_tokens=False).ids
        selected = self._selector.select(ids, self._candidates)
        rows = {row.id: row for row in self._reader.chunks([choice.chunk_id for choice in selected])}
        kept = _fitting(selected, rows, room)
        if not kept:
            raise UsageError(
                f"no chunk fits into the {room} tokens that question and answer leave of the model's window",
                "ask a shorter question or pass a smaller --max-new-tokens",
            )
        pack = sorted((rows[choice.chunk_id] for choice in kept), key=lambda row: self._rank[row.id])
        places = self._reader.places([choice.chunk_id for choice in kept])
        sources = tuple(self._source(choice, rows[choice.chunk_id], places[choice.chunk_id]) for choice in kept)
        return Evidence(tuple(pack), sources, (time.perf_counter() - start) * 1e3)

    def _source(self, choice: Selected, row: ChunkRow, places: tuple[Place, ...]) -> Source:
        stale = any(source_changed(place.root, self._documents[place.document_id]) for place in places)
        return Source(f"c-{row.key[:12]}", places, choice.score, choice.round, stale)


def _fitting(selected: Sequence[Selected], rows: dict[int, ChunkRow], room: int) -> list[Selected]:
    kept: list[Selected] = []
    used = 0
    for choice in selected:
        used += rows[choice.chunk_id].n_tokens
        if used > room:
            break
        kept.append(choice)
    return kept


def room_for_pack(identity: ModelIdentity, query_tokens: int, new_tokens: int) -> int:
    """Return the tokens that the window leaves for chunks; raises UsageError (2) for a question that is too long."""
    room = identity.window - query_tokens - new_tokens - (identity.bos_id is not None)
    if room < 1:
        raise UsageError(
            f"question and answer need {query_tokens + new_tokens} tokens; the model's window is {identity.window}",
            "ask a shorter question or pass a smaller --max-new-tokens",
        )
    return room
