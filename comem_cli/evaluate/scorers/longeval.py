"""Score LongEval lines: the last number of the prediction must be the expected one.

A model that goes on to write other lines is wrong by this rule, even where it began with the right number. Source:
LongChat, longeval/utils.py: the last match of `\\d+`, compared as an integer.
"""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass

from comem_cli.evaluate.scorers.text import answers_of
from comem_cli.evaluate.task import Example

_NUMBER = re.compile(r"\d+")


@dataclass(frozen=True)
class LastInteger:
    """Score 1 where the last run of decimal digits equals a gold number; leading zeros do not count."""

    def score(self, prediction: str, example: Example) -> float:
        """Return 0 or 1; 0 for a prediction without a digit. Raises ValueError for a gold answer that is no number."""
        golds = {_plain(gold) for gold in answers_of(example)}
        numbers = _NUMBER.findall(prediction)
        return float(bool(numbers) and _plain(numbers[-1]) in golds)

    def settled(self, prediction: str, example: Example) -> bool:
        """Return False: a further digit always changes the last number."""
        return False


def _plain(digits: str) -> str:
    """Return a number in ASCII digits without leading zeros; int() would refuse more than 4,300 of them."""
    return "".join(str(unicodedata.decimal(digit)) for digit in digits).lstrip("0") or "0"
