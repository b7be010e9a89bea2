from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from comem_cli.errors import UsageError
from comem_cli.evaluate.task import Span
from comem_cli.evaluate.tasks import qa


def test_equal_documents_are_one_and_different_ones_of_a_title_are_told_apart() -> None:
    corpus = qa.Corpus()
    names = [corpus.add(*one) for one in [("A/B", "x"), ("a_b", "y"), ("A/B", "x"), ("A/B", "z")]]
    assert names == ["A_B.txt", "a_b (2).txt", "A_B.txt", "A_B (3).txt"]
    assert [one.name for one in corpus.documents()] == ["A_B (3).txt", "A_B.txt", "a_b (2).txt"]
    assert {one.name: one.text for one in corpus.documents()} == dict(zip(names, "xyxz", strict=True))


@given(st.text())
def test_any_title_makes_the_name_of_one_visible_file(title: str) -> None:
    name = qa.file_name(title.encode("utf-8", "replace").decode())
    assert name
    assert not name.startswith(".")
    assert not set(name) & {"/", "\\", "\0", "\n"}
    assert len(f"{name} (1000).txt".encode()) <= 255


@given(st.text(), st.text(alphabet=" \n\tab"), st.text())
def test_a_stripped_span_points_at_the_stripped_text(before: str, inner: str, after: str) -> None:
    span = qa.stripped("d", before + inner + after, len(before), len(before) + len(inner))
    assert (before + inner + after)[span.start : span.end] == inner.strip()


def test_a_prompt_is_that_of_ask_and_needs_a_question() -> None:
    assert qa.prompt(" Who? ") == "\n\nQuestion: Who?\nAnswer:"
    with pytest.raises(UsageError):
        qa.prompt(" ")


def test_answers_are_distinct_texts() -> None:
    assert qa.answers(["b", "a", "b"]) == ("b", "a")


@pytest.mark.parametrize("wrong", [[], [None], ["a", 3], [" "]])
def test_answers_that_are_no_texts_are_refused(wrong: list[object]) -> None:
    with pytest.raises(ValueError, match="answers"):
        qa.answers(wrong)


def test_a_span_of_blanks_is_empty() -> None:
    assert qa.stripped("d", "ab   cd", 2, 5) == Span("d", 5, 5)
