"""dev/rescore.py: the same predictions under another rule."""

import json
import sys

import pytest

from comem_cli.evaluate.records import Record, RecordFile, read_records
from dev import rescore


def test_records_are_scored_again_by_another_rule(tmp_path, monkeypatch):
    lines = [
        {
            "id": str(n),
            "documents": [{"name": "a.txt", "text": "A tide."}],
            "question": "Which?",
            "answers": ["the moon"],
        }
        for n in range(3)
    ]
    (tmp_path / "mine.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    said = ["It is the Moon, they say.", "the moon", "the sun"]
    with RecordFile(tmp_path / "old.jsonl") as file:
        for number, prediction in enumerate(said):
            file.add(Record("jsonl:mine", "d", "c", str(number), "", "", "replay", "i", prediction, 0.5, None, None))
        file.add(Record("other", "e", "c", "0", "", "", "replay", "i", "the moon", 0.5, None, None))

    def run():
        given = [f"jsonl:{tmp_path / 'mine.jsonl'}", "answer_contained", str(tmp_path / "new.jsonl")]
        monkeypatch.setattr(sys, "argv", ["x", *given, str(tmp_path / "old.jsonl"), "--n", "0"])
        rescore.main()

    run()
    found = list(read_records(tmp_path / "new.jsonl"))
    assert [(one.cell, one.example, one.score) for one in found] == [
        ("jsonl:mine:answer_contained", str(number), score) for number, score in enumerate((1.0, 1.0, 0.0))
    ]
    assert [one.prediction for one in found] == said
    with pytest.raises(SystemExit, match="there already"):
        run()
