"""`comem break-even` on a tiny store: every printed number follows from the JSON's raw timings."""

from __future__ import annotations

import math
from statistics import mean, median
from typing import Any

import pytest

from tests.commands.cli import World, rows, state

STORE = "stores/docs"
SMALL = ["--generate", "4,1,2", "--repeat", "5", "--top-k", "3", "--hop", "2"]


@pytest.fixture(scope="module")
def measured(written: World) -> dict[str, Any]:
    before = state(written.folder / STORE)
    done = written.run("break-even", STORE, *SMALL, "--samples", "2", "--questions", "10", "--json")
    assert done.code == 0, done.err
    assert state(written.folder / STORE) == before
    found: dict[str, Any] = done.json
    return found


def test_w_follows_from_the_ledger(measured: dict[str, Any], written: World) -> None:
    ledger = rows(written.folder / STORE)["ledger"]
    write = measured["write"]
    assert write["seconds"] == pytest.approx(sum(row[4] + row[6] for row in ledger) / 1e3)
    assert write["ledger_tokens"] == write["stored_tokens"] == sum(row[3] for row in ledger)


def test_i0_is_a_measured_ingest_of_the_same_tokens(measured: dict[str, Any]) -> None:
    raw = measured["raw"]
    assert raw["method"] == "sources" and 0 < raw["measured_s"] == raw["seconds"]
    assert raw["measured_tokens"] == raw["stored_tokens"] == measured["write"]["stored_tokens"]


def test_every_arm_of_every_question_runs_once_a_repetition_in_drawn_order(measured: dict[str, Any]) -> None:
    runs = measured["runs"]
    seen = {(run["repetition"], run["question"], run["arm"]) for run in runs}
    assert len(seen) == len(runs) == 5 * 2 * 2
    assert {run["arm"] for run in runs if run["order"] == 0} == {"comem", "replay"}
    for run in runs:
        assert list(run["decode_ms"]) == ["1", "2", "4"]
        assert 0 == run["decode_ms"]["1"] < run["decode_ms"]["2"] < run["decode_ms"]["4"]


def test_q_star_recomputes_from_the_raw_timings(measured: dict[str, Any]) -> None:
    cost = measured["write"]["seconds"] - measured["raw"]["seconds"]
    assert [row["new_tokens"] for row in measured["rows"]] == [1, 2, 4]
    for row in measured["rows"]:
        medians = {}
        for arm in ("replay", "comem"):
            repetitions = [
                mean(
                    run["fetch_ms"] + run["query_write_ms"] + run["read_ms"] + run["decode_ms"][str(row["new_tokens"])]
                    for run in measured["runs"]
                    if run["arm"] == arm and run["repetition"] == number
                )
                for number in range(5)
            ]
            medians[arm] = median(repetitions) / 1e3
        assert (row["replay_s"], row["comem_s"]) == (pytest.approx(medians["replay"]), pytest.approx(medians["comem"]))
        assert row["saving_s"] == pytest.approx(medians["replay"] - medians["comem"])
        assert row["saving_low_s"] <= row["saving_s"] <= row["saving_high_s"]
        _verdict_holds(row, cost)
        at_n = row["at_questions"]
        assert at_n["saving_s"] == pytest.approx(10 * row["saving_s"] - cost)
        assert at_n["sentence"].startswith(f"G = {row['new_tokens']}: at 10 questions")


def _verdict_holds(row: dict[str, Any], cost: float) -> None:
    if row["saving_high_s"] <= 0:
        assert (row["verdict"], row["q_star"]) == ("never", None)
    elif row["saving_low_s"] <= 0:
        assert (row["verdict"], row["q_star"]) == ("unresolved", None)
    else:
        assert row["verdict"] == "finite"
        assert row["q_star"] == pytest.approx(max(0.0, cost / row["saving_s"]))


def test_questions_are_spans_of_stored_chunks_and_both_arms_share_packs(measured: dict[str, Any]) -> None:
    assert measured["questions_from"] == "store"
    assert len({question["question"] for question in measured["questions"]}) == 2
    assert all(question["chunks"] == 3 for question in measured["questions"])
    assert set(measured["boundaries"]) == {"select", "fetch", "query_write", "read", "decode"}


def test_a_pipe_gets_a_table_of_plain_numbers_from_the_users_own_questions(written: World, tmp_path) -> None:
    cases = tmp_path / "cases.jsonl"
    cases.write_text('{"question": "storm warning cones", "answers": ["black"]}\n\n{"question": "lighthouse stairs"}\n')
    done = written.run("break-even", STORE, *SMALL, "--cases", cases, "--questions", "3")
    assert done.code == 0, done.err
    header, *lines = [line.split("\t") for line in done.out.splitlines()]
    assert header == ["G", "T0 s", "T s", "T0-T s", "low s", "high s", "Q*", "Q* low", "Q* high", "W s", "I0 s"]
    assert [line[0] for line in lines] == ["1", "2", "4"]
    for line in lines:
        cells = (math.nan if cell == "unresolved" else float(cell) for cell in line[1:])
        t0, t, saving, low, high, star, _, _, write, raw = cells
        assert saving == pytest.approx(t0 - t, abs=2e-5 * t0)
        if high <= 0:
            assert star == math.inf
        elif low <= 0:
            assert math.isnan(star)
        else:
            assert star == pytest.approx(max(0.0, (write - raw) / saving), rel=1e-3)
    assert done.err.count("at 3 questions") == 3


def test_a_store_of_split_0_is_the_replay_arm_itself(light, tmp_path) -> None:
    light(tmp_path).run("break-even", STORE).failed(
        2, "split 0: it is the replay arm itself", "comem ingest PATH --store DIR --split N"
    )


@pytest.mark.parametrize(
    ("args", "code", "said"),
    [
        (["nosuch"], 10, ["no store at nosuch"]),
        ([STORE, "--generate", "1,many"], 2, ["--generate 1,many is no list", "--generate 1,32,128"]),
        ([STORE, "--generate", "0,1"], 2, ["at least 1 token"]),
        ([STORE, "--repeat", "4"], 2, ["--repeat 4 is too few", "--repeat 5"]),
        ([STORE, "--samples", "0"], 2, ["--samples 0"]),
        ([STORE, "--questions", "0"], 2, ["--questions 0"]),
        ([STORE, "--cases", "nosuch.jsonl"], 2, ["cannot read nosuch.jsonl"]),
    ],
)
def test_bad_input_is_refused(written: World, args: list[str], code: int, said: list[str]) -> None:
    written.run("break-even", *args).failed(code, *said)
