from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from comem_cli.errors import UsageError
from comem_cli.evaluate.task import Example
from comem_cli.evaluate.tasks.longeval import HEADER, LINE, TAIL, LongEval
from tests.evaluate.tasks.benchmark_files import context, evidence_texts, user_data, write_lines

ROOT = Path(__file__).parents[3]


def case(key: str = "red-cat", value: int = 7, **values: Any) -> dict[str, Any]:
    line = LINE.format(key=key, value=value)
    prompt = HEADER + LINE.format(key="old-dog", value=9) + line + TAIL.format(key=key)
    return {"random_idx": [key, 1], "expected_number": value, "correct_line": line, "prompt": prompt} | values


def numbers(one: Example) -> dict[str, str]:
    """Read a record back as its header tells a reader to."""
    body = one.documents[0].text.removeprefix(HEADER)
    found = re.findall(r"^line (.+): REGISTER_CONTENT is <(\d+)>$", body, re.MULTILINE)
    assert len(found) == len(dict(found)) == body.count("\n"), "every line is one of these, and keys are distinct"
    return dict(found)


def asked(one: Example) -> str:
    found = re.fullmatch(r"Tell me what is the <REGISTER_CONTENT> in line (.+)\? I need the number\.", one.question)
    assert found
    return found[1]


def test_a_case_of_the_file_is_split_before_its_question(tmp_path: Path) -> None:
    write_lines(tmp_path / "longeval" / "2_lines.jsonl", [case()])
    cell = LongEval(2).cell(context(tmp_path))
    (one,) = cell.examples
    assert one.documents[0].text + one.prompt == case()["prompt"]
    assert numbers(one) == {"old-dog": "9", "red-cat": "7"}
    assert (asked(one), one.answers) == ("red-cat", ("7",))
    assert evidence_texts(one) == ["line red-cat: REGISTER_CONTENT is <7>"]
    assert (cell.name, cell.scorer, cell.max_new_tokens, cell.stop) == ("longeval:2", "longeval_last_integer", 16, ())


@pytest.mark.parametrize(
    "wrong",
    [
        {"expected_number": 8},
        {"random_idx": ["old-dog", 0]},
        {"prompt": case()["prompt"].replace("old-dog", "red-cat")},
        {"prompt": case()["prompt"] + "?"},
        {"random_idx": []},
        {"prompt": None},
    ],
)
def test_a_case_that_contradicts_itself_is_refused_by_line(tmp_path: Path, wrong: dict[str, Any]) -> None:
    write_lines(tmp_path / "2_lines.jsonl", [case(), case(**wrong)])
    with pytest.raises(UsageError, match=r"2_lines\.jsonl, line 2 is not what LongEval lines holds"):
        LongEval(2).cell(context(tmp_path))


def test_generated_records_have_the_form_of_the_files(tmp_path: Path) -> None:
    cell = LongEval(120).cell(context(tmp_path, n=5))
    assert len(cell.examples) == 5
    for one in cell.examples:
        found = numbers(one)
        assert len(found) == 120
        assert all(1 <= int(value) <= 50_000 for value in found.values())
        assert one.answers == (found[asked(one)],)
        assert evidence_texts(one) == [LINE.format(key=asked(one), value=one.answers[0]).rstrip("\n")]
        assert one.prompt == TAIL.format(key=asked(one))
    assert len({one.documents[0].text for one in cell.examples}) == 5
    assert "wonderwords" in cell.cohort


def test_more_examples_begin_with_the_fewer_ones_and_another_seed_gives_others(tmp_path: Path) -> None:
    few, many = (LongEval(10).cell(context(None, n=n)).examples for n in (3, 6))
    assert many[:3] == few
    assert LongEval(10).cell(context(None, n=3, seed=1)).examples[0] != few[0]
    assert len(LongEval(10).cell(context(None)).examples) == 50


def test_the_asked_lines_are_spread_over_the_record() -> None:
    cell = LongEval(4).cell(context(None, n=400))
    places = [list(numbers(one)).index(asked(one)) for one in cell.examples]
    counts = [places.count(place) for place in range(4)]
    # chi-square with 3 degrees of freedom: 16.3 is the 0.1 % quantile, for a seed that is fixed
    assert sum((count - 100) ** 2 / 100 for count in counts) < 16.3


def test_file_and_generated_are_different_cohorts_and_either_can_be_asked_for(tmp_path: Path) -> None:
    write_lines(tmp_path / "2_lines.jsonl", [case()])
    loaded, made = (LongEval(2, source).cell(context(tmp_path, n=1)) for source in ("file", "generated"))
    assert loaded.cohort != made.cohort
    assert loaded.examples[0].documents[0].text != made.examples[0].documents[0].text
    with pytest.raises(UsageError, match="3_lines"):
        LongEval(3, "file").cell(context(tmp_path))


def test_another_process_generates_the_same_bytes() -> None:
    script = (
        "from comem_cli.evaluate.tasks.longeval import LongEval; from comem_cli.evaluate.task import TaskContext;"
        "print(LongEval(30).cell(TaskContext(None, '', None, 4)).digest())"
    )
    digests = {
        subprocess.run(
            [sys.executable, "-c", script],
            cwd=ROOT,
            env=os.environ | {"PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
        for seed in ("1", "2")
    }
    assert digests == {LongEval(30).cell(context(None, n=4)).digest()}


@pytest.mark.parametrize("lines", [200, 300, 400, 600])
def test_keys_of_the_published_cases_are_unique_and_the_gold_is_consistent(lines: int) -> None:
    name = f"longeval/{lines}_lines.jsonl"
    data = user_data(name)
    raw = [json.loads(line) for line in (data / name).read_text(encoding="utf-8").splitlines()]
    cell = LongEval(lines, "file").cell(context(data))
    assert len(cell.examples) == len(raw) == 50
    for one, given in zip(cell.examples, raw, strict=True):
        assert one.documents[0].text + one.prompt == given["prompt"]
        found = numbers(one)
        assert len(found) == lines
        assert one.answers == (str(given["expected_number"]),) == (found[asked(one)],)
        assert evidence_texts(one) == [given["correct_line"].rstrip("\n")]
