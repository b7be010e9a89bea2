from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from comem_cli.errors import UsageError
from comem_cli.evaluate.score import SCORERS
from comem_cli.evaluate.tasks.squad import SQUAD, XQUAD, Squad
from tests.evaluate.tasks.benchmark_files import context, evidence_texts, user_data, write_json

REAL = "qa/xquad.en.json"


def question(name: str, text: str, start: int) -> dict[str, Any]:
    return {"id": name, "question": f"What is {name}?", "answers": [{"text": text, "answer_start": start}]}


def article(title: str, *paragraphs: tuple[str, list[dict[str, Any]]]) -> dict[str, Any]:
    return {"title": title, "paragraphs": [{"context": text, "qas": qas} for text, qas in paragraphs]}


def small(folder: Path) -> Path:
    several = question("b", "red", 9)
    several["answers"] += [{"text": "red roof", "answer_start": 9}, {"text": "red", "answer_start": 9}]
    none = {"id": "c", "question": "What is c?", "answers": [], "is_impossible": True}
    given = [
        article("Zoo", ("An ape é.", [question("a", "ape", 3)]), ("It has a red roof.", [several, none])),
        article("A/B", ("The sun.", [question("d", "sun", 4)])),
    ]
    write_json(folder / "dev-v2.0.json", {"version": "v2.0", "data": given})
    return folder


def test_an_article_is_a_document_and_evidence_points_at_the_first_answer(tmp_path: Path) -> None:
    cell = Squad("squad", SQUAD).cell(context(small(tmp_path)))
    assert [one.id for one in cell.examples] == ["a", "b", "d"]
    documents = cell.examples[0].documents
    assert [(one.name, one.text) for one in documents] == [
        ("A_B.txt", "The sun."),
        ("Zoo.txt", "An ape é.\n\nIt has a red roof."),
    ]
    assert all(one.documents is documents for one in cell.examples)
    assert [evidence_texts(one) for one in cell.examples] == [["ape"], ["red"], ["sun"]]
    assert [one.group for one in cell.examples] == ["Zoo", "Zoo", "A/B"]
    assert cell.examples[1].answers == ("red", "red roof")
    assert cell.examples[0].prompt == "\n\nQuestion: What is a?\nAnswer:"
    assert cell.provenance["impossible questions left out"] == "1"
    assert cell.scorer in SCORERS
    assert "\n" in cell.stop
    assert cell.name == "squad"


def test_a_paragraph_can_be_a_document(tmp_path: Path) -> None:
    cell = Squad("squad", SQUAD, "paragraph").cell(context(small(tmp_path)))
    assert [one.name for one in cell.examples[0].documents] == ["A_B 001.txt", "Zoo 001.txt", "Zoo 002.txt"]
    assert [one.evidence[0].document for one in cell.examples] == ["Zoo 001.txt", "Zoo 002.txt", "A_B 001.txt"]
    assert [evidence_texts(one) for one in cell.examples] == [["ape"], ["red"], ["sun"]]
    assert cell.name == "squad:paragraph"
    assert cell.cohort != Squad("squad", SQUAD).cell(context(tmp_path)).cohort


def test_fewer_questions_keep_the_whole_corpus(tmp_path: Path) -> None:
    cell = Squad("squad", SQUAD).cell(context(small(tmp_path), n=1))
    assert len(cell.examples) == 1
    assert len(cell.examples[0].documents) == 2


@pytest.mark.parametrize(
    "data", [[], {"data": [{"title": "x"}]}, {"data": [article("x", ("abc", [question("a", "b", 0)]))]}]
)
def test_another_file_is_refused_by_name(tmp_path: Path, data: Any) -> None:
    write_json(tmp_path / "dev-v1.1.json", data)
    with pytest.raises(UsageError, match=r"dev-v1\.1\.json is not what SQuAD holds"):
        Squad("squad", SQUAD).cell(context(tmp_path))


def test_xquad_holds_what_its_paper_says() -> None:
    data = user_data(REAL)
    whole = Squad("xquad", XQUAD).cell(context(data))
    assert len(whole.examples) == 1190
    assert len(whole.examples[0].documents) == len({one.group for one in whole.examples}) == 48
    assert all(evidence_texts(one) == [one.answers[0]] for one in whole.examples)
    pieces = Squad("xquad", XQUAD, "paragraph").cell(context(data))
    assert len(pieces.examples[0].documents) == 240
    assert all(evidence_texts(one) == [one.answers[0]] for one in pieces.examples)
