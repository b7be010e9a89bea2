"""Score RULER: gold strings contained in the cleaned prediction, without regard to case.

Cleaned: blanks at both ends off, each control character below U+0020 a line feed, blanks off again. Source: RULER,
scripts/eval (`postprocess_pred`, `string_match_all`, `string_match_part`); there scores are percent, here 0 to 1.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from comem_cli.evaluate.scorers.text import answers_of
from comem_cli.evaluate.task import Example

_CONTROL = re.compile(r"[\x00-\x1f]")


def clean(prediction: str) -> str:
    """Return the prediction as RULER compares it."""
    return _CONTROL.sub("\n", prediction.strip()).strip()


@dataclass(frozen=True)
class StringMatch:
    """Score the share of gold strings that are contained, or with `every` False 1 where any is.

    The share gives partial credit: four of five variables found are 0.8.
    """

    every: bool = True

    def score(self, prediction: str, example: Example) -> float:
        """Return 0 to 1."""
        text = clean(prediction).lower()
        found = [gold.lower() in text for gold in answers_of(example)]
        return sum(found) / len(found) if self.every else float(any(found))

    def settled(self, prediction: str, example: Example) -> bool:
        """Return True once the score is 1 whatever letter follows.

        Lower case of a last capital sigma is another letter at the end of a word than within it, so both must match.
        """
        text = clean(prediction)
        ends = text.lower(), f"{text}a".lower()[:-1]
        golds = [gold.lower() for gold in answers_of(example)]
        return all((all if self.every else any)(gold in end for gold in golds) for end in ends)
