"""LoCoMo: questions about long conversations of two people over many sessions. CC BY-NC 4.0: evaluation only.

A conversation is a corpus and a group; a session is a document: its date, then a turn a line, with the caption where an
image was shared. Evidence: the turns that `dia_id` names; where an id names no turn, the evidence of that question is
unknown, and counted. Categories "1" to "5" are LoCoMo's. A question of category 5 has no answer in the conversation: it
is asked as the others are, openly, where LoCoMo's own run offers two choices; its one "answer" is the trap, and the
scorers look only for a refusal. Turn lines and prompt are LoCoMo's wording (https://github.com/snap-research/LoCoMo).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from comem_cli.evaluate.task import Cell, Document, Example, Span, TaskContext
from comem_cli.evaluate.tasks import qa
from comem_cli.evaluate.tasks.data_files import Source, read_json, take
from comem_cli.evaluate.tasks.spec import Builder, Options

LOCOMO = Source(
    "LoCoMo",
    ("locomo10.json", "locomo/locomo10.json", "data/locomo10.json", "locomo_two_conversations.json"),
    "https://github.com/snap-research/LoCoMo",
    "CC BY-NC 4.0: name the source, no commercial use",
)
PROMPT = (
    "\n\nBased on the above context, write an answer in the form of a short phrase for the following question. "
    "Answer with exact words from the context whenever possible.\n\nQuestion: {question} Short answer:"
)
DATE_HINT = " Use DATE of CONVERSATION to answer with an approximate date."
SCORERS = ("locomo_f1", "locomo_f1_paper", "locomo_contains")  # they differ in category 5; the last in 1 to 4 too
TEMPORAL, ADVERSARIAL = "2", "5"
_CATEGORIES = ("1", "2", "3", "4", ADVERSARIAL)
_SESSION = re.compile(r"session_(\d+)")


@dataclass(frozen=True)
class Locomo:
    """Load the questions of all conversations in the file; scorer: one of SCORERS."""

    scorer: str = SCORERS[0]

    def cell(self, context: TaskContext) -> Cell:
        """Load the examples; raises UsageError (2) where the file is missing or is no LoCoMo file."""
        path = LOCOMO.find(context)
        given = read_json(path)
        with LOCOMO.reading(path):
            conversations = [_Conversation(one) for one in given]
            examples = [example for one in conversations for example in one.examples()]
        return Cell(
            task="locomo",
            label="" if self.scorer == SCORERS[0] else self.scorer,
            cohort=f"locomo/comem-1 file={path.name} category5=open",
            scorer=self.scorer,
            max_new_tokens=qa.QA_NEW_TOKENS,
            examples=take(examples, context.n, context.seed),
            stop=qa.QA_STOP,
            provenance=LOCOMO.provenance(path)
            | {
                "questions": str(len(examples)),
                "conversations": str(len(conversations)),
                "evidence ids that name no turn": str(sum(one.malformed for one in conversations)),
                "seed": str(context.seed),
            },
        )


class _Conversation:
    """Hold one conversation: its documents, and where each turn stands in them."""

    def __init__(self, given: dict[str, Any]) -> None:
        self.name = str(given["sample_id"])
        self._questions = given["qa"]
        self._turns: dict[str, Span] = {}
        talk = given["conversation"]
        sessions = sorted(int(found[1]) for found in map(_SESSION.fullmatch, talk) if found)
        self._documents = tuple(self._session(talk, number) for number in sessions if talk[f"session_{number}"])
        self.malformed = 0

    def examples(self) -> list[Example]:
        """Make its examples and count the evidence ids that name no turn."""
        return [self._example(number, one) for number, one in enumerate(self._questions)]

    def _session(self, talk: dict[str, Any], number: int) -> Document:
        name = f"session_{number:02d}.txt"
        text = f"DATE: {talk[f'session_{number}_date_time']}\nCONVERSATION:\n"
        for turn in talk[f"session_{number}"]:
            line = _turn(turn)
            if turn["dia_id"] in self._turns:
                raise ValueError(f"two turns have the id {turn['dia_id']}")
            self._turns[turn["dia_id"]] = Span(name, len(text), len(text) + len(line))
            text += f"{line}\n"
        return Document(name, text)

    def _example(self, number: int, given: dict[str, Any]) -> Example:
        category = str(given["category"])
        if category not in _CATEGORIES:
            raise ValueError(f"category {category} of question {number} of {self.name}")
        lost = sum(one not in self._turns for one in given["evidence"])
        self.malformed += lost
        question = given["question"].strip()
        answer = given["adversarial_answer"] if category == ADVERSARIAL else given["answer"]
        if not isinstance(answer, str | int):
            raise ValueError(f"question {number} of {self.name} has no answer")
        return Example(
            id=f"{self.name}:{number:03d}",
            documents=self._documents,
            question=question,
            prompt=PROMPT.format(question=question + (DATE_HINT if category == TEMPORAL else "")),
            answers=(str(answer),),
            evidence=() if lost else tuple(self._turns[one] for one in dict.fromkeys(given["evidence"])),
            group=self.name,
            category=category,
        )


def _turn(given: dict[str, Any]) -> str:
    shared = f" and shared {given['blip_caption']}." if given.get("blip_caption") else ""
    return f'{given["speaker"]} said, "{given["text"]}"{shared}'


def _build(options: Options) -> Locomo:
    return Locomo(options.choice("scorer", SCORERS))


LOCOMO_TASKS: dict[str, Builder] = {"locomo": _build}
