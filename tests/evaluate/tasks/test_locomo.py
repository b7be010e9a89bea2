from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from comem_cli.errors import UsageError
from comem_cli.evaluate.score import SCORERS
from comem_cli.evaluate.tasks.locomo import Locomo
from tests.evaluate.tasks.benchmark_files import context, evidence_texts, user_data, write_json

REAL = "locomo_two_conversations.json"


def conversation(name: str, qa: list[dict[str, Any]]) -> dict[str, Any]:
    talk = {
        "speaker_a": "Ann",
        "session_10_date_time": "noon on 2 May, 2023",
        "session_10": [
            {"speaker": "Bob", "dia_id": "D10:1", "text": 'I said "no".', "blip_caption": "a photo of a cat"}
        ],
        "session_2_date_time": "1 pm on 1 May, 2023",
        "session_2": [
            {"speaker": "Ann", "dia_id": "D2:1", "text": "Hi é!"},
            {"speaker": "Bob", "dia_id": "D2:2", "text": "Hi!"},
        ],
        "session_11_date_time": "never held",
    }
    return {"sample_id": name, "conversation": talk, "qa": qa}


def question(category: int, answer: Any, *evidence: str) -> dict[str, Any]:
    key = "adversarial_answer" if category == 5 else "answer"
    return {"question": "When? ", "category": category, key: answer, "evidence": list(evidence)}


def load(folder: Path, *qa: dict[str, Any]) -> Any:
    write_json(folder / "locomo10.json", [conversation("conv-1", list(qa)), conversation("conv-2", list(qa))])
    return Locomo().cell(context(folder))


def test_a_session_is_a_document_and_evidence_is_its_turns(tmp_path: Path) -> None:
    cell = load(tmp_path, question(1, "May", "D10:1", "D2:2", "D2:2"))
    one = cell.examples[0]
    assert [(document.name, document.text) for document in one.documents] == [
        ("session_02.txt", 'DATE: 1 pm on 1 May, 2023\nCONVERSATION:\nAnn said, "Hi é!"\nBob said, "Hi!"\n'),
        (
            "session_10.txt",
            'DATE: noon on 2 May, 2023\nCONVERSATION:\nBob said, "I said "no"." and shared a photo of a cat.\n',
        ),
    ]
    assert evidence_texts(one) == ['Bob said, "I said "no"." and shared a photo of a cat.', 'Bob said, "Hi!"']
    assert (one.id, one.group, one.category, one.question) == ("conv-1:000", "conv-1", "1", "When?")
    assert [example.group for example in cell.examples] == ["conv-1", "conv-2"]
    assert cell.scorer in SCORERS


def test_prompts_answers_and_categories(tmp_path: Path) -> None:
    cell = load(
        tmp_path, question(2, 2022, "D2:1"), question(5, "the trap", "D2:1") | {"answer": "No"}, question(3, "a; b")
    )
    temporal, adversarial, opened = cell.examples[:3]
    assert temporal.answers == ("2022",)
    assert temporal.prompt.endswith(
        "Question: When? Use DATE of CONVERSATION to answer with an approximate date. Short answer:"
    )
    assert (adversarial.answers, adversarial.category) == (("the trap",), "5")
    assert adversarial.prompt.endswith("whenever possible.\n\nQuestion: When? Short answer:")
    assert "trap" not in adversarial.prompt
    assert (opened.answers, opened.evidence) == (("a; b",), ())


def test_evidence_with_an_id_of_no_turn_is_unknown_and_counted(tmp_path: Path) -> None:
    cell = load(tmp_path, question(4, "x", "D2:1", "D2:1; D2:2"), question(4, "y", "D2:1"))
    assert [len(one.evidence) for one in cell.examples] == [0, 1, 0, 1]
    assert cell.provenance["evidence ids that name no turn"] == "2"


@pytest.mark.parametrize("wrong", [{"category": 6}, {"category": 1, "adversarial_answer": "x", "answer": None}])
def test_a_wrong_question_is_refused_by_file(tmp_path: Path, wrong: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=r"locomo10\.json is not what LoCoMo holds"):
        load(tmp_path, question(1, "x") | wrong)


def test_two_turns_of_one_id_are_refused(tmp_path: Path) -> None:
    given = conversation("conv-1", [question(1, "x")])
    given["conversation"]["session_2"][1]["dia_id"] = "D2:1"
    write_json(tmp_path / "locomo10.json", [given])
    with pytest.raises(UsageError, match="two turns have the id D2:1"):
        Locomo().cell(context(tmp_path))


def test_the_two_conversations_hold_their_questions_turns_and_evidence() -> None:
    data = user_data(REAL)
    raw = json.loads((data / REAL).read_text(encoding="utf-8"))
    cell = Locomo().cell(context(data))
    counts = Counter((one.group, one.category) for one in cell.examples)
    assert [counts["conv-26", category] for category in "12345"] == [32, 37, 13, 70, 47]
    assert [counts["conv-30", category] for category in "12345"] == [11, 26, 0, 44, 24]
    assert [len(one.documents) for one in (cell.examples[0], cell.examples[-1])] == [19, 19]
    assert cell.provenance["evidence ids that name no turn"] == "1"
    assert sum(not one.evidence for one in cell.examples) == 3, "two questions without any, one with a malformed id"
    turns = {
        (one["sample_id"], turn["dia_id"]): turn
        for one in raw
        for name, session in one["conversation"].items()
        if isinstance(session, list)
        for turn in session
    }
    assert len(turns) == 419 + 369
    questions = {f"{one['sample_id']}:{n:03d}": given for one in raw for n, given in enumerate(one["qa"])}
    for one in cell.examples:
        named = [turns.get((one.group, name)) for name in questions[one.id]["evidence"]]
        for text, turn in zip(evidence_texts(one), named, strict=False):
            assert turn
            assert text.startswith(f'{turn["speaker"]} said, "{turn["text"]}"')
            assert ("blip_caption" in turn) == text.endswith(f" and shared {turn.get('blip_caption')}.")
