from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from comem_cli.errors import UsageError
from comem_cli.evaluate.task import Example
from comem_cli.evaluate.tasks.data_files import Source, draw, read_json, read_jsonl, take
from tests.evaluate.tasks.benchmark_files import context

SOURCE = Source("Toy", ("sub/toy.json", "toy.json"), "https://example.org/toy", "CC0")


def test_the_first_name_that_is_there_is_taken(tmp_path: Path) -> None:
    (tmp_path / "toy.json").write_text("[]")
    assert SOURCE.find(context(tmp_path)) == tmp_path / "toy.json"
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "toy.json").write_text("[]")
    assert SOURCE.find(context(tmp_path)) == tmp_path / "sub" / "toy.json"


@pytest.mark.parametrize("there", [True, False])
def test_a_missing_file_is_named_with_its_origin_and_licence(tmp_path: Path, there: bool) -> None:
    with pytest.raises(UsageError) as caught:
        SOURCE.find(context(tmp_path if there else None))
    assert "sub/toy.json" in caught.value.message
    assert (str(tmp_path) in caught.value.message) == there
    assert all(word in caught.value.hint for word in ("https://example.org/toy", "CC0", "--data"))


def test_provenance_holds_licence_and_the_digest_of_the_bytes(tmp_path: Path) -> None:
    file = tmp_path / "toy.json"
    file.write_bytes(b"[1]")
    kept = SOURCE.provenance(file)
    assert kept["licence"] == "CC0"
    assert kept["sha256 toy.json"] == hashlib.sha256(b"[1]").hexdigest()
    assert str(tmp_path) not in str(kept)


@pytest.mark.parametrize("error", [KeyError("qas"), TypeError("list"), ValueError("odd"), IndexError("1")])
def test_what_a_wrong_file_raises_becomes_a_usage_error_with_file_and_line(error: Exception, tmp_path: Path) -> None:
    with (
        pytest.raises(UsageError, match=r"toy\.json, line 7 is not what Toy holds") as caught,
        SOURCE.reading(tmp_path / "toy.json", 7),
    ):
        raise error
    assert str(error).strip("'") in caught.value.message


def test_other_errors_pass_through(tmp_path: Path) -> None:
    with pytest.raises(MemoryError), SOURCE.reading(tmp_path):
        raise MemoryError


@pytest.mark.parametrize("content", [b"{", b"\xff\xfe{", b"[" * 100_000])
def test_what_is_no_json_is_refused_by_name(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a.json").write_bytes(content)
    with pytest.raises(UsageError, match=r"a\.json"):
        read_json(tmp_path / "a.json")
    with pytest.raises(UsageError, match=r"a\.json"):
        list(read_jsonl(tmp_path / "a.json"))


def test_lines_are_counted_with_the_empty_ones(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"a": "\\u2028 \u2028"}\n\n[2]\n', encoding="utf-8")
    assert list(read_jsonl(tmp_path / "a.jsonl")) == [(1, {"a": "\u2028 \u2028"}), (3, [2])]


def test_a_draw_depends_on_seed_and_ids_alone() -> None:
    ids = [f"q{number:02d}" for number in range(40)]
    first = draw(ids, 10, 42)
    assert first == draw(reversed(ids), 10, 42) == sorted(first)
    assert len(set(first)) == 10
    assert first != draw(ids, 10, 43)
    assert set(first) < set(draw(ids, 20, 42)), "the first n of one shuffle: a longer draw holds the shorter"
    assert draw(ids, 0, 42) == draw(ids, 99, 42) == ids


def test_the_draw_is_the_beginning_of_pythons_shuffle() -> None:
    # random.Random(42).shuffle(list(range(10))) gives 7, 3, 2, 8, 5, 6, 9, 4, 0, 1 in every Python 3
    assert draw(map(str, range(10)), 3, 42) == ["2", "3", "7"]


def test_two_examples_of_one_id_are_refused() -> None:
    one = Example("a", (), "q", "p", ("x",))
    with pytest.raises(UsageError, match="id a"):
        take([one, one], 1, 42)
