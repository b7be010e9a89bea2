"""Packs of chunks that are no neighbours, and their logits against the stock model."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch

from comem_cli.errors import UsageError
from comem_cli.evaluate.pack_fidelity import Documents, Spot, draw_packs, pack_logits, pack_targets
from comem_cli.model.split import SplitModel
from comem_cli.store.reader import StoreReader
from tests.tiny import BOS_ID, tiny_model
from tests.tiny_store import TinyStore, make_store


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> TinyStore:
    return make_store(tmp_path_factory.mktemp("packs"), split=0, chunk=16)


@pytest.fixture
def documents(store: TinyStore) -> Iterator[Documents]:
    with StoreReader(store.path) as reader:
        yield Documents(reader)


def test_packs_are_distinct_in_document_order_and_without_neighbours(documents: Documents) -> None:
    packs = draw_packs(documents, 12, 3, seed=5)
    assert len(set(packs)) == 12
    order = {documents.spot(chunk_id): rank for rank, chunk_id in enumerate(documents.chunk_ids)}
    for pack in packs:
        assert [order[spot] for spot in pack] == sorted(order[spot] for spot in pack)
        assert not any(a.near(b) for n, a in enumerate(pack) for b in pack[:n])
    assert packs == draw_packs(documents, 12, 3, seed=5)
    assert packs != draw_packs(documents, 12, 3, seed=6)
    assert len({spot for pack in packs for spot in pack}) > 6


def test_chunks_too_far_into_a_document_are_left_out(documents: Documents) -> None:
    packs = draw_packs(documents, 8, 2, seed=0, furthest=3)
    assert max(spot.number for pack in packs for spot in pack) <= 3


def test_a_small_corpus_gives_the_packs_that_it_has_or_is_refused(documents: Documents) -> None:
    only = draw_packs(documents, 10, 2, seed=0, furthest=0)  # two documents, one chunk each
    assert len(only) == 1
    with pytest.raises(UsageError, match=r"no 3 chunks .* \(drawn: 2\)"):
        draw_packs(documents, 10, 3, seed=0, furthest=0)


def test_the_chunks_of_a_spot_are_those_of_the_catalogue(documents: Documents) -> None:
    for row in documents.reader.documents():
        chunks = [chunk.ids for chunk in documents.reader.document_chunks(row.id)]
        assert documents.chunks(row.id) == chunks
        assert documents.up_to(Spot(row.id, 1)) == chunks[:2]


@torch.no_grad()
@pytest.mark.parametrize("split", [0, 2, 6])
@pytest.mark.parametrize("bos", [BOS_ID, None])
def test_logits_of_one_chunk_from_the_beginning_are_those_of_the_stock_model(split: int, bos: int | None) -> None:
    model = tiny_model()
    ids = torch.arange(20, 50)
    halves = SplitModel(model, split)
    if (
        bos is None or split == 0
    ):  # written alone, a chunk has the residuals of the whole only where nothing precedes it
        rows = halves.lower(ids[None])[0]
        found = pack_logits(halves, bos, rows)
        sequence = ids if bos is None else torch.cat([torch.tensor([bos]), ids])
        assert torch.equal(found, model(sequence[None]).logits[0, :-1])
    rows = halves.lower(torch.cat([torch.tensor([BOS_ID]), ids])[None])[0, 1:]
    joint = pack_logits(halves, BOS_ID, rows)
    assert torch.allclose(joint, model(torch.cat([torch.tensor([BOS_ID]), ids])[None]).logits[0, :-1], atol=1e-5)
    stored = [np.asarray(part, "<u4").tobytes() for part in (ids[:10], ids[10:])]
    targets = pack_targets(stored, bos)
    assert targets.tolist() == (ids if bos is not None else ids[1:]).tolist()
