"""Packs of a store's own chunks, and the logits that score every token of them.

A pack holds chunks of which no two are neighbours in one document: as retrieval picks them, and the case in which a
residual lacks the context that replay gives it. What is scored needs no question and no answer: `fidelity.Fidelity`
holds the logits of an arm against those of the j = 0 replay of the same ids.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch

from comem_cli.errors import UsageError
from comem_cli.model.split import SplitModel
from comem_cli.store.reader import StoreReader

FURTHEST = 14  # chunks further into a document make document mode slow to measure
_TRIES = 20  # draws a pack, before a corpus counts as too small


class Spot(NamedTuple):
    """Point at the `number`-th chunk of a document."""

    document: int
    number: int

    def near(self, other: Spot) -> bool:
        """Tell whether both are the same chunk, or neighbours."""
        return self.document == other.document and abs(self.number - other.number) <= 1


Pack = tuple[Spot, ...]


class Documents:
    """Look at the chunks of a store by their place; the residuals are not read."""

    def __init__(self, reader: StoreReader) -> None:
        self.reader = reader
        self.chunk_ids = reader.chunk_ids_in_order()

    def spot(self, chunk_id: int) -> Spot:
        """Return the first place of a chunk."""
        place = self.reader.places([chunk_id])[chunk_id][0]
        return Spot(place.document_id, place.number)

    def chunks(self, document: int) -> list[bytes]:
        """Return the token ids of a document's chunks in order: uint32 LE bytes each."""
        return [row.ids for row in self.reader.document_chunks(document)]

    def up_to(self, spot: Spot) -> list[bytes]:
        """Return the chunks of a document from the first through the one at `spot`."""
        return self.chunks(spot.document)[: spot.number + 1]


def draw_packs(documents: Documents, count: int, size: int, seed: int, furthest: int | None = None) -> list[Pack]:
    """Draw up to `count` distinct packs of `size` chunks in document order; fewer where the corpus is small.

    furthest: the last chunk number of a document that may be drawn. Raises UsageError (2) where not even one fits.
    """
    found: dict[Pack, None] = {}
    most = 0
    for number in range(_TRIES * count):
        drawn = _draw(documents, random.Random(f"{seed}/pack/{number}"), size, furthest)
        most = max(most, len(drawn))
        if len(drawn) == size:
            found.setdefault(drawn)
        if len(found) == count:
            break
        if number == _TRIES and not found:  # greedy drawing from a corpus that is too small never gets there
            break
    if not found:
        raise UsageError(
            f"the documents hold no {size} chunks of which no two are neighbours (drawn: {most})",
            f"pass --chunks {max(1, most)}, or a smaller --chunk, or more documents",
        )
    return list(found)


def _draw(documents: Documents, rng: random.Random, size: int, furthest: int | None) -> Pack:
    rank: dict[Spot, int] = {}
    for at in rng.sample(range(len(documents.chunk_ids)), len(documents.chunk_ids)):
        spot = documents.spot(documents.chunk_ids[at])
        if (furthest is None or spot.number <= furthest) and not any(spot.near(other) for other in rank):
            rank[spot] = at
        if len(rank) == size:
            break
    return tuple(sorted(rank, key=rank.__getitem__))


@torch.inference_mode()
def pack_logits(split: SplitModel, bos_id: int | None, rows: torch.Tensor) -> torch.Tensor:
    """Read [BOS; rows], rows (n, d) -> the logits that predict the pack's tokens, (n, vocab).

    Without a BOS nothing predicts the first token: (n - 1, vocab). `pack_targets` gives what they predict.
    """
    pack = rows.to(split.device, split.dtype)[None]
    if bos_id is not None:
        pack = torch.cat([split.lower(torch.tensor([[bos_id]], device=split.device)), pack], dim=1)
    return split.upper(pack, keep=0)[0, :-1]


def pack_targets(chunks: Sequence[bytes], bos_id: int | None) -> torch.Tensor:
    """Return the ids that `pack_logits` predicts: chunks as uint32 LE bytes -> (n,) or (n - 1,) int64."""
    ids = torch.from_numpy(np.frombuffer(b"".join(chunks), "<u4").astype(np.int64))
    return ids if bos_id is not None else ids[1:]
