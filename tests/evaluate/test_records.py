from __future__ import annotations

import json
import os
from dataclasses import asdict
from pathlib import Path

import pytest

from comem_cli.errors import LockedError, UsageError
from comem_cli.evaluate.records import Record, RecordFile, read_records


def record(example: str, arm: str = "replay", **values: object) -> Record:
    given = {"prediction": "a\nb\u2028c", "score": 0.5, "hit": True, "recall": 1.0, "chunks": ("aa", "bb"), **values}
    head = {"cell": "t:1", "cell_digest": "d", "cohort": "c", "group": "", "category": "", "identity": "i"}
    return Record(**head, example=example, arm=arm, **given)  # type: ignore[arg-type]


def test_records_come_back_as_they_were(tmp_path: Path) -> None:
    path = tmp_path / "new" / "records.jsonl"
    written = [record("1"), record("2", timing_ms={"read": 1.5}, hit=None, recall=None, error="none")]
    with RecordFile(path) as file:
        for one in written:
            file.add(one)
    assert list(read_records(path)) == written
    with RecordFile(path) as file:
        assert file.done == {one.key: one for one in written}


@pytest.mark.parametrize("cut", range(1, 60, 7))
def test_a_line_that_a_crash_cut_off_is_dropped_and_the_file_goes_on(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "records.jsonl"
    with RecordFile(path) as file:
        file.add(record("1"))
    whole = path.read_bytes()
    path.write_bytes(whole + whole[:cut])
    assert [one.example for one in read_records(path)] == ["1"]
    with RecordFile(path) as file:
        file.add(record("2"))
    assert [one.example for one in read_records(path)] == ["1", "2"]


@pytest.mark.parametrize("text", ["no json\n", "[1]\n", '{"cell": 1}\n', "\n", "null\n"])
def test_a_file_of_something_else_is_refused_and_left_alone(tmp_path: Path, text: str) -> None:
    path = tmp_path / "notes.txt"
    path.write_text(text)
    with pytest.raises(UsageError, match="line 1"):
        RecordFile(path)
    assert path.read_text() == text


def test_a_file_of_text_without_a_line_end_is_not_emptied(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("my notes")
    with pytest.raises(UsageError):
        RecordFile(path)
    assert path.read_text() == "my notes"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("score", "1"),
        ("score", None),
        ("score", True),
        ("score", float("nan")),
        ("recall", float("nan")),
        ("recall", "all"),
        ("hit", "yes"),
        ("group", [1]),
        ("cell", None),
        ("arm", 5),
        ("example", ["x"]),
        ("chunks", "abc"),
        ("chunks", [5]),
        ("extra", 5),
        ("extra", {"first_token_kl": "none"}),
        ("pack_tokens", None),
        ("pack_tokens", -1),
        ("timing_ms", {"read": None}),
        ("unknown", 1),
    ],
)
def test_a_field_of_another_kind_is_no_record(tmp_path: Path, name: str, value: object) -> None:
    path = tmp_path / "records.jsonl"
    good = asdict(record("1"))
    path.write_text(f"{json.dumps(good)}\n{json.dumps({**good, 'example': '2', name: value})}\n")
    with pytest.raises(UsageError, match="line 2 is no record"):
        list(read_records(path))


def test_a_kl_that_is_not_finite_comes_back(tmp_path: Path) -> None:
    with RecordFile(tmp_path / "r") as file:
        file.add(record("1", extra={"first_token_kl": float("inf")}))
    assert next(read_records(tmp_path / "r")).extra == {"first_token_kl": float("inf")}


def test_json_too_deep_to_be_read_is_no_record(tmp_path: Path) -> None:
    (tmp_path / "r").write_text("[" * 100_000 + "\n")
    with pytest.raises(UsageError, match="line 1"):
        list(read_records(tmp_path / "r"))


def test_a_second_run_into_one_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "records.jsonl"
    with RecordFile(path) as file:
        with pytest.raises(LockedError, match="another run"):
            RecordFile(path)
        file.add(record("1"))
    with RecordFile(path) as file:
        assert len(file.done) == 1


def test_what_is_no_regular_file_is_never_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", tmp_path, Path("/dev/null")):
        with pytest.raises(UsageError, match="is no file"):
            RecordFile(path)
        with pytest.raises(UsageError, match="is no file"):
            list(read_records(path))
