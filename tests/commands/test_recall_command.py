"""`comem recall`, `--terms`, `--explain`, `--selector` and rounds as a user meets them."""

from __future__ import annotations

import json

from tests.commands.cli import FAST, QUESTION, World, state

STORE = "stores/docs"


def test_recall_prints_a_row_a_selector_terms_and_k_and_changes_nothing(copied: World) -> None:
    lines = [{"question": "harbour ledger", "answers": ["harbour"]}, {"question": "x", "answers": ["gate"]}]
    (copied.folder / "cases.jsonl").write_text("\n".join(map(json.dumps, lines)))
    before = state(copied.folder / STORE)
    done = copied.run(
        "recall", STORE, "cases.jsonl", "--k", "1,4", "--selector", "bm25", "--selector", "oracle", "--json"
    )
    assert done.code == 0, done.err
    assert done.json["cases"] == 2
    rows = {(row["selector"], row["terms"], row["k"]): row for row in done.json["rows"]}
    assert set(rows) == {
        (*which, k) for which in (("bm25", "folded"), ("bm25", "tokens"), ("oracle", "-")) for k in (1, 4)
    }
    assert rows["oracle", "-", 1]["recall"] == 1.0
    assert rows["bm25", "folded", 1]["recall"] == 0.5
    assert state(copied.folder / STORE) == before
    seen = copied.run(
        "recall", STORE, "cases.jsonl", "--k", "1,40", "--selector", "attention", "--json", "--dtype", "fp32"
    )
    assert [(row["selector"], row["terms"], row["k"]) for row in seen.json["rows"]] == [
        ("attention", "-", 1),
        ("attention", "-", 40),
    ]
    assert seen.json["rows"][1]["recall"] == 0.5  # the window holds fewer, and BM25 names none that has "x"
    assert "--k 40" in seen.err and f"has {seen.json['chunks']} chunks" in seen.err and seen.json["chunks"] < 40
    assert state(copied.folder / STORE) == before
    copied.run("recall", STORE, "none.jsonl").failed(2, "none.jsonl")
    copied.run("recall", STORE, "cases.jsonl", "--k", "0").failed(2, "--k")


def test_recall_skips_and_counts_cases_whose_evidence_the_store_lacks(copied: World) -> None:
    lines = [{"question": "x", "answers": ["zebra"]}, {"question": "harbour ledger", "answers": ["harbour"]}]
    (copied.folder / "cases.jsonl").write_text("\n".join(map(json.dumps, lines)))
    asked = ["recall", STORE, "cases.jsonl", "--k", "1", "--selector", "oracle"]
    done = copied.run(*asked, "--json")
    assert done.code == 3 and (done.json["cases"], done.json["skipped"]) == (1, 1)
    assert done.json["rows"][0]["recall"] == 1.0
    shown = copied.run(*asked)
    shown.failed(3, "1 of 2 cases skipped", "cases.jsonl, line 1")
    assert len(shown.out.splitlines()) == 2
    (copied.folder / "cases.jsonl").write_text(json.dumps(lines[0]))
    copied.run(*asked).failed(4, "1 of 1 cases skipped", "cases.jsonl, line 1")


def test_other_terms_than_the_indexs_are_stale_until_it_is_built_again(copied: World) -> None:
    asked = ["ask", STORE, QUESTION, "--terms", "tokens", *FAST]
    copied.run(*asked).failed(15, "over folded, not over tokens", f"comem index {STORE} --terms tokens")
    assert copied.run("index", STORE, "--terms", "tokens", "--json").json["terms"] == "tokens"
    assert copied.run(*asked).code == 0
    assert copied.run("index", STORE, "--json").json["terms"] == "tokens"  # as it was
    copied.run("index", STORE, "--terms", "stems").failed(2, "stems")


def test_an_answer_is_explained_to_people_and_programs(written: World) -> None:
    done = written.run("ask", STORE, QUESTION, "--explain", *FAST)
    assert done.code == 0, done.err
    assert "Selected by bm25-iterative over folded terms" in done.out
    assert "Not selected" in done.out and "the 2 chunks of --top-k were full" in done.out
    told = written.run("ask", STORE, QUESTION, "--explain", "--json", *FAST).json
    assert [entry["path"] for entry in told["selection"]["selected"]] == [source["path"] for source in told["sources"]]
    assert told["selection"]["not_selected"][0]["reason"] == "the 2 chunks of --top-k were full"


def test_scores_of_several_rounds_say_their_round(written: World) -> None:
    asked = ["ask", STORE, QUESTION, "--hop", "1", *FAST]
    done = written.run(*asked)
    lines = done.out.splitlines()
    sources = lines[lines.index("Sources") + 1 :]
    assert [line.rpartition("  ")[2] for line in sources] == ["(round 1)", "(round 2)"]
    told = written.run(*asked, "--json").json["sources"]
    assert [source["round"] for source in told] == [1, 2]
    one = written.run("ask", STORE, QUESTION, *FAST)
    assert "(round" not in one.out and "Sources" in one.out


def test_selectors_by_name(written: World) -> None:
    last = written.run("ask", STORE, QUESTION, "--selector", "recency", "--json", *FAST).json["sources"]
    assert {source["path"] for source in last} == {"d005.md"}
    seen = written.run("ask", STORE, QUESTION, "--selector", "attention", "--json", *FAST).json["sources"]
    assert len(seen) == 2 and 0 < seen[1]["score"] <= seen[0]["score"] < 1
    written.run("ask", STORE, QUESTION, "--selector", "dense", *FAST).failed(
        15, "no vectors", f"comem index {STORE} --dense"
    )
    written.run("ask", STORE, QUESTION, "--selector", "nearest", *FAST).failed(2, "nearest", "bm25-iterative")
