"""`comem ingest`: touches only what changed, says what it does, and writes nothing that was not asked for."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.commands.cli import World, residuals, rows, state, write_documents

STORE = "stores/docs"
ESCAPE = "\x1b]0;owned\x07"
HEAVY = "import sys, atexit\natexit.register(lambda: print(*sorted(sys.modules), file=sys.stderr))"


def facts(store: Path) -> dict[str, str]:
    return dict(row[:2] for row in rows(store)["meta"])


def keys(store: Path) -> set[str]:
    return {row[1] for row in rows(store)["chunk"]}


def test_the_same_command_again_loads_no_model_and_changes_nothing(written: World) -> None:
    before = state(written.folder / STORE)
    done = written.python(HEAVY, "ingest", "docs")  # --split and --chunk come from the store
    assert done.code == 0, done.err
    assert "0 files read, 6 unchanged, 0 removed; 0 chunks (0 tokens) written at split 2" in done.out
    assert "loading" not in done.err
    assert {"torch", "transformers", "jnius"}.isdisjoint(done.err.split())
    assert state(written.folder / STORE) == before


def test_a_dry_run_lists_the_files_and_writes_nothing(written: World) -> None:
    before = state(written.folder / STORE)
    extra = written.folder / "more" / ("long" * 40 + ".md")
    extra.parent.mkdir()
    extra.write_text("harbour\n")
    try:
        text = written.run("ingest", "docs", "more", "--store", STORE, "--dry-run")
        events = written.run("ingest", "more", "--store", "stores/new", "--split", "0", "--dry-run", "--json")
    finally:
        shutil.rmtree(extra.parent)
    assert text.out.splitlines() == ["action\tpath\treason", f"read\t{extra.name}\t"]
    assert events.lines == [
        {"type": "plan", "read": 1, "unchanged": 0, "removed": 0, "skipped": 0, "bytes": 8},
        {"type": "read", "path": extra.name},
    ]
    assert (text.code, events.code, events.err) == (0, 0, "")
    assert state(written.folder / STORE) == before
    assert not (written.folder / "stores/new").exists()


def test_only_the_changed_chunks_of_an_edited_file_are_written(world: World) -> None:
    docs = write_documents(world.folder / "docs", 2, lines=40)
    store = world.folder / STORE
    assert world.run("ingest", "docs", "--split", "2", "--chunk", "64").code == 0
    before = residuals(store)
    edited = docs / "d001.md"
    text = edited.read_text()
    edited.write_text(text[: len(text) // 2] + " storm" + text[len(text) // 2 :])
    (docs / "d000.md").rename(docs / "moved.md")
    done = world.run("ingest", "docs", "--json")
    assert done.code == 0, done.err
    summary = done.lines[-1]
    after = residuals(store)
    new = after.keys() - before.keys()
    assert (summary["files"], summary["removed"], summary["split"]) == (2, 1, 2)
    assert summary["written_chunks"] == len(new)
    assert 0 < len(new) < summary["chunks"] / 2  # neither the moved file nor the chunks before the edit
    assert all(after[key] == before[key] for key in after.keys() & before.keys())
    assert summary["indexed_chunks"] == len(after)
    names = {os.fsdecode(row[2]) for row in rows(store)["document"]}
    assert names == {"d001.md", "moved.md"}


def test_a_vanished_file_is_removed_and_most_of_a_store_only_with_yes(
    tmp_path: Path, light: Callable[[Path], World]
) -> None:
    world = light(tmp_path)
    store, docs = world.folder / STORE, world.folder / "docs"
    (docs / "d000.md").unlink()
    assert "1 removed" in world.run("ingest", "docs").out
    before = state(store)
    for path in docs.iterdir():
        path.unlink()
    (docs / "new.md").write_text("harbour\n")
    world.run("ingest", "docs").failed(2, "2 of the store's 2 documents are gone", "with --yes")
    assert state(store) == before
    assert world.run("ingest", "docs", "--yes").code == 0
    assert [row[2] for row in rows(store)["document"]] == [b"new.md"]
    (docs / "new.md").write_text("")  # nothing is left, and no index holds a term of it
    assert world.run("ingest", "docs", "--yes").code == 0
    assert not rows(store)["document"] and not list((store / "index").iterdir())
    world.run("ask", STORE, "harbour").failed(15, "no BM25 index")


def test_the_events_of_an_ingest_in_order(world: World) -> None:
    docs = write_documents(world.folder / "docs", 3)
    (docs / "image.png").write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(100))
    (docs / "bad.txt").write_bytes(b"harbour " * 100 + b"\xff\xfe\x80" + "\u00e9 ".encode() * 100)
    done = world.run("ingest", "docs", "--split", "0", "--chunk", "64", "--json", "--no-index")
    assert done.code == 3
    events = done.lines
    types = [event["type"] for event in events]
    assert types[0] == "plan"
    assert types[-1] == "summary"
    assert set(types[1:-1]) == {"skip", "chunk_batch"}
    plan, summary = events[0], events[-1]
    assert (plan["read"], plan["unchanged"], plan["removed"]) == (5, 0, 0)
    assert plan["bytes"] == sum(path.stat().st_size for path in docs.iterdir())
    skips = {event["path"]: event for event in events if event["type"] == "skip"}
    assert {name: skip["failed"] for name, skip in skips.items()} == {"image.png": False, "bad.txt": True}
    assert all({"reason", "detail", "root"} <= set(skip) for skip in skips.values())
    batches = [event for event in events if event["type"] == "chunk_batch"]
    assert sum(event["chunks"] for event in batches) == summary["written_chunks"] == len(keys(world.folder / STORE))
    assert (summary["files"], summary["skipped"], summary["failed"]) == (3, 2, 1)
    assert (summary["store"], summary["split"], summary["indexed_chunks"]) == (STORE, 0, None)
    (error,) = [json.loads(line) for line in done.err.splitlines()]
    assert (error["exit_code"], error["hint"]) == (3, "mend or remove them, then run the same command again")


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> World:
    """A store of two equal files whose names and text carry terminal escapes, and one name that is no UTF-8."""
    world = World(tmp_path_factory.mktemp("hostile"), tiny_model)
    docs = world.folder / "docs"
    docs.mkdir()
    for name in (f"a{ESCAPE}\n.md", "b.md"):
        (docs / name).write_text(f"harbour {ESCAPE} master of the ledger\n")
    Path(os.fsdecode(os.fsencode(docs) + b"/c\xff.md")).write_text("pilots\n")
    Path(os.fsdecode(os.fsencode(docs) + b"/d\x1b\xff.png")).write_bytes(b"\x89PNG\r\n\x1a\n")
    done = world.run("ingest", "docs", "--split", "0")
    assert done.code == 0, done.err
    assert "\x1b" not in done.out + done.err
    return world


def test_escapes_in_names_reach_no_terminal_and_break_no_line(hostile: World) -> None:
    plan = hostile.run("ingest", "docs", "--store", "stores/new", "--split", "0", "--dry-run")
    assert plan.code == 0, plan.err
    assert "\x1b" not in plan.out
    assert [line.split("\t")[0] for line in plan.out.splitlines()] == ["action", "read", "read", "read", "read"]
    assert "a\\x1b]0;owned\\x07\\n.md" in plan.out
    assert "c\\udcff.md" in plan.out


def test_a_duplicate_is_cited_at_both_its_places(hostile: World) -> None:
    assert len(keys(hostile.folder / STORE)) == 2
    done = hostile.run("ask", STORE, "harbour ledger", "--top-k", "1", "--max-new-tokens", "2")
    assert done.code == 0, done.err
    citation = done.out.splitlines()[-1]
    assert citation.startswith("[1] a\\x1b]0;owned\\x07\\n.md:1-1  ")
    assert citation.endswith("  also b.md:1-1")
    assert "\x1b" not in done.out + done.err


def test_an_old_index_that_a_killed_run_left_goes_with_the_next_ingest_that_changes_nothing(
    copied: World, written: World
) -> None:
    index = copied.folder / STORE / "index"
    (named,) = index.iterdir()
    for other in ("0" * 32, ".x.building"):
        shutil.copytree(named, index / other)
    done = copied.run("ingest", written.folder / "docs", "--store", STORE)
    assert done.code == 0 and "6 unchanged" in done.out
    assert list(index.iterdir()) == [named]
