"""One test a mode: what goes to stdout, what to stderr, and what never reaches a terminal."""

from __future__ import annotations

import json
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from comem_cli.output import Output, sanitise


@pytest.fixture
def human() -> Output:
    return Output()


def configured(**mode: bool) -> Output:
    out = Output()
    out.configure(**mode)
    return out


@given(st.text())
def test_sanitised_text_holds_no_control_but_tab_and_newline(text: str) -> None:
    safe = sanitise(text)
    assert not [letter for letter in safe if unicodedata.category(letter) == "Cc" and letter not in "\t\n"]
    assert not set(safe) & set("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
    assert len(sanitise(text, one_line=True).splitlines() or [""]) <= 1 + sum(text.count(c) for c in "\u2028\u2029")


@given(st.text(alphabet=st.characters(exclude_categories=["Cc", "Cf", "Cs"])))
def test_ordinary_text_passes_unchanged(text: str) -> None:
    assert sanitise(text) == text


def test_escapes_become_visible() -> None:
    assert sanitise("\x1b[31m\x9b\x7f\r\u202e") == "\\x1b[31m\\x9b\\x7f\\x0d\\u202e"
    assert sanitise("a\tb\nc", one_line=True) == "a\\tb\\nc"


def test_human_mode_keeps_data_and_talk_apart(human: Output, capsys: pytest.CaptureFixture[str]) -> None:
    human.text("answer \x1b[0m")
    human.piece("a")
    human.piece("b\n")
    human.table(("name", "size"), [("a\tb", 1234), ("c", None)])
    human.note("working ...")
    human.warning("odd")
    human.error("it broke\nhere", "comem stats x", 13)
    streams = capsys.readouterr()
    assert streams.out == "answer \\x1b[0m\nab\nname\tsize\na\\tb\t1234\nc\tNone\n"
    assert streams.err == "working ...\nwarning: odd\nerror: it broke\\nhere\nhint: comem stats x\n"


def test_json_mode_writes_json_to_both_streams(capsys: pytest.CaptureFixture[str]) -> None:
    out = configured(json=True)
    out.document({"answer": "\u00e9\x1b\ud800"})
    out.event({"type": "plan"})
    out.note("working ...")
    out.warning("odd")
    out.error("it broke", "comem stats x", 13)
    streams = capsys.readouterr()
    assert [json.loads(line) for line in streams.out.splitlines()] == [{"answer": "\u00e9\x1b\ud800"}, {"type": "plan"}]
    assert [json.loads(line) for line in streams.err.splitlines()] == [
        {"warning": "odd"},
        {"error": "it broke", "hint": "comem stats x", "exit_code": 13},
    ]


def test_quiet_mode_keeps_data_warnings_and_errors(capsys: pytest.CaptureFixture[str]) -> None:
    out = configured(quiet=True)
    out.text("data")
    out.note("working ...")
    out.warning("odd")
    out.error("it broke", "", 1)
    streams = capsys.readouterr()
    assert (streams.out, streams.err) == ("data\n", "warning: odd\nerror: it broke\n")


def test_progress_is_silent_off_a_terminal(human: Output, capsys: pytest.CaptureFixture[str]) -> None:
    with human.progress("ingest", 10, "B") as bar:
        bar.update(10)
    streams = capsys.readouterr()
    assert (streams.out, streams.err) == ("", "")
