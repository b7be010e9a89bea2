"""Find a scorer by the name that a task's cell gives.

A scorer compares a prediction with an example: `score` in [0, 1], and `settled`, True once no further text can change
the score, so that decoding may stop. Where `settled` is False nothing is promised. A property test extends settled
predictions of every scorer to check that.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Protocol

from comem_cli.errors import UsageError
from comem_cli.evaluate.scorers.babilong import GIVING, PLACES, OnlyLabel
from comem_cli.evaluate.scorers.locomo import LocomoContains, LocomoF1
from comem_cli.evaluate.scorers.longeval import LastInteger
from comem_cli.evaluate.scorers.ruler import StringMatch
from comem_cli.evaluate.scorers.text import AnswerContained, ExactMatch, QaF1
from comem_cli.evaluate.task import Example


class Scorer(Protocol):
    """Compares predictions with gold answers: a frozen dataclass, the same on every run."""

    def score(self, prediction: str, example: Example) -> float:
        """Return 0 (wrong) to 1 (right). Raises UsageError (2) for an example that the rule cannot judge."""
        ...

    def settled(self, prediction: str, example: Example) -> bool:
        """Return True only if score(prediction + any text) is score(prediction)."""
        ...


SCORERS: Mapping[str, Scorer] = MappingProxyType(
    {
        "answer_contained": AnswerContained(),
        "babilong_qa1": OnlyLabel(PLACES),
        "babilong_qa2": OnlyLabel(PLACES),
        "babilong_qa5": OnlyLabel(GIVING),
        "exact_match": ExactMatch(),
        "locomo_contains": LocomoContains(),
        "locomo_f1": LocomoF1(),
        "locomo_f1_paper": LocomoF1(paper=True),
        "longeval_last_integer": LastInteger(),
        "qa_f1": QaF1(),
        "string_match_all": StringMatch(),
        "string_match_part": StringMatch(every=False),
    }
)


def scorer(name: str) -> Scorer:
    """Return the scorer of that name; raises UsageError (2) that lists those there are."""
    if name not in SCORERS:
        raise UsageError(f"there is no scorer {name!r}", f"name one of {', '.join(SCORERS)}")
    return SCORERS[name]
