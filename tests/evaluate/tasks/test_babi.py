from __future__ import annotations

import pytest

from comem_cli.evaluate.tasks import babi
from tests.evaluate.tasks.benchmark_files import user_data

STORY = """\
1 Ann went home.
2 Bob slept.
3 Where is Ann? \thome\t1
4 Ann went out.
5 Did both? \tyes\t2 4
1 Cat sat.
2 Who sat? \tCat\t1
"""


def test_a_sample_is_a_question_after_all_sentences_of_its_story() -> None:
    first, second, third = babi.parse(STORY)
    assert first == babi.Sample(("Ann went home.", "Bob slept."), "Where is Ann?", "home", (0,))
    assert second == babi.Sample(("Ann went home.", "Bob slept.", "Ann went out."), "Did both?", "yes", (1, 2))
    assert third == babi.Sample(("Cat sat.",), "Who sat?", "Cat", (0,))


@pytest.mark.parametrize(
    "line", ["no number", "1", "", "2 Who? \tAnn\t7", "2 Who? \tAnn", "2 Who? \tAnn\tx", "2 Q\ta\t1\t1"]
)
def test_a_line_of_neither_kind_is_refused_by_number(line: str) -> None:
    with pytest.raises(ValueError, match="line 2"):
        babi.parse(f"1 Ann went home.\n{line}\n")


@pytest.mark.parametrize(("task", "fewest", "most"), [("qa1", 2, 10), ("qa2", 2, 88), ("qa5", 2, 94)])
def test_the_test_files_hold_what_babilong_takes_from_them(task: str, fewest: int, most: int) -> None:
    name = f"babi/en-10k/{task}_{babi.TASKS[task]}_test.txt"
    samples = babi.parse((user_data(name) / name).read_text(encoding="utf-8"))
    assert len(samples) == 1000
    assert (min(len(one.facts) for one in samples), max(len(one.facts) for one in samples)) == (fewest, most)
    assert all(1 <= len(one.supporting) <= 2 for one in samples)
    if task == "qa1":
        assert all(one.facts[one.supporting[0]].endswith(f" {one.answer}.") for one in samples)
