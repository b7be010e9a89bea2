"""`comem eval`: an own benchmark through the installed command, to records, tables and reports."""

from __future__ import annotations

import json
import os
import signal
import time
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from comem_cli.evaluate.tasks.registry import make_task
from tests.commands.cli import WORDS, World

ARMS = ["--arm", "replay", "--arm", "comem:j=2", "--arm", "comem:j=2,overlap=8"]
SMALL = ["--chunk", "32", "--top-k", "2", "--max-new-tokens", "4", "--dtype", "fp32", "--device", "cpu", "--seed", "1"]


def write_benchmark(folder: Path, count: int = 3) -> Path:
    path = folder / "own.jsonl"
    lines = []
    for number in range(count):
        word = WORDS[number]
        text = " ".join(f"Entry {n} of the {word} is {n * 3}." for n in range(12))
        documents = [{"name": f"{word}.txt", "text": text}]
        evidence = [{"text": "Entry 3 of the"}]
        line = {"id": f"q{number}", "question": f"What is entry 3 of the {word}?", "answers": ["9", word]}
        lines.append(json.dumps({**line, "documents": documents, "evidence": evidence}))
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    from tests.tiny import save_tiny

    folder = tmp_path_factory.mktemp("eval")
    write_benchmark(folder)
    return World(folder, save_tiny(folder / "model", initializer_range=0.2))


@pytest.fixture(scope="module")
def evaluated(world: World) -> World:
    ran = world.run("eval", "jsonl:own.jsonl", *ARMS, *SMALL, "--n", "0", "--out", "a.jsonl")
    assert ran.code == 0, ran.err
    return world


def records(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def untimed(path: Path) -> list[dict[str, object]]:
    return [{name: value for name, value in one.items() if name != "timing_ms"} for one in records(path)]


def test_every_question_and_arm_is_recorded(evaluated: World) -> None:
    found = records(evaluated.folder / "a.jsonl")
    assert [(one["example"], one["arm"]) for one in found] == [
        (f"q{n}", arm) for n in range(3) for arm in ("replay", "comem:j=2,mode=chunk", "comem:j=2,overlap=8")
    ]
    assert all(one["hit"] in (True, False) and one["pack_tokens"] for one in found)


def test_without_a_task_the_records_are_reported_again(evaluated: World) -> None:
    ran = evaluated.run("eval", "--out", "a.jsonl")
    assert ran.code == 0 and not ran.err
    header, *rows = [line.split("\t") for line in ran.out.splitlines()]
    assert rows[0][header.index("arm")] == "replay"
    scores = {row[header.index("arm")]: float(row[header.index("score")]) for row in rows}
    found = records(evaluated.folder / "a.jsonl")
    for arm, score in scores.items():
        mine = [float(str(one["score"])) for one in found if one["arm"] == arm]
        assert score == pytest.approx(sum(mine) / len(mine), abs=1e-5)


def test_json_is_one_document_of_numbers(evaluated: World) -> None:
    ran = evaluated.run("eval", "--out", "a.jsonl", "--json")
    assert ran.json["reference"] == "replay"
    assert all(isinstance(row["score"], float) and isinstance(row["arm"], str) for row in ran.json["rows"])
    assert not ran.err


@pytest.mark.parametrize("ending", ["md", "tsv", "svg"])
def test_a_report_is_written_in_the_form_of_its_ending(evaluated: World, ending: str) -> None:
    ran = evaluated.run("eval", "--out", "a.jsonl", "--report", f"reports/r.{ending}", "--report", "reports/too.tsv")
    assert ran.code == 0, ran.err
    assert (evaluated.folder / "reports" / "too.tsv").read_text() == ran.out
    text = (evaluated.folder / "reports" / f"r.{ending}").read_text()
    assert "comem:j=2,overlap=8" in text
    if ending == "svg":
        assert ElementTree.fromstring(text).tag.endswith("svg")
    if ending == "tsv":
        assert text == ran.out


def test_killed_at_any_moment_the_same_command_ends_with_the_same_records(evaluated: World) -> None:
    line = ["eval", "jsonl:own.jsonl", *ARMS, *SMALL, "--n", "0", "--out", "killed.jsonl"]
    path = evaluated.folder / "killed.jsonl"
    for wanted in (1, 4, 8):
        process = evaluated.start(*line)
        while process.poll() is None and (not path.exists() or path.read_text().count("\n") < wanted):
            time.sleep(0.01)
        os.kill(process.pid, signal.SIGKILL)
        process.communicate()
        assert path.read_text().count("\n") >= wanted
    ran = evaluated.run(*line)
    assert ran.code == 0, ran.err
    assert untimed(path) == untimed(evaluated.folder / "a.jsonl")


def test_an_interrupted_run_says_how_far_it_came_and_how_to_go_on(evaluated: World) -> None:
    process = evaluated.start("eval", "jsonl:own.jsonl", *ARMS, *SMALL, "--n", "0", "--out", "stopped.jsonl")
    path = evaluated.folder / "stopped.jsonl"
    while process.poll() is None and (not path.exists() or path.read_text().count("\n") < 2):
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate()
    assert process.returncode in (130, 0)
    assert process.returncode == 0 or "of 9 answers; run the same command again to go on" in err


def test_records_of_another_file_are_reported_with_these(evaluated: World) -> None:
    world = evaluated
    for arm, name in (("replay", "one.jsonl"), ("comem:j=2", "two.jsonl")):
        assert world.run("eval", "jsonl:own.jsonl", "--arm", arm, *SMALL, "--n", "0", "--out", name).code == 0
    ran = world.run("eval", "--out", "one.jsonl", "--with", "two.jsonl", "--json")
    rows = {row["arm"]: row for row in ran.json["rows"]}
    assert set(rows) == {"replay", "comem:j=2,mode=chunk"}
    assert rows["comem:j=2,mode=chunk"]["pairs"] == 3
    world.run("eval", "--out", "one.jsonl", "--with", "one.jsonl").failed(2, "twice")


def test_the_tasks_are_listed(world: World) -> None:
    lines = [line.split("\t") for line in world.run("eval", "--list").out.splitlines()]
    names, examples = ([line[column] for line in lines[1:]] for column in (0, 1))
    assert names == sorted(names)
    assert world.run("eval", "--list", "--json").json == [
        {"task": name, "example": example} for name, example in zip(names, examples, strict=True)
    ]
    assert all(make_task(example) for example in examples)  # each is one that the command takes
    assert {"niah_multikey_1", "vt", "longeval", "babilong_qa1", "xquad", "hotpotqa", "locomo", "jsonl"} <= set(names)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["jsonl:own.jsonl"], "no arm"),
        (["jsonl:own.jsonl", "--arm", "comem"], "split j"),
        (["jsonl:own.jsonl", "--arm", "comem:j=99"], "6 layers"),
        (["odd:1", "--arm", "replay"], "no task is called odd"),
        (["jsonl:missing.jsonl", "--arm", "replay"], "missing.jsonl"),
        (["jsonl:own.jsonl", "--arm", "replay", "--report", "r.pdf"], "ends in"),
        (["jsonl:own.jsonl", "--arm", "replay", "--max-new-tokens", "0"], "below 1"),
        (["jsonl:own.jsonl", "--arm", "replay", "--chunk", "0"], "below 1"),
        (["jsonl:own.jsonl", "--arm", "replay", "--n", "-1"], "below 0"),
        (["--out", "nothing.jsonl"], "no records"),
        (["--out", "own.jsonl"], "no record"),
        (["jsonl:own.jsonl", "--arm", "replay", "--out", "own.jsonl"], "no record"),
        (["xquad", "--arm", "replay", "--data", "nowhere"], "nowhere"),
    ],
)
def test_what_cannot_be_measured_is_refused_in_one_line(world: World, arguments: list[str], said: str) -> None:
    before = (world.folder / "own.jsonl").read_text()
    world.run("eval", *arguments).failed(2, said)
    assert (world.folder / "own.jsonl").read_text() == before


def test_other_settings_are_not_mixed_in(evaluated: World) -> None:
    line = ["eval", "jsonl:own.jsonl", *ARMS, *SMALL, "--n", "0", "--out", "a.jsonl", "--top-k", "1"]
    evaluated.run(*line).failed(2, "other settings", "--out")


def test_other_examples_of_the_same_cell_are_refused_before_any_answer(evaluated: World) -> None:
    before = (evaluated.folder / "a.jsonl").read_bytes()
    for other in (["--n", "2"], ["--n", "1", "--seed", "5"]):
        line = ["eval", "jsonl:own.jsonl", *ARMS, *SMALL, *other, "--out", "a.jsonl"]
        evaluated.run(*line).failed(2, "other examples", "--out")
    # an arm that this file does not hold yet must not be put beside answers of other settings either
    line = ["eval", "jsonl:own.jsonl:scorer=exact_match", "--arm", "replay", *SMALL, "--n", "0", "--out", "a.jsonl"]
    evaluated.run(*line).failed(2, "other examples")
    assert (evaluated.folder / "a.jsonl").read_bytes() == before


def test_a_cell_that_two_specs_name_is_measured_once(evaluated: World) -> None:
    line = ["--arm", "replay", *SMALL, "--n", "0", "--out", "once.jsonl"]
    ran = evaluated.run("eval", "jsonl:own.jsonl", "jsonl:./own.jsonl", *line)
    assert ran.code == 0, ran.err
    assert len(records(evaluated.folder / "once.jsonl")) == 3
    clash = ["jsonl:own.jsonl", "jsonl:own.jsonl:scorer=exact_match"]
    evaluated.run("eval", *clash, *line[:-1], "clash.jsonl").failed(2, "two tasks", "jsonl:own")
    assert not (evaluated.folder / "clash.jsonl").exists()


def test_json_holds_no_number_that_is_not_finite(evaluated: World) -> None:
    lines = [{**one, "extra": {"first_token_kl": float("nan")}} for one in records(evaluated.folder / "a.jsonl")]
    (evaluated.folder / "nan.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    ran = evaluated.run("eval", "--out", "nan.jsonl", "--json")
    rows = json.loads(ran.out, parse_constant=lambda name: pytest.fail(name))["rows"]
    assert all(row["first_token_kl"] is None for row in rows)
