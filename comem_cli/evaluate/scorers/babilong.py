"""Score BABILong: the one label of the task that the first sentence names must be the target.

The prediction in lower case counts up to its first ".", "<context>" or "<example>". Upstream also cuts at "Question",
which never occurs in lower case; that stays so here. Labels are found as substrings; those that the question contains
are left out, so a target that the question names is never right. A target with a comma and more than three letters
names several labels, all of which must be there and no other. Source: BABILong, babilong/metrics.py
(`compare_answers`, `TASK_LABELS`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from comem_cli.evaluate.scorers.text import answers_of
from comem_cli.evaluate.task import Example

PLACES = frozenset({"bathroom", "bedroom", "garden", "hallway", "kitchen", "office"})
GIVING = frozenset({"bill", "fred", "jeff", "mary", "apple", "football", "milk"})
_END = re.compile(r"\.|<context>|<example>")


@dataclass(frozen=True)
class OnlyLabel:
    """Score 1 where the prediction names the target and no other of the `labels`, which are in lower case."""

    labels: frozenset[str]

    def score(self, prediction: str, example: Example) -> float:
        """Return 0 or 1; with several gold answers, 1 where any is right."""
        sentence = _END.split(prediction.lower(), maxsplit=1)[0]
        question = example.question.lower()
        named = sorted(label for label in self.labels if label in sentence and label not in question)
        return float(any(named == _targets(gold.lower()) for gold in answers_of(example)))

    def settled(self, prediction: str, example: Example) -> bool:
        """Return True once the first sentence has ended."""
        return bool(_END.search(prediction.lower()))


def _targets(gold: str) -> list[str]:
    return sorted(gold.split(",")) if "," in gold and len(gold) > 3 else [gold]
