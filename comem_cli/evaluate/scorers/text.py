"""What short free answers are compared by: normalised words, token F1, equality, containment.

Normalised: lower case, ASCII punctuation removed, articles removed, blanks collapsed, in that order. So
"state-of-the-art" becomes one word, and typographic quotes stay. Source: `normalize_answer` and `qa_f1_score` of
LongBench, which are those of SQuAD 1.1.
"""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from comem_cli.errors import UsageError
from comem_cli.evaluate.task import Example

_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLES = re.compile(r"\b(?:a|an|the)\b")


def normalise(text: str, dropped: re.Pattern[str] = _ARTICLES) -> str:
    """Return the words of a text, joined by single blanks; `dropped` matches words that do not count."""
    return " ".join(dropped.sub(" ", text.lower().translate(_NO_PUNCTUATION)).split())


def token_f1(predicted: Sequence[str], gold: Sequence[str]) -> float:
    """Return the harmonic mean of precision and recall over two bags of tokens; 0 where they share none."""
    same = (Counter(predicted) & Counter(gold)).total()
    return 2 * same / (len(predicted) + len(gold)) if same else 0.0


def answers_of(example: Example) -> Iterable[str]:
    """Return the gold answers; raises UsageError (2) where there is none: no rule says what that would score."""
    if not example.answers:
        raise UsageError(f"example {example.id} has no answer to compare with", "name its answers in the task's file")
    return example.answers


@dataclass(frozen=True)
class QaF1:
    """Score token F1 over normalised words, the best of the gold answers (LongBench's qa_f1)."""

    def score(self, prediction: str, example: Example) -> float:
        """Return 0 to 1."""
        words = normalise(prediction).split()
        return max(token_f1(words, normalise(gold).split()) for gold in answers_of(example))

    def settled(self, prediction: str, example: Example) -> bool:
        """Return False: every further word changes the precision."""
        return False


@dataclass(frozen=True)
class ExactMatch:
    """Score 1 where the normalised prediction equals a normalised gold answer (SQuAD's exact match)."""

    def score(self, prediction: str, example: Example) -> float:
        """Return 0 or 1."""
        found = normalise(prediction)
        return float(any(found == normalise(gold) for gold in answers_of(example)))

    def settled(self, prediction: str, example: Example) -> bool:
        """Return False: a further word ends the equality, or brings it."""
        return False


@dataclass(frozen=True)
class AnswerContained:
    """Score 1 where a gold answer stands in the prediction, letter for letter but for case; a blank one never does."""

    def score(self, prediction: str, example: Example) -> float:
        """Return 0 or 1."""
        text = prediction.casefold()
        return float(any(bool(gold.strip()) and gold.casefold() in text for gold in answers_of(example)))

    def settled(self, prediction: str, example: Example) -> bool:
        """Return True once an answer is there: case folding works letter by letter, so nothing takes it away."""
        return self.score(prediction, example) == 1.0
