from __future__ import annotations

from pathlib import Path

import pytest

from comem_cli.errors import UsageError
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
