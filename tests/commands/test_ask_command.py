"""`comem ask`: one document or one JSON line an answer, reproducible, and without a trace in the store."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.commands.cli import FAST, QUESTION, Ran, World, rows, state

STORE = "stores/docs"


def untimed(answer: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in answer.items() if key != "timing_ms"}


def test_an_answer_has_every_field_on_one_line(written: World, answered: Ran) -> None:
    assert answered.out.count("\n") == 1
    answer = answered.json
    facts = dict(row[:2] for row in rows(written.folder / STORE)["meta"])
    assert (answer["schema"], answer["question"], answer["arm"]) == (1, QUESTION, "comem")
    assert (answer["split"], answer["model"], answer["boundary"]) == (2, "tiny", "selected-pack read")
    assert (answer["store_id"], str(answer["generation"])) == (facts["store_id"], facts["generation"])
    assert answer["finish"] in {"eos", "length", "stop"}
    assert 1 <= answer["new_tokens"] <= 6
    assert set(answer["timing_ms"]) == {"select", "fetch", "query_write", "read", "decode"}
    assert all(ms >= 0 for ms in answer["timing_ms"].values())
    assert [source["round"] for source in answer["sources"]] == [1, 1]
    for source in answer["sources"]:
        _check_source(written, source)


def _check_source(world: World, source: dict[str, Any]) -> None:
    """Check a citation against the file: the bytes are those of the chunk, the lines are those of the bytes."""
    assert set(source) == {"key", "path", "root", "bytes", "lines", "score", "round", "stale"}
    assert source["key"].startswith("c-")
    assert (source["root"], source["stale"]) == (str(world.folder / "docs"), False)
    raw = (world.folder / "docs" / source["path"]).read_bytes()
    start, end = source["bytes"]
    assert 0 <= start < end <= len(raw)
    first, last = source["lines"]
    assert first == raw[:start].count(b"\n") + 1
    assert last == raw[: end - 1].count(b"\n") + 1
    assert source["score"] > 0
    keys = [row[1] for row in rows(world.folder / STORE)["chunk"]]
    assert sum(key.startswith(source["key"][2:]) for key in keys) == 1


def test_json_lines_are_answered_one_by_one_and_bad_ones_are_named_by_number(written: World, answered: Ran) -> None:
    """The answers are also those of a single question, and asking changes no byte of the store."""
    before = state(written.folder / STORE)
    asked = [
        {"id": 7, "question": QUESTION, "gold": ["dusk", "\u00e9"]},
        "not json",
        {"question": "  "},
        {"question": "~~~~", "id": "none"},
        {"id": 1},
        {"question": QUESTION, "id": 8},
        {"question": "harbour \ud800"},
        {"question": QUESTION, "exit_code": 5, "error": "old", "sources": "abc", "answer": 1},
        '{"question": "harbour", "x": NaN}',
        "[" * 100_000,
        {"question": "", "sources": "abc"},
    ]
    lines = [item if isinstance(item, str) else json.dumps(item) for item in asked]
    stdin = "\n".join(lines).encode() + b'\n\n{"question": "harbour \xff"}\n' + b'{"question": "dusk \xc3\xa9"}'
    done = written.run("ask", STORE, "-", *FAST, stdin=stdin)
    answers = done.lines
    assert untimed(answers[7]) == untimed(answered.json)  # a field of comem's own cannot be set from outside
    assert len(answers) == 13  # one line a question; the empty line asked nothing
    assert untimed(answers[0]) == untimed(answered.json) | {"id": 7, "gold": ["dusk", "\u00e9"]}
    assert untimed(answers[5]) == untimed(answered.json) | {"id": 8}
    assert [(answer.get("line"), answer.get("exit_code")) for answer in answers] == [
        *((None, None), (2, 2), (None, 2), (None, 4), (5, 2), (None, None), (None, 2)),
        *((None, None), (9, 2), (10, 2), (None, 2), (13, 2), (None, None)),
    ]
    assert answers[3]["id"] == "none"
    assert all(("error" in answer) != ("answer" in answer) for answer in answers)
    assert done.code == 2  # the first failure
    for line in done.err.splitlines():
        assert set(json.loads(line)) == {"warning"}
    assert state(written.folder / STORE) == before


def test_both_arms_agree_at_split_0(tmp_path: Path, light: Callable[[Path], World]) -> None:
    world = light(tmp_path)
    done = world.run("ask", STORE, QUESTION, "--arm", "both", "--json", *FAST)
    assert (done.code, done.err) == (0, "")  # no warning either: nothing is skipped at split 0
    answer = done.json
    assert answer["agree"] is True
    assert untimed(answer["comem"]) == untimed(answer["replay"])
    assert {"answer", "finish", "pack_tokens", "new_tokens", "timing_ms"} == set(answer["comem"])


def test_a_draw_repeats_with_its_seed_and_a_changed_source_fails_where_that_is_asked(
    copied: World, written: World, answered: Ran
) -> None:
    stdin = (json.dumps({"question": QUESTION}) + "\n").encode() * 2
    with touched(written.folder / "docs" / answered.json["sources"][0]["path"]):
        done = copied.run("ask", STORE, "-", "--temperature", "9", "--seed", "7", "--fail-stale", *FAST, stdin=stdin)
    first, second = done.lines
    assert done.code == 16
    assert first["sources"][0]["stale"] is True
    assert untimed(first) == untimed(second)
    assert first["answer"] != answered.json["answer"]


@contextmanager
def touched(source: Path) -> Iterator[None]:
    """Give a file another time of change inside the block."""
    status = source.stat()
    os.utime(source, ns=(status.st_atime_ns, status.st_mtime_ns + 1))
    yield
    os.utime(source, ns=(status.st_atime_ns, status.st_mtime_ns))


def test_a_person_reads_answer_and_sources_and_hears_of_a_changed_file(copied: World, written: World) -> None:
    with touched(written.folder / "docs/d003.md"):
        done = copied.run("ask", STORE, QUESTION, "--fail-stale", "--top-k", "12", "--max-new-tokens", "2")
    done.failed(16, "d003.md changed after it was ingested", "comem ingest")
    lines = done.out.splitlines()
    sources = lines[lines.index("Sources") + 1 :]
    assert [line.split()[0] for line in sources] == [f"[{n}]" for n in range(1, len(sources) + 1)]
    assert len(sources) > 2
    for line in sources:
        assert ("changed since ingest" in line) == ("d003.md:" in line)
    notes = done.err.splitlines()[:2]
    assert notes == [f"opening {STORE} ...", "loading tiny ..."]
    assert "without an adapter" in done.err


def test_questions_from_a_keyboard_are_not_waited_for(written: World) -> None:
    pytest.importorskip("pty")
    import pty
    import subprocess

    from tests.commands.cli import COMEM

    leader, follower = pty.openpty()
    line = [*COMEM, "ask", STORE, "-"]
    done = subprocess.run(
        line, cwd=written.folder, env=written.environment, stdin=follower, capture_output=True, text=True, timeout=60
    )
    os.close(follower)
    os.close(leader)
    assert (done.returncode, done.stdout) == (2, "")
    assert json.loads(done.stderr)["error"] == "no questions on stdin"


def test_a_kept_pack_changes_no_answer_of_a_batch(written: World) -> None:
    """The second and third question read the pack of the first; their fetch is 0 ms."""
    stdin = "".join(json.dumps({"question": question}) + "\n" for question in (QUESTION, QUESTION, QUESTION)).encode()
    plain = written.run("ask", STORE, "-", *FAST, stdin=stdin)
    kept = written.run("ask", STORE, "-", "--pack-cache", "100", *FAST, stdin=stdin)
    assert kept.code == plain.code == 0
    ours, theirs = ([json.loads(line) for line in done.out.splitlines()] for done in (kept, plain))
    assert [one["answer"] for one in ours] == [one["answer"] for one in theirs]
    assert [one["timing_ms"]["fetch"] == 0 for one in ours] == [False, True, True]
    refused = written.run("ask", STORE, "-", "--pack-cache", "-1", stdin=stdin)
    assert refused.code == 2
    assert "--pack-cache" in refused.err


def test_questions_decoded_at_once_are_answered_in_order_as_one_by_one(written: World) -> None:
    questions = ["What does the harbour ledger say?", QUESTION, "zzzz qqqq", "Who keeps the lighthouse?", QUESTION]
    lines = [json.dumps({"question": question, "id": number}) for number, question in enumerate(questions)]
    stdin = "\n".join([*lines[:2], "no json", *lines[2:]]).encode()
    alone = written.run("ask", STORE, "-", *FAST, stdin=stdin)
    together = written.run("ask", STORE, "-", "--batch", "3", "--pack-cache", "50", *FAST, stdin=stdin)
    assert together.code == alone.code
    ours, theirs = ([untimed(json.loads(line)) for line in done.out.splitlines()] for done in (together, alone))
    assert [one.get("id", one.get("line")) for one in ours] == [0, 1, 3, 2, 3, 4]
    assert ours == theirs
    assert written.run("ask", STORE, "-", "--batch", "0", stdin=stdin).code == 2
