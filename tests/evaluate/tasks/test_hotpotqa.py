from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from comem_cli.errors import UsageError
from comem_cli.evaluate.tasks.hotpotqa import HotpotQA
from tests.evaluate.tasks.benchmark_files import context, evidence_texts, user_data, write_json

REAL = "qa/hotpotqa_sample100.json"
UPSTREAM = "hotpot_dev_distractor_v1.json"


def upstream(name: str, facts: list[list[Any]]) -> dict[str, Any]:
    paragraphs = [["Sun", ["It shines.", " It is hot."]], ["Moon", ["It is cold."]], ["Mars", ["It is red."]]]
    return {
        "_id": name,
        "question": f"What of {name}?",
        "answer": "yes",
        "type": "bridge",
        "supporting_facts": facts,
        "context": paragraphs,
    }


def test_the_development_file_is_read(tmp_path: Path) -> None:
    facts = [["Sun", 1], ["Moon", 0]]
    write_json(tmp_path / UPSTREAM, [upstream("a", facts), upstream("b", [["Mars", 0]])])
    cell = HotpotQA().cell(context(tmp_path))
    first, second = cell.examples
    assert first.documents is second.documents
    assert [(one.name, one.text) for one in first.documents] == [
        ("Mars.txt", "Mars\nIt is red."),
        ("Moon.txt", "Moon\nIt is cold."),
        ("Sun.txt", "Sun\nIt shines. It is hot."),
    ]
    assert evidence_texts(first) == ["It is hot.", "It is cold."]
    assert evidence_texts(second) == ["It is red."]
    assert (first.answers, first.category) == (("yes",), "bridge")


def test_each_question_can_have_a_corpus_of_its_own(tmp_path: Path) -> None:
    other = upstream("b", [["Sun", 0]])
    other["context"] = [["Sun", ["Another text of that title."]]]
    write_json(tmp_path / UPSTREAM, [upstream("a", [["Sun", 0]]), other])
    own = HotpotQA("own").cell(context(tmp_path))
    assert [len(one.documents) for one in own.examples] == [3, 1]
    assert [evidence_texts(one) for one in own.examples] == [["It shines."], ["Another text of that title."]]
    shared = HotpotQA().cell(context(tmp_path))
    assert [len(one.documents) for one in shared.examples] == [4, 4]
    assert [evidence_texts(one) for one in shared.examples] == [["It shines."], ["Another text of that title."]]


@pytest.mark.parametrize("fact", [["Sun", 2], ["Sun", -1], ["Pluto", 0]])
def test_evidence_that_the_file_misplaces_is_unknown_and_counted(tmp_path: Path, fact: list[Any]) -> None:
    write_json(tmp_path / UPSTREAM, [upstream("a", [["Sun", 0], fact]), upstream("b", [["Moon", 0]])])
    cell = HotpotQA().cell(context(tmp_path))
    assert [one.evidence == () for one in cell.examples] == [True, False]
    assert cell.provenance["questions whose evidence the file misplaces"] == "1"


def test_another_file_is_refused_by_name(tmp_path: Path) -> None:
    write_json(tmp_path / UPSTREAM, [{"question": "?"}])
    with pytest.raises(UsageError, match=f"{UPSTREAM} is not what HotpotQA holds"):
        HotpotQA().cell(context(tmp_path))


def test_the_sample_of_a_hundred_holds_its_paragraphs_and_facts() -> None:
    data = user_data(REAL)
    raw = {one["_id"]: one for one in json.loads((data / REAL).read_text(encoding="utf-8"))}
    cell = HotpotQA().cell(context(data))
    assert len(cell.examples) == 100
    assert len(cell.examples[0].documents) == 975
    for one in cell.examples:
        given = raw[one.id]
        pairs = zip((given["para_a"], given["para_b"]), given["supporting_facts"], strict=True)
        assert evidence_texts(one) == [paragraph[at].strip() for paragraph, ats in pairs for at in ats]
    own = HotpotQA("own").cell(context(data))
    assert sorted(len(one.documents) for one in own.examples) == [2, 4, 5, *[10] * 97]
