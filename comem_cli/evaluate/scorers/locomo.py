"""Score LoCoMo by category: F1 over Porter stems, containment, and two rules for questions without an answer.

Categories: 1 multi-hop, 2 temporal, 3 open-domain, 4 single-hop, 5 adversarial (the conversation has no answer).
Upstream's rules: commas and "and" go as well as the articles; category 1 splits prediction and gold at commas and takes
the mean over the gold parts of the best F1; category 3 takes the gold answer up to its first ";"; category 5 asks
whether the prediction says "no information available" or "not mentioned". Source: LoCoMo, task_eval/evaluation.py. The
paper's rule for category 5 is "empty or a refusal" (B.2) without its list of refusals: the one here is ours, and so is
containment over normalised text for what the paper calls substring accuracy.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from comem_cli.errors import UsageError
from comem_cli.evaluate.scorers.text import answers_of, normalise, token_f1
from comem_cli.evaluate.task import Example

if TYPE_CHECKING:
    from nltk.stem.porter import PorterStemmer

ADVERSARIAL = "5"
CATEGORIES = ("1", "2", "3", "4", ADVERSARIAL)
_DROPPED = re.compile(r"\b(?:a|an|the|and)\b")
_UPSTREAM = ("no information available", "not mentioned")
_WHOLE = frozenset({"unknown", "none", "na", "no answer", "unanswerable", "unclear", "not available", "not known"})
_PHRASES = re.compile(  # open to the right, so that further text never ends a match
    r"\b(?:no (?:specific )?(?:information|mention)|not (?:mentioned|specified|stated|provided|enough information)"
    r"|(?:is|are|was|were|does|did|do)(?: not|n't) (?:mention|specif|state|provide|known)"
    r"|(?:does|do)(?: not|n't) have (?:any |enough )?information"
    r"|(?:cannot|can not|can't|could not|couldn't) be (?:determine|answer|found|infer)"
    r"|(?:cannot|can not|can't) (?:determine|answer|tell)|(?:i|we) (?:do not|don't) know|insufficient information)"
)


def refuses(prediction: str) -> bool:
    """Return whether a prediction declines to answer: a phrase that says so, or a word such as "unknown" alone."""
    return _says_so(prediction) or normalise(prediction) in _WHOLE


def _says_so(prediction: str) -> bool:
    return bool(_PHRASES.search(prediction.lower().replace("’", "'")))


def gold_answers(example: Example) -> list[str]:
    """Return what the prediction is compared with; raises UsageError (2) for a category that LoCoMo does not have."""
    if example.category not in CATEGORIES:
        raise UsageError(
            f"example {example.id} has category {example.category!r}; LoCoMo has {', '.join(CATEGORIES)}",
            "name one of them in the task's file",
        )
    cut = example.category == "3"
    return [gold.split(";")[0].strip() if cut else gold for gold in answers_of(example)]


@dataclass(frozen=True)
class LocomoF1:
    """Score F1 over stems; category 5 by upstream's two phrases, or with `paper` by "empty or a refusal"."""

    paper: bool = False

    def score(self, prediction: str, example: Example) -> float:
        """Return 0 to 1; category 5: 0 or 1, and the gold answer, which is the trap, is not looked at.

        Raises UsageError (2) where nltk is not installed, for a category that is none, and without an answer.
        """
        if example.category == ADVERSARIAL:
            return abstains(prediction) if self.paper else float(_upstream_refusal(prediction))
        f1 = _multi_f1 if example.category == "1" else _stem_f1
        return max(f1(prediction, gold) for gold in gold_answers(example))

    def settled(self, prediction: str, example: Example) -> bool:
        """Return True once a question of category 5 is refused; F1 is never settled."""
        return example.category == ADVERSARIAL and (_says_so if self.paper else _upstream_refusal)(prediction)


@dataclass(frozen=True)
class LocomoContains:
    """Score 1 where the normalised gold answer is a substring of the prediction; category 5 by the paper's rule."""

    def score(self, prediction: str, example: Example) -> float:
        """Return 0 or 1."""
        if example.category == ADVERSARIAL:
            return abstains(prediction)
        return float(_contains(prediction, example))

    def settled(self, prediction: str, example: Example) -> bool:
        """Return True once the answer stands in finished words: "th" may yet become an article and go."""
        if example.category == ADVERSARIAL:
            return _says_so(prediction)
        return _contains(_finished_words(prediction), example)


def abstains(prediction: str) -> float:
    """Return 1 for a prediction that is blank or refuses, else 0: the paper's rule for category 5."""
    return float(not prediction.strip() or refuses(prediction))


def _upstream_refusal(prediction: str) -> bool:
    return any(phrase in prediction.lower() for phrase in _UPSTREAM)


def _contains(prediction: str, example: Example) -> bool:
    text = normalise(prediction, _DROPPED)
    golds = [normalise(gold, _DROPPED) for gold in gold_answers(example)]
    return any(bool(gold) and gold in text for gold in golds)


def _finished_words(prediction: str) -> str:
    """Return the words that a blank follows; the dot stands for the beginning of what may come."""
    return " ".join(f"{prediction}.".split()[:-1])


def _multi_f1(prediction: str, gold: str) -> float:
    parts, predictions = gold.split(","), prediction.split(",")
    return sum(max(_stem_f1(one, part) for one in predictions) for part in parts) / len(parts)


def _stem_f1(prediction: str, gold: str) -> float:
    return token_f1(_stems(prediction), _stems(gold))


def _stems(text: str) -> list[str]:
    return [_stemmer().stem(word) for word in normalise(text, _DROPPED).split()]


@cache
def _stemmer() -> PorterStemmer:
    try:
        from nltk.stem.porter import PorterStemmer  # takes a second: only who scores LoCoMo pays
    except ImportError as error:
        raise UsageError("the stems of LoCoMo's F1 need nltk", "run: pip install nltk") from error
    return PorterStemmer()
