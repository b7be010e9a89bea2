"""Select the chunks for a question and say where they come from."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from comem_cli.errors import IndexStaleError, UsageError
from comem_cli.model.load import ModelIdentity
from comem_cli.read.why import selection_json
from comem_cli.select.explain import explain
from comem_cli.select.index import Bm25Index
from comem_cli.select.selector import Candidates, Query, Selected, Selector
from comem_cli.select.store_index import index_scheme, open_store_index
from comem_cli.store.facts import source_changed
from comem_cli.store.reader import Place, StoreReader
from comem_cli.store.rows import ChunkRow

if TYPE_CHECKING:
    import tokenizers


@dataclass(frozen=True)
class Source:
    """Cite one chunk of the pack: every place it stands in, its score and round, and whether its file changed since.

    neighbour: it was not selected itself but stands beside one that was, whose score and round it carries.
    """

    key: str
    places: tuple[Place, ...]
    score: float
    round: int
    stale: bool
    neighbour: bool = False

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
        rest: dict[str, Any] = {"also": others} if others else {}
        rest |= {"neighbour": True} if self.neighbour else {}
        return {"key": self.key, **first, "score": self.score, "round": self.round, "stale": self.stale, **rest}


@dataclass(frozen=True)
class Evidence:
    """Hold the chunks of one question: `pack` in document order, `sources` best first, time in ms.

    why: one JSON object about the whole selection, where it was asked for.
    """

    pack: tuple[ChunkRow, ...]
    sources: tuple[Source, ...]
    select_ms: float
    why: dict[str, Any] = field(default_factory=dict)

    @property
    def tokens(self) -> int:
        """Count the tokens of all chunks."""
        return sum(chunk.n_tokens for chunk in self.pack)


@dataclass(frozen=True)
class Extent:
    """Say how much goes into a pack beside the selector's own caps.

    budget: tokens of all chunks, None for what the window holds. neighbours: chunks of the same document to add on
    each side of a selected one, after all selected ones, while there is room.
    """

    budget: int | None = None
    neighbours: int = 0

    def __post_init__(self) -> None:
        if self.budget is not None and self.budget < 1:
            raise UsageError(f"--budget {self.budget} is below 1", "pass --budget 6144")
        if self.neighbours < 0:
            raise UsageError(f"--neighbours {self.neighbours} is below 0", "pass --neighbours 1")


WHOLE = Extent()


class EvidenceFinder:
    """Select from one snapshot of a store, with its index open; a context manager."""

    def __init__(
        self,
        reader: StoreReader,
        tokenizer: tokenizers.Tokenizer,
        selector: Selector,
        extent: Extent = WHOLE,
        index: Bm25Index | None = None,
    ) -> None:
        """Take over the snapshot's index where it is open already; raises as `open_store_index`."""
        self._reader = reader
        self._tokenizer = tokenizer
        self._selector = selector
        self._extent = extent
        self._scheme = index_scheme(reader, tokenizer)
        self._index = index or open_store_index(reader)
        order = reader.chunk_ids_in_order()
        self._rank = {chunk_id: rank for rank, chunk_id in enumerate(order)}
        self._documents = {row.id: row for row in reader.documents()}
        self._candidates = Candidates.over(
            self._index, self._scheme, order, reader.token_ids, reader.ids_before, self._order
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._index.close()

    def find(self, question: str, room: int, *, why: bool = False) -> Evidence:
        """Select chunks for a question; where they exceed `room` tokens, the last chosen are left out.

        why: explain the selection as well. Raises: NoEvidenceError (4), UsageError (2) where not even one fits,
        IndexStaleError (15), CorruptStoreError (13).
        """
        start = time.perf_counter()
        query = self.query(question)
        selected = self._selector.select(query, self._candidates)
        room = min(room, self._extent.budget or room)
        beside = self._beside(selected)
        rows = {row.id: row for row in self._reader.chunks([choice.chunk_id for choice in (*selected, *beside)])}
        kept = _fitting(selected, rows, room)
        if not kept:
            raise UsageError(
                f"no chunk fits into the {room} tokens that --budget, question and answer leave of the model's window",
                "ask a shorter question, or pass a smaller --max-new-tokens or a larger --budget",
            )
        chosen = {choice.chunk_id for choice in kept}
        left = room - sum(rows[chunk_id].n_tokens for chunk_id in chosen)
        added = _fitting(beside, rows, left) if len(kept) == len(selected) else []
        taken = [*kept, *added]
        pack = sorted((rows[choice.chunk_id] for choice in taken), key=lambda row: self._rank[row.id])
        places = self._reader.places([choice.chunk_id for choice in taken])
        sources = tuple(
            self._source(choice, rows[choice.chunk_id], places[choice.chunk_id], choice.chunk_id not in chosen)
            for choice in taken
        )
        passed_ms = (time.perf_counter() - start) * 1e3
        reasons = {}
        if why:
            explanation = explain(self._selector, query, self._candidates, selected)
            reasons = selection_json(self._reader, self._scheme, query, explanation, selected, len(kept), room)
        return Evidence(tuple(pack), sources, passed_ms, reasons)

    def query(self, question: str) -> Query:
        """Return a question as selectors get it."""
        ids = self._tokenizer.encode(question, add_special_tokens=False).ids
        return Query(question, tuple(dict.fromkeys(self._scheme.query_terms(ids))))

    def _order(self, chunk_id: int) -> int:
        if chunk_id not in self._rank:
            raise IndexStaleError(
                f"the index of {self._reader.path} names chunk {chunk_id}, which the store does not hold",
                f"comem index {self._reader.path}",
            )
        return self._rank[chunk_id]

    def _beside(self, selected: Sequence[Selected]) -> list[Selected]:
        """Return the chunks that stand up to `neighbours` away from a selected one, in the order of choice."""
        reach = self._extent.neighbours
        if not reach:
            return []
        taken = {choice.chunk_id for choice in selected}
        found: list[Selected] = []
        places = self._reader.places(taken)
        for choice in selected:
            place = places[choice.chunk_id][0]
            document = [row.id for row in self._reader.document_chunks(place.document_id)]
            for chunk_id in document[max(0, place.number - reach) : place.number + reach + 1]:
                if chunk_id not in taken:
                    taken.add(chunk_id)
                    found.append(Selected(chunk_id, choice.score, choice.round))
        return found

    def _source(self, choice: Selected, row: ChunkRow, places: tuple[Place, ...], neighbour: bool = False) -> Source:
        stale = any(source_changed(place.root, self._documents[place.document_id]) for place in places)
        return Source(f"c-{row.key[:12]}", places, choice.score, choice.round, stale, neighbour)


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
