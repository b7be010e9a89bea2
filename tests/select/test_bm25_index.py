"""The Lucene index against the closed formula, and what happens to it on disk."""

from __future__ import annotations

import os
import random
import shutil
import stat
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
from bm25_reference import ClosedFormula, iterate, pack_ids
from hypothesis import given, settings
from hypothesis import strategies as st

from comem_cli.errors import CorruptStoreError, IndexStaleError, NoEvidenceError
from comem_cli.select.bm25 import Bm25, IterativeBm25
from comem_cli.select.index import Bm25Index, check_index, open_index, recorded_terms
from comem_cli.select.index_write import build_index
from comem_cli.select.jvm import in_background
from comem_cli.select.selector import Candidates, Query
from comem_cli.select.terms import TOKENS, FoldedTerms
from tests.tiny import tiny_tokenizer

Chunks = dict[int, list[int]]


def build(path: Path, chunks: Chunks) -> Bm25Index:
    assert build_index(path, ((chunk_id, pack_ids(ids)) for chunk_id, ids in chunks.items())) == len(chunks)
    return open_index(path)


def scores(
    index: Bm25Index, query: list[int], k: int = 10**6, exclude: frozenset[int] = frozenset()
) -> dict[int, float]:
    return {hit.chunk_id: hit.score for hit in index.search(TOKENS.terms(query), k, exclude, 1.5, 0.75)}


def candidates(index: Bm25Index, chunks: Chunks, rank: dict[int, int] | None = None) -> Candidates:
    order = rank or {chunk_id: number for number, chunk_id in enumerate(chunks)}
    return Candidates(
        index, lambda c: TOKENS.terms(chunks[c]), order.__getitem__, sorted(chunks, key=order.__getitem__)
    )


def ask(ids: Iterable[int]) -> Query:
    return Query("", tuple(TOKENS.terms(ids)))


def skewed(count: int, length: int, seed: int, vocabulary: int = 50_000) -> Chunks:
    """Chunks of ids distributed about as words are: the density of id x falls as 1/x."""
    draw = random.Random(seed).random
    return {i * 3 + 1: [int(vocabulary ** draw()) for _ in range(length)] for i in range(count)}


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Bm25Index, Chunks, ClosedFormula]]:
    chunks = skewed(2000, 512, seed=3)
    with build(tmp_path_factory.mktemp("many") / "index", chunks) as index:
        yield index, chunks, ClosedFormula(chunks)


def test_scores_of_thousands_of_full_chunks_equal_the_closed_formula(
    many: tuple[Bm25Index, Chunks, ClosedFormula],
) -> None:
    index, chunks, formula = many
    for query in (chunks[1][:24], chunks[301], [1], [2, 40_000, 49_999]):
        assert scores(index, query) == pytest.approx(formula.scores(query), rel=1e-5)


def test_iterative_selection_over_thousands_of_chunks_equals_the_rule(
    many: tuple[Bm25Index, Chunks, ClosedFormula],
) -> None:
    index, chunks, formula = many
    seen = candidates(index, chunks)
    for question in (chunks[1][:24], chunks[301][100:120]):
        expected = iterate(formula, {c: n for n, c in enumerate(chunks)}, question, top_k=12, hop=4, rounds=3)
        found = IterativeBm25().select(ask(question), seen)
        assert [(s.chunk_id, s.round) for s in found] == [(c, r) for c, r, _ in expected]
        assert [s.score for s in found] == pytest.approx([s for _, _, s in expected], rel=1e-5)


@settings(max_examples=25, deadline=None)
@given(
    bodies=st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=80), min_size=1, max_size=15),
    query=st.lists(st.integers(0, 11), min_size=1, max_size=6),
    k1=st.floats(0.1, 3),
    b=st.floats(0, 1),
    common=st.sampled_from([1.0, 0.5, 0.3]),
)
def test_scores_of_any_small_store_equal_the_closed_formula(
    bodies: list[list[int]], query: list[int], k1: float, b: float, common: float
) -> None:
    chunks = {i + 7: ids for i, ids in enumerate(bodies)}
    folder = Path(tempfile.mkdtemp())
    try:
        with build(folder / "index", chunks) as index:
            hits = index.search(TOKENS.terms(query), len(chunks), (), k1, b, common)
            found = {hit.chunk_id: hit.score for hit in hits}
        assert found == pytest.approx(ClosedFormula(chunks).scores(query, k1, b, common), rel=1e-5)
    finally:
        shutil.rmtree(folder)


def test_every_chunk_that_ties_at_the_cut_is_given(tmp_path: Path) -> None:
    chunks = {0: [1, 1, 2]} | {i: [1, 2, 3] for i in range(1, 700)} | {i: [2, 3, 4] for i in range(700, 800)}
    with build(tmp_path / "index", chunks) as index:
        assert set(scores(index, [1], k=1)) == {0}
        assert set(scores(index, [1], k=5)) == set(range(700))
        rank = {chunk_id: 1000 - chunk_id for chunk_id in chunks}
        found = Bm25(top_k=4).select(ask([1]), candidates(index, chunks, rank))
    assert [s.chunk_id for s in found] == [0, 699, 698, 697]


def test_excluded_chunks_make_room_for_the_next_best(tmp_path: Path) -> None:
    chunks = {i: [1] * (i + 1) + [2] * (20 - i) for i in range(20)}
    with build(tmp_path / "index", chunks) as index:
        ranked = sorted(chunks, key=lambda c: -scores(index, [1])[c])
        assert set(scores(index, [1], k=3, exclude=frozenset(ranked[:4]))) == set(ranked[4:7])
        assert scores(index, [1], exclude=frozenset(chunks)) == {}


def test_repeated_unknown_and_no_ids(tmp_path: Path) -> None:
    with build(tmp_path / "index", {5: [1, 2], 6: [2, 3]}) as index:
        assert scores(index, [1, 1, 1]) == scores(index, [1]) == scores(index, [1, 4_294_967_295])
        assert scores(index, [77]) == scores(index, []) == scores(index, [1], k=0) == {}


def test_a_query_of_two_thousand_distinct_ids_is_not_too_long(tmp_path: Path) -> None:
    chunks = {i: list(range(i * 512, i * 512 + 512)) for i in range(6)}
    query = list(range(2 * 2048))
    with build(tmp_path / "index", chunks) as index:
        assert scores(index, query) == pytest.approx(ClosedFormula(chunks).scores(query), rel=1e-5)


def test_another_insertion_order_gives_the_same_scores_and_selection(tmp_path: Path) -> None:
    chunks = skewed(150, 64, seed=8, vocabulary=300)
    chunks |= {1000 + c: chunks[c] for c in list(chunks)[:40]}  # ties in every round
    rank = {chunk_id: chunk_id * 7919 % 2003 for chunk_id in chunks}
    results = []
    for seed in range(3):
        shuffled = list(chunks.items())
        random.Random(seed).shuffle(shuffled)
        with build(tmp_path / f"index{seed}", dict(shuffled)) as index:
            results.append(
                (scores(index, chunks[1]), IterativeBm25().select(ask(chunks[1][:9]), candidates(index, chunks, rank)))
            )
    assert results[0] == results[1] == results[2]


def test_threads_share_one_index_while_another_is_built(
    many: tuple[Bm25Index, Chunks, ClosedFormula], tmp_path: Path
) -> None:
    index, chunks, _ = many
    questions = [chunks[3 * n + 1][:24] for n in range(4)]
    expected = [IterativeBm25().select(ask(question), candidates(index, chunks)) for question in questions]

    def repeat(number: int) -> list[bool]:
        seen = candidates(index, chunks)
        return [IterativeBm25().select(ask(questions[number]), seen) == expected[number] for _ in range(5)]

    futures = [in_background(lambda n=n: repeat(n)) for n in range(4)]
    with build(tmp_path / "index", dict(list(chunks.items())[:300])) as other:
        assert other.count == 300
    assert [future.result() for future in futures] == [[True] * 5] * 4


def test_an_empty_store_has_an_index_without_evidence(tmp_path: Path) -> None:
    with build(tmp_path / "index", {}) as index, pytest.raises(NoEvidenceError):
        IterativeBm25().select(ask([1]), candidates(index, {}))


def test_a_rebuild_replaces_the_index_while_an_open_one_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "index"
    with build(path, {1: [1]}) as old, build(path, {2: [1]}) as new:
        assert set(scores(new, [1])) == {2}
        assert set(scores(old, [1])) == {1}
    assert [entry.name for entry in tmp_path.iterdir()] == ["index"]


def test_only_the_owner_can_read_an_index_and_it_holds_no_lock_file(tmp_path: Path) -> None:
    build(tmp_path / "index", {1: [1]}).close()
    assert stat.S_IMODE((tmp_path / "index").stat().st_mode) == 0o700
    files = list((tmp_path / "index").iterdir())
    assert {stat.S_IMODE(file.stat().st_mode) for file in files} == {0o600}
    assert "write.lock" not in {file.name for file in files}


def test_reading_changes_no_byte(tmp_path: Path) -> None:
    path = tmp_path / "index"
    build(path, {1: [1, 2], 2: [2]}).close()
    before = {file.name: (file.read_bytes(), file.stat().st_mtime_ns) for file in path.iterdir()}
    with open_index(path) as index:
        index.search(["1", "2"], 5, (), 1.5, 0.75)
    assert check_index(path) == 2
    assert {file.name: (file.read_bytes(), file.stat().st_mtime_ns) for file in path.iterdir()} == before


def test_a_build_that_fails_keeps_the_old_index_and_leaves_nothing_behind(tmp_path: Path) -> None:
    path = tmp_path / "index"
    build(path, {1: [1]}).close()

    def interrupted() -> Iterator[tuple[int, bytes]]:
        yield 2, pack_ids([1])
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        build_index(path, interrupted())
    with open_index(path) as index:
        assert set(scores(index, [1])) == {1}
    assert [entry.name for entry in tmp_path.iterdir()] == ["index"]


def test_a_build_clears_what_a_killed_one_left(tmp_path: Path) -> None:
    for name in (".index.building", ".index.old"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "segments_1").write_bytes(b"half")
    build(tmp_path / "index", {1: [1]}).close()
    assert [entry.name for entry in tmp_path.iterdir()] == ["index"]


@pytest.mark.parametrize("stored", [b"", b"\x01\x00\x00"])
def test_a_chunk_without_whole_ids_is_refused(tmp_path: Path, stored: bytes) -> None:
    with pytest.raises(CorruptStoreError, match="chunk 4"):
        build_index(tmp_path / "index", [(4, stored)])
    assert not list(tmp_path.iterdir())


def damage_no_folder(path: Path) -> None:
    shutil.rmtree(path)


def damage_a_file_instead(path: Path) -> None:
    shutil.rmtree(path)
    path.write_bytes(b"")


def damage_empty_folder(path: Path) -> None:
    for file in path.iterdir():
        file.unlink()


def damage_only_a_lock(path: Path) -> None:
    damage_empty_folder(path)
    (path / "write.lock").touch()


def damage_truncated_segments(path: Path) -> None:
    segments = next(path.glob("segments_*"))
    segments.write_bytes(segments.read_bytes()[:-9])


def damage_empty_segments(path: Path) -> None:
    next(path.glob("segments_*")).write_bytes(b"")


def damage_truncated_data(path: Path) -> None:
    largest = max(path.iterdir(), key=lambda file: file.stat().st_size)
    largest.write_bytes(largest.read_bytes()[: largest.stat().st_size // 2])


def damage_missing_data(path: Path) -> None:
    max(path.iterdir(), key=lambda file: file.stat().st_size).unlink()


DAMAGE = [function for name, function in list(globals().items()) if name.startswith("damage_")]


@pytest.mark.parametrize("damage", DAMAGE, ids=lambda function: function.__name__)
def test_a_missing_or_damaged_index_is_stale(tmp_path: Path, damage: object) -> None:
    path = tmp_path / "index"
    build(path, skewed(50, 100, seed=1)).close()
    damage(path)  # type: ignore[operator]
    for use in (open_index, check_index):
        with pytest.raises(IndexStaleError) as caught:
            use(path)
        assert caught.value.exit_code == 15
        assert "comem index STORE" in caught.value.hint
        assert "\n" not in caught.value.message


def test_the_check_finds_one_flipped_bit_anywhere(tmp_path: Path) -> None:
    path = tmp_path / "index"
    build(path, skewed(50, 100, seed=1)).close()
    for file in sorted(path.iterdir()):
        data = file.read_bytes()
        middle = len(data) // 2
        file.write_bytes(data[:middle] + bytes([data[middle] ^ 4]) + data[middle + 1 :])
        with pytest.raises(IndexStaleError):
            check_index(path)
        file.write_bytes(data)
    assert check_index(path) == 50


WORDS = ["harbour", "ledgers", "पायलट", "東京都", "𠮷野家", "naïve", "Ωμέγα", "gate"]


@settings(max_examples=15, deadline=None)
@given(
    bodies=st.lists(st.lists(st.sampled_from([*WORDS, "--"]), min_size=1, max_size=30), min_size=1, max_size=8),
    question=st.lists(st.sampled_from(WORDS), min_size=1, max_size=4),
)
def test_folded_scores_equal_the_closed_formula_over_words(bodies: list[list[str]], question: list[str]) -> None:
    scheme = FoldedTerms(tiny_tokenizer())
    stored = {key: scheme.tokenizer.encode(" ".join(words)).ids for key, words in enumerate(bodies)}
    counted = {key: terms for key, ids in stored.items() if (terms := scheme.terms(ids))}  # Lucene's N: with a term
    query = scheme.terms(scheme.tokenizer.encode(" ".join(question)).ids)
    folder = Path(tempfile.mkdtemp())
    try:
        build_index(folder / "index", ((key, pack_ids(ids)) for key, ids in stored.items()), scheme)
        with open_index(folder / "index") as index:
            found = {hit.chunk_id: hit.score for hit in index.search(query, len(stored), (), 1.5, 0.75)}
            formula = ClosedFormula(counted)  # type: ignore[arg-type]
            assert {term: index.chunks_with(term) for term in query} == {t: formula.holders[t] for t in query}  # type: ignore[index]
        assert found == pytest.approx(formula.scores(query), rel=1e-5)  # type: ignore[arg-type]
    finally:
        shutil.rmtree(folder)


def test_an_index_says_which_terms_it_counts_and_unknown_ones_are_damage(tmp_path: Path) -> None:
    path = tmp_path / "index"
    build(path, {1: [1, 2]}).close()
    assert recorded_terms(path) == TOKENS.identity
    (path / "terms").write_text("tokens 0\n")
    with pytest.raises(IndexStaleError, match="terms"):
        check_index(path)


def test_names_in_a_new_index_are_flushed_before_it_gets_its_name_and_the_name_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[tuple[str, str]] = []
    fsync, rename = os.fsync, Path.rename
    monkeypatch.setattr(os, "fsync", lambda fd: (done.append(("flush", os.readlink(f"/proc/self/fd/{fd}"))), fsync(fd)))
    monkeypatch.setattr(Path, "rename", lambda old, new: (done.append(("rename", str(new))), rename(old, new)))
    build(tmp_path / "i", {1: [5, 6], 2: [6]}).close()
    building = str(tmp_path / ".i.building")
    assert done == [
        ("flush", f"{building}/terms"),
        ("flush", building),
        ("rename", str(tmp_path / "i")),
        ("flush", str(tmp_path)),
    ]
