from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from comem_cli.errors import UsageError
from comem_cli.evaluate.tasks.longbench import LONGBENCH_TASKS, NEW_TOKENS, LongBench
from tests.evaluate.tasks.benchmark_files import context, write_lines


def line(name: str, text: str, **values: Any) -> dict[str, Any]:
    given = {"_id": name, "input": f"What of {name}?\n", "context": text, "answers": ["a", "b"], "length": 3}
    return given | {"dataset": "qasper", "language": "en", "all_classes": None} | values


def test_a_line_is_a_context_and_a_question(tmp_path: Path) -> None:
    write_lines(
        tmp_path / "longbench" / "qasper.jsonl", [line("x", "First."), line("y", "Other."), line("z", "First.")]
    )
    cell = LongBench("qasper").cell(context(tmp_path))
    first, second, third = cell.examples
    assert [(one.name, one.text) for one in first.documents] == [("context.txt", "First.")]
    assert first.documents is third.documents
    assert first.group == third.group != second.group
    assert (first.question, first.answers, first.evidence) == ("What of x?", ("a", "b"), ())
    assert cell.max_new_tokens == 128
    assert "prompt=comem" in cell.cohort


def test_there_are_six_sets_with_the_answer_lengths_of_longbench() -> None:
    assert sorted(LONGBENCH_TASKS) == sorted(f"longbench_{name}" for name in NEW_TOKENS)
    assert sorted(NEW_TOKENS.values()) == [32, 32, 32, 64, 128, 128]


def test_a_wrong_line_is_refused_by_number(tmp_path: Path) -> None:
    write_lines(tmp_path / "qasper.jsonl", [line("x", "First."), {"input": "What?"}])
    with pytest.raises(UsageError, match=r"qasper\.jsonl, line 2 .*no 'context'"):
        LongBench("qasper").cell(context(tmp_path))
