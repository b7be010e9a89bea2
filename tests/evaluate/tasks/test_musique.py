from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from comem_cli.errors import UsageError
from comem_cli.evaluate.tasks.musique import Musique
from tests.evaluate.tasks.benchmark_files import context, evidence_texts, user_data, write_json, write_lines

REAL = "qa/musique_150.json"
UPSTREAM = "musique_ans_v1.0_dev.jsonl"


def upstream(name: str, **values: Any) -> dict[str, Any]:
    texts = [("Sun", "It shines.", True), ("Sun", "It is a song.", False), ("Moon", "It is cold.", True)]
    paragraphs = [{"title": title, "paragraph_text": text, "is_supporting": gold} for title, text, gold in texts]
    given = {"id": name, "paragraphs": paragraphs, "question": f"What of {name}?", "answer": "yes"}
    return given | {"answer_aliases": ["yeah", "yes"], "answerable": True} | values


def test_the_supporting_paragraphs_of_musiques_own_file_are_the_evidence(tmp_path: Path) -> None:
    write_lines(tmp_path / UPSTREAM, [upstream("2hop__1"), upstream("2hop__2", answerable=False)])
    cell = Musique().cell(context(tmp_path))
    (one,) = cell.examples
    assert [document.name for document in one.documents] == ["Moon.txt", "Sun (2).txt", "Sun.txt"]
    assert evidence_texts(one) == ["Sun\nIt shines.", "Moon\nIt is cold."]
    assert one.answers == ("yes", "yeah")
    assert cell.provenance["unanswerable questions left out"] == "1"


def test_each_question_can_have_a_corpus_of_its_own(tmp_path: Path) -> None:
    other = upstream("b", paragraphs=upstream("a")["paragraphs"][:1])
    write_lines(tmp_path / UPSTREAM, [upstream("a"), other])
    assert [len(one.documents) for one in Musique("own").cell(context(tmp_path)).examples] == [3, 1]


def test_a_list_without_supporting_paragraphs_leaves_the_evidence_unknown(tmp_path: Path) -> None:
    ctxs = [{"title": "", "text": "one text"}, {"title": "", "text": "another"}, {"title": "", "text": "one text"}]
    write_json(tmp_path / "musique_s.json", [{"ctxs": ctxs, "question": " Who? ", "answers": ["me"]}])
    (one,) = Musique().cell(context(tmp_path)).examples
    assert sorted(document.text for document in one.documents) == ["another", "one text"]
    assert (one.evidence, one.question, one.answers) == ((), "Who?", ("me",))


def test_another_file_is_refused_by_name(tmp_path: Path) -> None:
    write_json(tmp_path / "musique_s.json", [{"question": "?"}])
    with pytest.raises(UsageError, match=r"musique_s\.json is not what MuSiQue holds"):
        Musique().cell(context(tmp_path))


def test_the_150_questions_have_ten_passages_each() -> None:
    data = user_data(REAL)
    own = Musique("own").cell(context(data))
    assert len(own.examples) == 150
    assert {len(one.documents) for one in own.examples} == {10}
    assert len(Musique().cell(context(data)).examples[0].documents) == 1255
