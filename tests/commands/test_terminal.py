"""On a terminal: progress, streamed answers, aligned tables that are never cut, no colour under NO_COLOR."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import termios

from comem_cli.output import sanitise
from tests.commands.cli import COMEM, FAST, QUESTION, Ran, World, rows, write_documents

STORE = "stores/docs"
COLOUR = re.compile(r"\x1b\[[0-9;]*m")


def on_terminal(world: World, *args: str, columns: int = 80) -> tuple[int, str]:
    """Run a command on a terminal of 24 lines; return its exit code and what the terminal received."""
    leader, follower = pty.openpty()
    fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    environment = {key: value for key, value in world.environment.items() if key not in {"COLUMNS", "LINES"}}
    streams = {"stdin": follower, "stdout": follower, "stderr": follower}
    process = subprocess.Popen([*COMEM, *args], cwd=world.folder, env={"TERM": "xterm"} | environment, **streams)
    os.close(follower)
    received = b""
    while True:
        try:
            piece = os.read(leader, 4096)
        except OSError:  # Linux: the last process that held the terminal has closed it
            break
        if not piece:
            break
        received += piece
    os.close(leader)
    return process.wait(), received.decode()


def test_an_ingest_shows_a_bar_and_leaves_its_result(world: World) -> None:
    write_documents(world.folder / "docs", 30)
    code, shown = on_terminal(world, "ingest", "docs", "--split", "0", "--chunk", "64", "--no-index")
    assert code == 0, shown
    assert "ingest:   0%" in shown
    assert shown.splitlines()[-1].startswith(f"{STORE}: 30 files read")


def test_an_answer_streams_without_leading_blanks_before_its_sources(written: World, answered: Ran) -> None:
    code, shown = on_terminal(written, "ask", STORE, QUESTION, *FAST)
    assert code == 0, shown
    told, _, sources = shown.replace("\r\n", "\n").partition("\n\nSources\n")
    assert told.rstrip().endswith("\n" + sanitise(answered.json["answer"]))
    assert sources.count("\n") == len(answered.json["sources"])


def test_a_table_keeps_every_character_on_a_narrow_terminal(written: World) -> None:
    code, shown = on_terminal(written, "stats", STORE, columns=40)
    assert code == 0, shown
    facts = dict(row[:2] for row in rows(written.folder / STORE)["meta"])
    packed = "".join(COLOUR.sub("", shown).split())
    assert "\u2026" not in packed
    for half in (facts["store_id"][:10], facts["store_id"][-10:]):
        assert half in packed


def test_no_color_leaves_no_escape_at_all(written: World) -> None:
    assert "\x1b" not in on_terminal(written.with_environment(NO_COLOR="1"), "stats", STORE)[1]
    assert "\x1b" not in on_terminal(written.with_environment(NO_COLOR="1"), "stats", "nosuch")[1]


def test_quiet_shows_no_bar_and_no_notes(world: World) -> None:
    write_documents(world.folder / "docs", 2)
    code, shown = on_terminal(world, "ingest", "docs", "--split", "0", "--no-index", "--quiet")
    assert (code, shown.count("\n")) == (0, 1), shown
