"""`comem check` and `ask --repair`: exit codes, output, and a store that answers again as before."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from tests.commands.cli import FAST, QUESTION, Ran, World, residuals, state

STORE = "stores/docs"


def damage(world: World) -> None:
    """Flip a bit in every block of every shard."""
    for shard in (world.folder / STORE / "residuals/c").glob("*/0"):
        raw = bytearray(shard.read_bytes())
        step = 32 * 64 * 2 + 4
        for place in range(0, len(raw) - 32768 // 32 * 16 - 4, step):
            raw[place] ^= 1
        shard.write_bytes(raw)


def test_a_whole_store_is_clean_and_untouched(copied: World) -> None:
    before = state(copied.folder / STORE)
    done = copied.run("check", STORE, "--read-data")
    assert (done.code, done.out) == (0, "")
    assert "whole; 6 documents" in done.err
    assert copied.run("check", "--json").json["findings"] == []
    assert state(copied.folder / STORE) == before


def test_damage_is_named_with_the_command_that_mends_it_and_repaired(copied: World) -> None:
    good = residuals(copied.folder / STORE)
    damage(copied)
    assert copied.run("check", STORE).code == 0  # sizes are right: the fast check reads no residual
    copied.run("check", STORE, "--sample", "3").failed(13, "3 findings", f"comem check {STORE} --repair")
    done = copied.run("check", STORE, "--read-data", "--json")
    assert done.code == 13
    found = done.json["findings"]
    assert len(found) == len(good)
    assert {f["what"] for f in found} == {f"chunk {key}" for key in good}
    assert {(f["code"], f["severity"], f["fix"]) for f in found} == {
        ("residual-damaged", "damage", f"comem check {STORE} --repair")
    }
    assert all(Path(path).is_file() for f in found for path in f["paths"])
    assert json.loads(done.err.splitlines()[-1])["exit_code"] == 13
    table = copied.run("check", STORE, "--read-data").out.splitlines()
    assert table[0].split("\t") == ["severity", "code", "what", "detail", "fix"] and len(table) == len(good) + 1
    mended = copied.run("check", STORE, "--repair", "--json")
    assert mended.code == 0, mended.err
    assert mended.json["repaired"]["rewritten"] == len(good) and mended.json["findings"] == []
    assert len(mended.json["found"]) == len(good)
    assert residuals(copied.folder / STORE) == good
    assert copied.run("check", STORE, "--read-data").code == 0


def test_what_a_repair_cannot_mend_is_left_with_the_ingest_that_does(copied: World) -> None:
    import sqlite3

    connection = sqlite3.connect(copied.folder / STORE / "catalog.sqlite")
    connection.execute("UPDATE chunk SET ids = x'00000000' WHERE id = 0")
    connection.commit()
    connection.close()
    done = copied.run("check", STORE, "--repair")
    done.failed(13, "1 finding", "comem ingest ", "docs/d00", f"--store {STORE}")
    fix = done.err.splitlines()[-1].removeprefix("hint: comem ").split()
    assert copied.run(*fix).code == 0
    assert copied.run("check", STORE, "--read-data").code == 0


def test_ask_names_a_damaged_chunk_and_with_repair_heals_and_answers(copied: World, answered: Ran) -> None:
    damage(copied)
    ask = ("ask", STORE, QUESTION, "--json", *FAST)
    assert copied.run(*ask).code == 13
    done = copied.run(*ask, "--repair")
    assert done.code == 0, done.err
    assert done.json["answer"] == answered.json["answer"]
    assert [s["key"] for s in done.json["sources"]] == [s["key"] for s in answered.json["sources"]]
    assert copied.run(*ask).json["answer"] == answered.json["answer"]


def test_ask_with_repair_builds_a_lost_index_and_answers_a_batch(copied: World, answered: Ran) -> None:
    shutil.rmtree(next((copied.folder / STORE / "index").iterdir()))
    line = json.dumps({"question": QUESTION, "id": 1}).encode() + b"\n"
    done = copied.run("ask", STORE, "-", *FAST, "--repair", stdin=line * 2)
    assert done.code == 0, done.err
    assert [answer["answer"] for answer in done.lines] == [answered.json["answer"]] * 2


def test_ask_with_repair_passes_on_what_a_repair_cannot_mend(copied: World) -> None:
    (copied.folder / STORE / "catalog.sqlite").write_bytes(b"garbage" * 1000)
    copied.run("ask", STORE, QUESTION, *FAST, "--repair").failed(13, "cannot be read", "comem ingest PATH")
    copied.run("check", STORE).failed(13, "1 finding", "restore")


def test_bad_arguments_and_a_missing_store(world: World) -> None:
    world.run("check", "nowhere").failed(10, "no store")
    world.run("check", "nowhere", "--sample", "-1").failed(2, "--sample")
