"""Read CORRECT or WRONG out of what a judge replied, and count verdicts.

The paper (B.2): a reply begins with the word; else a vote of the words in it; else it is wrong. Here a reply that says
both or neither is no verdict, so that it can be asked for again and counted.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass

CORRECT = "CORRECT"
WRONG = "WRONG"
LABELS = (CORRECT, WRONG)
_FIRST = re.compile(rf"[\s*_#\"'`]*({CORRECT}|{WRONG})\b(?!\W*(?:or|/)\W*(?:{CORRECT}|{WRONG})\b)")
_NEGATED = re.compile(r"(?:\bnot|n['’]t) (?:\w+ )?correct\b|\bincorrect\b")


@dataclass(frozen=True)
class Judgement:
    """Hold one verdict.

    label: CORRECT or WRONG. raw: the reply as it came, the last one where several were asked for. attempts: requests
    sent, 0 where a local rule decided. failed: there was no verdict and WRONG stands for it; reason says why.
    """

    label: str
    raw: str
    attempts: int
    failed: bool = False
    reason: str = ""

    @property
    def score(self) -> float:
        """Return 1 for CORRECT, else 0."""
        return float(self.label == CORRECT)


@dataclass(frozen=True)
class Tally:
    """Count verdicts; `failed` are among the wrong ones and say how far the accuracy can be trusted."""

    n: int
    correct: int
    failed: int

    @property
    def accuracy(self) -> float:
        """Return the share of correct ones, in [0, 1]; ValueError without any."""
        if not self.n:
            raise ValueError("nothing was judged")
        return self.correct / self.n


def tally(judgements: Iterable[Judgement]) -> Tally:
    """Count judgements."""
    all_of_them = list(judgements)
    correct = sum(one.label == CORRECT for one in all_of_them)
    return Tally(len(all_of_them), correct, sum(one.failed for one in all_of_them))


def read_verdict(reply: str) -> str | None:
    """Return CORRECT or WRONG, or None where a reply says neither or both.

    In this order: the first word, in capitals; the "label" of a JSON object; whichever word stands in it at all, where
    "incorrect" and "not correct" are votes for WRONG.
    """
    if first := _FIRST.match(reply):
        return first[1]
    given = _object(reply)
    if given is not None:
        label = given.get("label")
        return label.strip().upper() if isinstance(label, str) and label.strip().upper() in LABELS else None
    words = _NEGATED.sub(" wrong ", reply.lower())
    said = [label for label in LABELS if re.search(rf"\b{label.lower()}\b", words)]
    return said[0] if len(said) == 1 else None


def _object(reply: str) -> dict[str, object] | None:
    """Return the JSON object in a reply, None where there is none."""
    start, end = reply.find("{"), reply.rfind("}")
    try:
        given = json.loads(reply[start : end + 1]) if 0 <= start < end else None
    except (ValueError, RecursionError):  # braces of something else
        return None
    return given if isinstance(given, dict) else None
