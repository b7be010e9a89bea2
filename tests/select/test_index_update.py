"""An index made out of the one before equals one that is built anew, and leaves nothing of what was taken out."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import pytest
from bm25_reference import ClosedFormula, pack_ids

from comem_cli.errors import ComemError, IndexStaleError
from comem_cli.select.index import check_index, open_index
from comem_cli.select.index_write import build_index, update_index
from comem_cli.select.store_index import open_store_index, rebuild_index, refresh_index
from comem_cli.select.terms import TOKENS, FoldedTerms, TokenTerms
from comem_cli.store.reader import INDEX_DIR, StoreReader
from comem_cli.store.writer import StoreWriter
from tests.store import samples
from tests.tiny import tiny_tokenizer

Chunks = dict[int, list[int]]


def draw(count: int, first: int, seed: int) -> Chunks:
    rng = random.Random(seed)
    return {first + i: [int(5000 ** rng.random()) for _ in range(rng.randint(1, 80))] for i in range(count)}


def build(path: Path, chunks: Chunks) -> None:
    build_index(path, ((key, pack_ids(ids)) for key, ids in chunks.items()), TOKENS)


def update(path: Path, old: Path, chunks: Chunks) -> list[int]:
    """Update and return the ids that had to be read."""
    read: list[int] = []

    def fetch(ids: Sequence[int]) -> Iterator[tuple[int, bytes]]:
        for key in ids:
            read.append(key)
            yield key, pack_ids(chunks[key])

    assert update_index(path, old, chunks, fetch, TOKENS) == len(chunks)
    return read


def scores(path: Path, query: Iterable[int]) -> dict[int, float]:
    with open_index(path) as index:
        return {hit.chunk_id: hit.score for hit in index.search(TOKENS.terms(query), 10**6, (), 1.5, 0.75)}


def contents(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir()}


BEFORE = draw(300, 1, seed=5)
NEW = draw(9, 1000, seed=6)
CHANGES = {
    "some go, some come": {key: ids for key, ids in BEFORE.items() if key % 50} | NEW,
    "some come": BEFORE | NEW,
    "some go": {key: ids for key, ids in BEFORE.items() if key % 7},
    "none": BEFORE,
    "all but one go": {17: BEFORE[17]},
    "all go": NEW,
    "nothing is left": {},
}


@pytest.mark.parametrize("after", CHANGES.values(), ids=CHANGES)
def test_scores_equal_those_of_a_rebuild_and_of_the_formula(tmp_path: Path, after: Chunks) -> None:
    build(tmp_path / "old", BEFORE)
    kept = contents(tmp_path / "old")
    assert sorted(update(tmp_path / "new", tmp_path / "old", after)) == sorted(after.keys() - BEFORE.keys())
    build(tmp_path / "fresh", after)
    formula = ClosedFormula(after) if after else None
    for query in ([1, 2, 3], BEFORE[17], NEW[1003], [4999], BEFORE[50]):
        found = scores(tmp_path / "new", query)
        assert found == scores(tmp_path / "fresh", query)
        assert found == pytest.approx(formula.scores(query) if formula else {}, rel=1e-5)
    assert contents(tmp_path / "old") == kept
    assert check_index(tmp_path / "new") == len(after)
    assert sum(name.endswith(".si") for name in contents(tmp_path / "new")) == (1 if after else 0)


def test_one_update_after_the_other_equals_a_rebuild(tmp_path: Path) -> None:
    rng = random.Random(9)
    chunks, path = dict(BEFORE), tmp_path / "0"
    build(path, chunks)
    for turn in range(1, 6):
        for key in rng.sample(sorted(chunks), 20):
            del chunks[key]
        chunks |= draw(15, 1000 * turn, seed=turn)
        update(tmp_path / str(turn), path, chunks)
        path = tmp_path / str(turn)
    build(tmp_path / "fresh", chunks)
    assert scores(path, BEFORE[17]) == scores(tmp_path / "fresh", BEFORE[17])


def test_no_byte_of_a_chunk_that_was_taken_out_is_left(tmp_path: Path) -> None:
    tokenizer = tiny_tokenizer()
    scheme = FoldedTerms(tokenizer)
    texts = {number: f"the harbour keeps ledger {number}" for number in range(400)}
    texts |= {137: "the harbour keeps ъыэюящ", 251: "the harbour keeps жцчшщъ"}  # Lucene packs Latin letters
    stored = {number: pack_ids(tokenizer.encode(text).ids) for number, text in texts.items()}
    build_index(tmp_path / "old", stored.items(), scheme)
    traces = ["ыэюя".encode(), "цчшщ".encode()]
    assert all(any(trace in data for data in contents(tmp_path / "old").values()) for trace in traces)
    left = stored.keys() - {137, 251}
    update_index(tmp_path / "new", tmp_path / "old", left, lambda ids: (), scheme)
    for data in contents(tmp_path / "new").values():
        assert not any(trace in data for trace in traces)
    with open_index(tmp_path / "new") as index:
        assert index.chunks_with("ъыэюящ") == 0
        assert index.chunks_with("harbour") == 398
        assert set(index.chunk_ids()) == left


@pytest.mark.parametrize("flaw", ["missing", "flipped", "other terms"])
def test_an_old_index_that_is_no_use_is_refused_and_left_alone(tmp_path: Path, flaw: str) -> None:
    old = tmp_path / "old"
    if flaw != "missing":
        build(old, BEFORE)
    if flaw == "flipped":
        largest = max(old.iterdir(), key=lambda file: file.stat().st_size)
        data = bytearray(largest.read_bytes())
        data[len(data) // 2] ^= 8
        largest.write_bytes(data)
    if flaw == "other terms":
        (old / "terms").write_text(f"{FoldedTerms(tiny_tokenizer()).identity}\n")
    with pytest.raises(IndexStaleError):
        update_index(tmp_path / "new", old, BEFORE, lambda ids: (), TokenTerms())
    assert not (tmp_path / "new").exists()
    assert [path.name for path in tmp_path.iterdir()] == ([] if flaw == "missing" else ["old"])


def test_an_update_that_fails_leaves_both_as_they_were(tmp_path: Path) -> None:
    build(tmp_path / "old", BEFORE)
    build(tmp_path / "new", {1: [1]})
    kept = contents(tmp_path / "old"), contents(tmp_path / "new")

    def interrupted(ids: Sequence[int]) -> Iterator[tuple[int, bytes]]:
        yield ids[0], pack_ids([1])
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        update_index(tmp_path / "new", tmp_path / "old", BEFORE | NEW, interrupted, TOKENS)
    with pytest.raises(ComemError, match="holds 300 chunks instead of 309"):
        update_index(tmp_path / "new", tmp_path / "old", BEFORE | NEW, lambda ids: (), TOKENS)
    assert (contents(tmp_path / "old"), contents(tmp_path / "new")) == kept
    assert sorted(path.name for path in tmp_path.iterdir()) == ["new", "old"]


def test_where_files_cannot_be_linked_they_are_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    build(tmp_path / "old", BEFORE)

    def refuse(*args: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr("os.link", refuse)
    update(tmp_path / "new", tmp_path / "old", BEFORE | NEW)
    assert scores(tmp_path / "new", NEW[1003])[1003] > 0


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A store of six documents with its index."""
    with samples.open_store(tmp_path / "s") as writer:
        for number in range(6):
            samples.put(writer, f"d{number}", [samples.sample(10 * number + i) for i in range(4)])
        writer.commit()
        rebuild_index(writer, TOKENS)
    return tmp_path / "s"


def edit(writer: StoreWriter) -> None:
    """Replace one document, add one, and take one out."""
    samples.put(writer, "d0", [samples.sample(1), samples.sample(900)])
    samples.put(writer, "d7", [samples.sample(901)])
    writer.remove_documents(row.id for row in writer.documents() if row.name == "d3")
    writer.drop_unplaced()


def test_a_refresh_that_dies_before_it_is_named_is_done_again(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (old,) = (store / INDEX_DIR).iterdir()
    with samples.open_store(store) as writer:
        edit(writer)
        (store / INDEX_DIR / f".{writer.content}.building").mkdir()
        monkeypatch.setattr(StoreWriter, "set_index", lambda *args: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            refresh_index(writer, TOKENS)
        assert sorted(path.name for path in (store / INDEX_DIR).iterdir()) == sorted([old.name, writer.content])
    monkeypatch.undo()
    with samples.open_store(store) as writer:
        assert not writer.index_is_fresh
        refresh_index(writer, TOKENS)
        assert [path.name for path in (store / INDEX_DIR).iterdir()] == [writer.content]
    assert ranking(store)


def ranking(store: Path) -> list[tuple[int, float]]:
    with StoreReader(store) as reader, open_store_index(reader) as index:
        ids = samples.sample(1).ids + samples.sample(901).ids + samples.sample(20).ids
        found = index.search(TOKENS.terms(memoryview(ids).cast("I")), 100, (), 1.5, 0.75)
        assert index.count == len(reader.chunk_ids_in_order())
        return sorted((hit.chunk_id, hit.score) for hit in found)


@pytest.mark.parametrize("flaw", [None, "missing", "link", "damaged", "of other terms"])
def test_a_refreshed_index_of_a_store_equals_a_rebuilt_one(
    store: Path, flaw: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    (old,) = (store / INDEX_DIR).iterdir()
    if flaw in ("missing", "link"):
        old.rename(store / INDEX_DIR / "away")
    if flaw == "link":
        old.symlink_to(store / INDEX_DIR / "away", target_is_directory=True)
    if flaw == "damaged":
        next(old.glob("segments_*")).write_bytes(b"")
    if flaw == "of other terms":
        (old / "terms").write_text("tokens 0\n")
    read: list[int] = []
    real = StoreReader.chunks
    monkeypatch.setattr(StoreReader, "chunks", lambda self, ids: read.extend(ids) or real(self, ids))
    with samples.open_store(store) as writer:
        edit(writer)
        assert not writer.index_is_fresh
        refresh_index(writer, TOKENS)
        assert writer.index_is_fresh
    assert len(read) == (2 if flaw is None else 0)  # those of the new chunks, or a rebuild, which streams
    assert len(list((store / INDEX_DIR).iterdir())) == 1
    refreshed = ranking(store)
    with samples.open_store(store) as writer:
        rebuild_index(writer, TOKENS)
    assert refreshed == ranking(store)
