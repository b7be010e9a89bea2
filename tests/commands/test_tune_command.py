"""`comem tune`, as a user runs it."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest

from tests.commands.cli import World, state, write_documents

SMALL = (
    *("--split", "2,4", "--mode", "chunk,document", "--chunks", "2", "--packs", "2", "--needles", "2"),
    *("--repeat", "2", "--generate", "2", "--adapter", "none", "--device", "cpu", "--dtype", "fp32"),
)
ARMS = [f"comem:j={j},mode={mode}" for j in (2, 4) for mode in ("chunk", "document")]


def test_a_store_is_measured_and_not_changed(written: World, tmp_path: Path) -> None:
    store = written.folder / "stores/docs"
    before = state(store)
    tune = ("tune", "stores/docs", *SMALL, "--needles", "0", "--report", str(tmp_path / "r.md"))
    ran = written.run(*tune, "--json", "--loss-budget", "10", "--questions", "1000000")
    assert ran.code == 0, ran.err
    assert not ran.err
    found = ran.json
    assert [row["arm"] for row in found["rows"]] == ARMS
    assert all(row["copying"] is None and row["lm_tax"]["n"] == 2 and row["in_budget"] for row in found["rows"])
    assert found["recommendation"]["verdict"] in ("store", "replay is cheaper")
    assert found["budget"]["questions"] == 1_000_000
    docs = str(written.folder / "docs")  # what to ingest again, not the store
    assert found["roots"] == [docs]
    if found["recommendation"]["verdict"] == "store":
        assert f"comem ingest {docs} --split" in found["recommendation"]["sentence"]
    assert "| j=2 chunk |" in (tmp_path / "r.md").read_text()
    assert state(store) == before


def test_files_are_measured_and_rows_are_tab_separated_in_a_pipe(world: World) -> None:
    write_documents(world.folder / "docs", 2, lines=24)
    (world.folder / "docs" / "b.md").write_bytes(b"\x00\xff" * 40)  # no text
    ran = world.run("tune", "docs", *SMALL, "--chunk", "128", "--report", "r.svg", "--loss-budget", "0")
    assert ran.code == 0, ran.err
    header, *rows = [line.split("\t") for line in ran.out.splitlines()]
    assert [dict(zip(header, row, strict=True))["arm"] for row in rows] == ARMS
    assert "comem ingest docs" in ran.err or "comem distill docs" in ran.err
    assert (world.folder / "r.svg").read_text().startswith("<svg")
    assert sorted(path.name for path in world.folder.iterdir()) == ["docs", "r.svg"]


def test_ctrl_c_ends_it_cleanly(written: World) -> None:
    process = written.start("tune", "stores/docs", *SMALL, "--needles", "0", "--repeat", "100000")
    assert process.stderr is not None
    deadline = time.monotonic() + 120
    while "timing" not in process.stderr.readline():
        assert process.poll() is None and time.monotonic() < deadline
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (130, "")
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["absent"], 2, "absent"),
        (["stores/docs", "docs"], 2, "cannot be mixed"),
        (["stores/docs", "--split", "x"], 2, "no list of numbers"),
        (["stores/docs", "--split", "9"], 2, "outside 1..6"),
        (["stores/docs", "--mode", "odd"], 2, "unknown mode 'odd'"),
        (["stores/docs", "--chunk", "32"], 2, "not 32"),
        (["stores/docs", "--report", "r.pdf"], 2, ".md or .svg"),
        (["stores/docs", "--adapter", "docs"], 2, "is no adapter"),
        (["stores/docs", "--chunks", "90"], 2, "no 90 chunks"),
    ],
)
def test_wrong_arguments_end_in_one_line(written: World, arguments: list[str], code: int, said: str) -> None:
    written.run("tune", *arguments).failed(code, said)
