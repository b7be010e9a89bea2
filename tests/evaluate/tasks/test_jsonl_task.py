from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from comem_cli.errors import UsageError
from comem_cli.evaluate.score import SCORERS
from comem_cli.evaluate.tasks import jsonl
from comem_cli.evaluate.tasks.jsonl import JSONL_TASKS, Jsonl
from comem_cli.evaluate.tasks.spec import Options
from tests.evaluate.tasks.benchmark_files import context, evidence_texts, write_lines

DOCUMENTS = [{"name": "b.txt", "text": "The sea is green. The sun is high."}, {"name": "a/é.md", "text": "A red fox."}]


def line(**values: Any) -> dict[str, Any]:
    return {"question": "What is red?", "answers": ["fox", "a fox"], "documents": DOCUMENTS} | values


def load(folder: Path, *lines: Any) -> Any:
    return Jsonl(write_lines(folder / "mine.jsonl", lines)).cell(context(None))


def test_a_line_is_an_example(tmp_path: Path) -> None:
    evidence = [{"document": "b.txt", "start": 4, "end": 7}, {"text": "red fox"}, {"document": "b.txt", "text": "sun"}]
    cell = load(
        tmp_path, line(evidence=evidence, id="q1", group="g", category="c"), line(), line(documents=DOCUMENTS[:1])
    )
    unnamed, _, first = cell.examples
    assert [one.id for one in cell.examples] == ["000002", "000003", "q1"]
    assert [(one.name, one.text) for one in first.documents] == [
        ("a/é.md", "A red fox."),
        ("b.txt", "The sea is green. The sun is high."),
    ]
    assert evidence_texts(first) == ["sea", "red fox", "sun"]
    assert (first.answers, first.group, first.category) == (("fox", "a fox"), "g", "c")
    assert first.prompt == "\n\nQuestion: What is red?\nAnswer:"
    assert unnamed.documents is first.documents
    assert unnamed.evidence == ()
    assert (cell.name, cell.scorer) == ("jsonl:mine", "qa_f1")


def test_a_corpus_is_a_folder_beside_the_file(tmp_path: Path) -> None:
    (tmp_path / "docs" / "sub").mkdir(parents=True)
    (tmp_path / "docs" / "b.md").write_text("Bees.\r\n", encoding="utf-8", newline="")
    (tmp_path / "docs" / "sub" / "a.txt").write_bytes("Ants é".encode("latin-1"))
    (tmp_path / "docs" / "page.html").write_text("<html><body><p>Wasps</p></body></html>")
    (tmp_path / "docs" / "image.png").write_bytes(b"\x89PNG\r\n\x1a\n\0\0")
    (tmp_path / "docs" / "skip.log").write_text("no")
    (tmp_path / "docs" / ".gitignore").write_text("*.log\n")
    given = {"question": "Who?", "answers": ["bees"], "corpus": "docs", "evidence": [{"text": "Bees"}]}
    cell = load(tmp_path, given, given)
    one, other = cell.examples
    assert one.documents is other.documents
    assert {document.name: document.text.strip() for document in one.documents} == {
        "b.md": "Bees.",
        "page.html.txt": "Wasps",
        "sub/a.txt": "Ants é",
    }
    assert evidence_texts(one) == ["Bees"]


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"question": " "}, "question"),
    ({"question": 3}, "question"),
    ({"question": "\ud800"}, "question is not Unicode"),
    ({"answers": []}, "answers"),
    ({"answers": "fox"}, "answers"),
    ({"answers": [1]}, "answers"),
    ({"corpus": "docs"}, "one of"),
    ({"documents": []}, "no document"),
    ({"documents": 3}, "int"),
    ({"documents": [{"name": "a"}]}, "text is missing"),
    ({"documents": [*DOCUMENTS, DOCUMENTS[0]]}, "one name"),
    ({"documents": [{"name": "../a", "text": "x"}]}, "relative"),
    ({"documents": [{"name": "/a", "text": "x"}]}, "relative"),
    ({"documents": [{"name": "a.html", "text": "<p>x"}]}, "HTML"),
    ({"evidence": [{"text": "wolf"}]}, "0 times"),
    ({"evidence": [{"text": "The "}]}, "2 times"),
    ({"evidence": [{"document": "c.txt", "text": "red"}]}, "c.txt"),
    ({"evidence": [{"document": "b.txt", "start": 5, "end": 99}]}, "not inside"),
    ({"evidence": [{"document": "b.txt", "start": 5, "end": 5}]}, "not inside"),
    ({"evidence": [{"document": "b.txt", "start": True, "end": 5}]}, "start"),
    ({"evidence": [{"start": 0, "end": 5}]}, "document"),
    ({"evidence": [{}]}, "start is missing"),
    ({"evidence": ["red"]}, "evidence"),
    ({"id": "000001"}, "line 1"),
]


@pytest.mark.parametrize(("wrong", "reason"), WRONG)
def test_a_wrong_line_is_named_with_what_is_wrong(tmp_path: Path, wrong: dict[str, Any], reason: str) -> None:
    with pytest.raises(UsageError, match=r"mine\.jsonl, line 3: .*") as caught:
        load(tmp_path, line(), line(id="x"), line(**wrong))
    assert reason in caught.value.message
    assert "\n" not in caught.value.message


@pytest.mark.parametrize("corpus", ["gone", "../up", "/", "", "empty"])
def test_a_corpus_is_a_folder_with_documents_below_that_of_the_file(tmp_path: Path, corpus: str) -> None:
    (tmp_path / "up").mkdir()
    (tmp_path / "up" / "a.txt").write_text("text")
    (tmp_path / "in" / "empty").mkdir(parents=True)
    given = {"question": "Who?", "answers": ["x"], "corpus": corpus}
    with pytest.raises(UsageError, match=r"line 1: "):
        load(tmp_path / "in", given)


def test_a_store_is_no_corpus(tmp_path: Path) -> None:
    (tmp_path / "docs" / "residuals").mkdir(parents=True)
    (tmp_path / "docs" / "catalog.sqlite").touch()
    with pytest.raises(UsageError, match=r"mine\.jsonl, line 1: corpus docs: .* store"):
        load(tmp_path, {"question": "Who?", "answers": ["x"], "corpus": "docs"})


@pytest.mark.parametrize("wrong", ["{", "[1]", '"x"'])
def test_what_is_no_object_is_named_by_line(tmp_path: Path, wrong: str) -> None:
    (tmp_path / "mine.jsonl").write_text(f"\n{wrong}\n")
    with pytest.raises(UsageError, match=r"mine\.jsonl, line 2"):
        Jsonl(tmp_path / "mine.jsonl").cell(context(None))


def test_a_byte_order_mark_is_none_of_the_first_line(tmp_path: Path) -> None:
    write_lines(tmp_path / "mine.jsonl", [line()])
    text = (tmp_path / "mine.jsonl").read_text()
    (tmp_path / "mine.jsonl").write_text("\ufeff" + text)
    assert len(Jsonl(tmp_path / "mine.jsonl").cell(context(None)).examples) == 1


def test_a_file_without_a_question_and_a_pipe_are_refused(tmp_path: Path) -> None:
    (tmp_path / "mine.jsonl").write_text("\n")
    with pytest.raises(UsageError, match="holds no question"):
        Jsonl(tmp_path / "mine.jsonl").cell(context(None))
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UsageError, match="is no file"):
        Jsonl(tmp_path / "pipe").cell(context(None))


def test_the_spec_names_path_scorer_and_length(tmp_path: Path) -> None:
    path = tmp_path / "a:b.jsonl"
    options = Options(f"jsonl:{path}:scorer=answer_contained,max_new_tokens=5")
    assert JSONL_TASKS["jsonl"](options) == Jsonl(path, "answer_contained", 5)
    options.finish()
    with pytest.raises(UsageError, match=r"a:b\.jsonl"):
        Jsonl(path).cell(context(None))
    with pytest.raises(UsageError, match="needs a file"):
        JSONL_TASKS["jsonl"](Options("jsonl"))
    assert set(jsonl.SCORERS) <= set(SCORERS)


def test_another_file_is_another_cohort(tmp_path: Path) -> None:
    assert load(tmp_path, line()).cohort != load(tmp_path, line(), line()).cohort
