import pytest
from hypothesis import given
from hypothesis import strategies as st

from comem_cli.evaluate.verdict import read_verdict

VERDICTS = {
    "CORRECT": "CORRECT",
    "WRONG": "WRONG",
    "\n**CORRECT**": "CORRECT",
    '"WRONG"': "WRONG",
    "CORRECT. The wording is wrong, but it means the same.": "CORRECT",
    "WRONG: the correct year is 2022": "WRONG",
    "Correct.": "CORRECT",
    "The answer is wrong.": "WRONG",
    "Verdict: CORRECT": "CORRECT",
    "That is incorrect": "WRONG",
    "It is not correct": "WRONG",
    "It isn\u2019t quite correct": "WRONG",
    "Not entirely correct; indeed wrong": "WRONG",
    '{"label": "CORRECT"}': "CORRECT",
    '```json\n{"reason": "the correct year", "label": "wrong "}\n```': "WRONG",
    '{"label": "MAYBE", "why": "correct"}': None,
    '{"correct": false}': None,
    '{"label": true}': None,
    "{broken} correct": "CORRECT",
    "[" * 50_000 + "{" + "[" * 50_000 + "}": None,
    "CORRECT or WRONG": None,
    "CORRECT / WRONG?": None,
    "The correct answer is 2022, so it is wrong": None,
    "CORRECTLY": None,
    "WRONGLY put": None,
    "": None,
    "2022": None,
}


@pytest.mark.parametrize(("reply", "verdict"), VERDICTS.items(), ids=lambda value: repr(value)[:40])
def test_a_reply_is_read(reply: str, verdict: str | None) -> None:
    assert read_verdict(reply) == verdict


@given(st.text())
def test_any_text_is_a_verdict_or_none(reply: str) -> None:
    assert read_verdict(reply) in ("CORRECT", "WRONG", None)
    assert read_verdict(f"CORRECT\n{reply}") == "CORRECT"
    assert read_verdict(f" WRONG. {reply}") == "WRONG"
