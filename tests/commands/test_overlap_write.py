"""`comem overlap-write` from outside: what it says, what it leaves, and what it refuses."""

from __future__ import annotations

import fcntl
import json

from tests.commands.cli import FAST, World, rows, state

STORE = "stores/docs"


def facts(world: World) -> dict[str, str]:
    meta = dict(row[:2] for row in rows(world.folder / STORE)["meta"])
    return json.loads(meta["fingerprint"]) | {"fresh": meta["index_content"] == meta["content"] != ""}


def test_a_dry_run_says_what_it_would_do_and_writes_nothing(copied: World) -> None:
    before = state(copied.folder / STORE)
    done = copied.run("overlap-write", STORE, "--overlap", "8", "--dry-run")
    assert done.code == 0, done.err
    assert "chunk to overlap 8" in done.out and "times the FLOPs of chunk" in done.out and "estimate:" in done.out
    assert state(copied.folder / STORE) == before


def test_a_rewritten_store_answers_and_says_what_it_cost(copied: World) -> None:
    done = copied.run("overlap-write", STORE, "--overlap", "8", "--json")
    assert done.code == 0, done.err
    plan, *batches, summary = done.lines
    assert plan["type"] == "plan" and {line["type"] for line in batches} == {"chunk_batch"}
    assert summary["written_chunks"] == plan["chunks"] == batches[-1]["chunks"]
    assert summary["bytes_per_token"] == 128 and summary["flop_ratio"] > 1
    assert summary["cost"]["new"]["tokens"] == plan["tokens"] and summary["cost"]["forward_ratio"] > 0
    assert facts(copied) == facts(copied) | {"mode": "overlap", "overlap": 8, "fresh": True}
    asked = copied.run("ask", STORE, "harbour ledger", *FAST, "--json")
    assert asked.code == 0 and asked.json["sources"], asked.err
    again = copied.run("overlap-write", STORE, "--overlap", "8")
    assert again.code == 0 and "nothing to write" in again.out
    back = copied.run("overlap-write", STORE, "--mode", "document")
    assert back.code == 0 and "now document" in back.out and "bytes a token, as before" in back.out
    assert "Write:" in back.out and "theory:" in back.out and "measured" in back.out
    assert facts(copied)["mode"] == "document"


def test_a_comparison_reports_every_arm_and_writes_nothing(copied: World) -> None:
    before = state(copied.folder / STORE)
    questions = copied.folder / "q.jsonl"
    questions.write_text('{"question": "harbour ledger", "answers": ["harbour"]}\n{"question": "\\u4e2d"}\n')
    line = ("overlap-write", STORE, "--mode", "document", "--compare", "q.jsonl", *FAST)
    done = copied.run(*line, "--json")
    assert done.code == 0, done.err
    first, second, summary = done.lines
    assert set(first["answers"]) == set(first["answer_contained"]) == {"stored", "new", "replay"}
    assert set(first["first_token_equal"]) == set(first["identical"]) == {"stored", "new"}
    assert "error" in second and summary["without_evidence"] == 1 and summary["with_answers"] == 1
    shown = copied.run(*line)
    assert shown.code == 0 and "arm\tfirst token = replay\tall tokens = replay\tanswer in the text" in shown.out
    assert state(copied.folder / STORE) == before


def test_the_help_says_that_overlap_can_hurt_and_to_compare_first(world: World) -> None:
    done = world.run("overlap-write", "--help")
    text = " ".join(done.out.split())
    assert "it can hurt" in text and "LongEval fell by 10 points" in text and "Compare" in text


def test_what_cannot_be_done_is_refused(copied: World) -> None:
    run = copied.run
    run("overlap-write", STORE).failed(2, "no mode to rewrite into")
    run("overlap-write", STORE, "--mode", "document", "--overlap", "8").failed(2, "does not go with")
    run("overlap-write", "stores/none", "--overlap", "8").failed(10, "no store")
    run("overlap-write", STORE, "--overlap", "8", "--compare", "none.jsonl").failed(2, "no questions file")
    run("overlap-write", STORE, "--overlap", "999").failed(2, "outside 0..448")
    run("ingest", copied.folder, "--store", STORE, "--overlap", "8").failed(12, "comem overlap-write")
    with (copied.folder / STORE / "writer.lock").open("r+") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        run("overlap-write", STORE, "--overlap", "8").failed(11)
