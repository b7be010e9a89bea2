"""`comem forget` as a user runs it: canary strings are gone from every byte, and the store answers on."""

from __future__ import annotations

import shutil
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from comem_cli.store.reader import StoreReader
from tests.commands.cli import FAST, QUESTION, World, residuals, write_documents

CANARIES = 20


def canary(number: int) -> str:
    return f"Zqx{number:02}canary{number * 7919:05}vault"


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> World:
    """44 documents, 20 of which hold a canary each, ingested with an index; not to be changed."""
    world = World(tmp_path_factory.mktemp("planted"), tiny_model)
    write_documents(world.folder / "docs", 24, lines=3)
    secret = write_documents(world.folder / "docs" / "secret", CANARIES, lines=3, seed=1)
    for number, path in enumerate(sorted(secret.iterdir())):
        path.write_text(f"{path.read_text()}The word of the day is {canary(number)}, and so it stays.\n")
        path.rename(path.with_name(f"canary-{number:02}.md"))
    done = world.run("ingest", "docs", "--split", "2", "--chunk", "256")
    assert done.code == 0, done.err
    return world


@pytest.fixture
def world(tmp_path: Path, planted: World) -> World:
    shutil.copytree(planted.folder / "stores", tmp_path / "stores")
    return World(tmp_path, planted.model)


def everything(store: Path) -> dict[str, bytes]:
    return {str(path.relative_to(store)): path.read_bytes() for path in store.rglob("*") if path.is_file()}


def own(store: Path, wanted: Callable[[str], bool]) -> dict[str, tuple[bytes, bytes]]:
    """Return the token ids and the residual of the chunks that only documents of `wanted` paths have."""
    rows = residuals(store)
    found = {}
    with StoreReader(store) as reader:
        chunks = {chunk.id: chunk for chunk in reader.iter_chunks()}
        for number, places in reader.places(chunks).items():
            if all(wanted(place.path) for place in places):
                found[chunks[number].key] = (chunks[number].ids, rows[chunks[number].key])
    return found


def test_twenty_canaries_leave_no_byte(world: World) -> None:
    store = world.folder / "stores" / "docs"
    gone, kept = (own(store, lambda path, is_secret=s: path.startswith("secret/") == is_secret) for s in (True, False))
    live = b"".join(ids for ids, _ in kept.values())
    before = everything(store)
    index = b"".join(raw for name, raw in before.items() if name.startswith("index/"))
    assert sum(canary(n).lower().encode() in index for n in range(CANARIES)) > 10  # the others share a prefix there
    assert b"secret/canary-07.md" in before["catalog.sqlite"] and len(gone) >= CANARIES

    done = world.run("forget", "stores/docs", "secret", "--json")
    assert done.code == 0, done.err
    assert len(done.json["documents"]) == CANARIES and done.json["traces"] == [] and done.json["files"] > 5
    assert done.json["indexed"] and done.json["needles"] > 500

    after = everything(store)
    raw = b"\0\0".join(after.values())
    for number in range(CANARIES):
        assert f"secret/canary-{number:02}.md".encode() not in raw
        assert canary(number).encode() not in raw and canary(number).lower().encode() not in raw
    for key, (ids, rows) in gone.items():
        tokens = struct.unpack(f"<{len(ids) // 4}I", ids)
        assert key.encode() not in raw and rows[-64:] not in raw
        for start in range(len(tokens) - 7):
            run = ids[4 * start : 4 * start + 32]
            assert run in live or run not in raw
            short = struct.pack("<8H", *tokens[start : start + 8])
            assert short not in raw
    assert {key: rows for key, (_, rows) in kept.items()}.items() <= residuals(store).items()
    assert world.run("ask", "stores/docs", QUESTION, "--json", *FAST).code == 0
    assert world.run("check", "stores/docs", "--read-data").code == 0
    assert not (store / "forget.pending").exists()


def test_no_term_of_the_forgotten_text_alone_is_left_in_the_dictionary(world: World) -> None:
    from comem_cli.select.store_index import open_store_index

    store = world.folder / "stores" / "docs"
    terms = [canary(number).lower() for number in range(CANARIES)]

    def hits() -> int:
        with StoreReader(store) as reader, open_store_index(reader) as index:
            return sum(bool(index.search([term], 1, (), 1.5, 0.75)) for term in terms)

    assert hits() == CANARIES
    assert world.run("forget", "stores/docs", "secret").code == 0
    assert hits() == 0


def test_a_dry_run_lists_what_would_go_and_changes_nothing(world: World) -> None:
    store = world.folder / "stores" / "docs"
    before = everything(store)
    done = world.run("forget", "stores/docs", "secret/canary-03.md", "nowhere.md", "--dry-run")
    assert done.code == 0
    assert done.out.splitlines() == ["action\tpath", "forget\tsecret/canary-03.md", "not found\tnowhere.md"]
    assert "1 of 44 documents" in done.err
    found = world.run("forget", "stores/docs", "secret", "--dry-run", "--json").json
    assert len(found["documents"]) == CANARIES and found["not_found"] == [] and found["residual_bytes"] > 0
    assert {name: raw for name, raw in everything(store).items() if not name.endswith(("-shm", "-wal"))} == before


def test_what_cannot_be_done_is_said_in_one_line(world: World, tmp_path: Path) -> None:
    world.run("forget", "stores/docs", "nowhere.md").failed(2, "holds no document nowhere.md")
    world.run("forget", "stores/docs").failed(2, "no document to forget")
    world.run("forget", "stores/docs", "/").failed(2, "44 of the store's 44 documents", "--yes")
    world.run("forget", "stores/none", "a").failed(10, "no store at stores/none")


def test_while_somebody_reads_the_store_it_says_that_bytes_are_left_and_later_finishes(world: World) -> None:
    store = world.folder / "stores" / "docs"
    with StoreReader(store) as reader:
        done = world.run("forget", "stores/docs", "secret/canary-05.md")
        done_lines = done.out.splitlines()
        assert done.code == 3 and "comem forget stores/docs" in done.err
        assert len(done_lines) == 1 and "traces" in done_lines[0] and " 0 traces" not in done_lines[0]
        assert any(document.name == "secret/canary-05.md" for document in reader.documents())
        assert world.run("check", "stores/docs").code == 0
    done = world.run("forget", "stores/docs")
    assert done.code == 0 and done.out.endswith(": 0 traces\n") and "1 documents forgotten" in done.out
    assert b"canary-05.md" not in b"".join(everything(store).values())


def test_a_source_that_is_still_there_comes_back_with_the_next_ingest(world: World, planted: World) -> None:
    assert world.run("forget", "stores/docs", "secret/canary-05.md", "--quiet").code == 0
    docs = str(planted.folder / "docs")
    done = world.run("ingest", docs, "--store", "stores/docs", "--dry-run")
    assert "read\tsecret/canary-05.md" in done.out
