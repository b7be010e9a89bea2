"""Properties of the scorers, and references of their own for F1, containment and LongEval."""

from __future__ import annotations

import itertools
import re
import sys
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from comem_cli.errors import UsageError
from comem_cli.evaluate.score import SCORERS, scorer
from comem_cli.evaluate.scorers import locomo
from comem_cli.evaluate.scorers.locomo import refuses
from comem_cli.evaluate.task import Example
from tests.evaluate.golden_scores import GOLDEN

# Pieces that matter to some rule; the rest of Unicode comes in between.
PIECES = [
    *("the", "a", "an", "and", "th", "an d", "dog", "Dogs", "running", "runner", "kitchen", "OFFICE", "Jeff", "milk"),
    *("7391425", "2416", "0", "ΟΔΟΣ", "Σ", "σ", "ς", "İ", "ß", "K", "é", "e", "\u0301", "’", "“", "n't", "unknown"),
    *(",", ";", ".", "<context>", "<example>", "Question", "-", "'", " ", "  ", "\n", "\t", "\x00", "\x1f", "\u00a0"),
    *("not mentioned", "no information available", "does not mention", "cannot be determined", "I don't know"),
]
texts = st.lists(st.sampled_from(PIECES) | st.text(max_size=3), max_size=6).map("".join)
NAMES = sorted(SCORERS)


LABELS = ["kitchen", "office", "jeff", "milk,jeff"]
GOLDS = ["dog", "th", "an d", "ΟΔΟΣ", "ος", "οσ", "ß", "e", "x\ny", "not mentioned"]
BEGINNINGS = [
    "dog",
    "th",
    "an d",
    "ΟΔΟΣ",
    "οσ",
    "STRASSE",
    "e",
    "x\x00y",
    "not mentioned",
    "unknown",
    "kitchen",
    "Jeff",
    "milk",
]
SEPARATORS = ["", " ", ".", ",", "\n", "<context>"]
ENDINGS = ["e", "s", "Α", "\u0301", "’", ".", "<context>", "office", " Jeff", " and", " nothing", "7", "\x1f"]


@pytest.mark.parametrize("name", NAMES)
def test_no_ending_changes_a_settled_score(name: str) -> None:
    golds = LABELS if name.startswith("babilong") else ["2416", "7"] if name.startswith("longeval") else GOLDS
    predictions = ["".join(parts) for parts in itertools.product(BEGINNINGS, SEPARATORS, ["", *BEGINNINGS])]
    rule = SCORERS[name]
    for gold, category in itertools.product(golds, "125" if name.startswith("locomo") else "4"):
        example = Example("one", (), "", "", (gold,), category=category)
        for prediction in predictions:
            if rule.settled(prediction, example):
                score = rule.score(prediction, example)
                assert all(rule.score(prediction + ending, example) == score for ending in ENDINGS)


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_a_settled_score_stays_whatever_follows(name: str, data: st.DataObject) -> None:
    golds = st.from_regex(r"[0-9]{1,6}", fullmatch=True) if name.startswith("longeval") else texts
    answers = tuple(data.draw(st.lists(golds, min_size=1, max_size=2)))
    example = Example("one", (), data.draw(texts), "", answers, category=data.draw(st.sampled_from("12345")))
    prediction, further = (
        data.draw(texts) + data.draw(st.sampled_from(["", answers[0]])) + data.draw(texts),
        data.draw(texts),
    )
    rule = SCORERS[name]
    score = rule.score(prediction, example)
    assert 0.0 <= score <= 1.0
    if rule.settled(prediction, example):
        assert rule.score(prediction + further, example) == score
        assert rule.settled(prediction + further, example)


@pytest.mark.parametrize("golden", [one for one in GOLDEN if one.settled], ids=lambda one: f"{one.scorer}-{one.case}")
@settings(max_examples=30, deadline=None)
@given(further=texts)
def test_settled_golden_cases_stay(golden, further: str) -> None:
    assert SCORERS[golden.scorer].score(golden.prediction + further, golden.example) == golden.expected


def test_most_rules_settle_on_some_case_and_the_others_never() -> None:
    settled = {one.scorer for one in GOLDEN if one.settled}
    assert settled == set(SCORERS) - {"qa_f1", "exact_match", "longeval_last_integer"}


@cache
def naive_words(text: str, dropped: frozenset[str]) -> tuple[str, ...]:
    """ASCII texts only: letters and digits of each word, in lower case."""
    kept = "".join(letter for letter in text.lower() if letter.isalnum() or letter.isspace())
    return tuple(word for word in kept.split() if word not in dropped)


def naive_f1(predicted: list[str], gold: list[str]) -> float:
    """Pair equal words off one by one."""
    left = list(gold)
    paired = 0
    for word in predicted:
        if word in left:
            left.remove(word)
            paired += 1
    if not paired:
        return 0.0
    precision, recall = paired / len(predicted), paired / len(gold)
    return 2 * precision * recall / (precision + recall)


plain = st.lists(
    st.sampled_from(["the", "An", "a", "and", "dog", "DOG", "cat.", "(cat)", "to-day", "x,y", "!", "7"]), max_size=8
).map(" ".join)


@settings(max_examples=100, deadline=None)
@given(prediction=plain, golds=st.lists(plain, min_size=1, max_size=3))
def test_qa_f1_equals_a_naive_pairing_of_words(prediction: str, golds: list[str]) -> None:
    articles = frozenset({"a", "an", "the"})
    words = list(naive_words(prediction, articles))
    expected = max(naive_f1(words, list(naive_words(gold, articles))) for gold in golds)
    example = Example("one", (), "", "", tuple(golds))
    assert SCORERS["qa_f1"].score(prediction, example) == pytest.approx(expected, abs=1e-12)


@settings(max_examples=100, deadline=None)
@given(prediction=plain, gold=plain, category=st.sampled_from(["1", "2", "3", "4"]))
def test_locomo_f1_equals_a_naive_pairing_of_stems(prediction: str, gold: str, category: str) -> None:
    from nltk.stem import PorterStemmer

    def f1(one: str, other: str) -> float:
        dropped = frozenset({"a", "an", "the", "and"})
        stems = [[PorterStemmer().stem(word) for word in naive_words(text, dropped)] for text in (one, other)]
        return naive_f1(*stems)

    parts = gold.split(",") if category == "1" else [gold]
    guesses = prediction.split(",") if category == "1" else [prediction]
    expected = sum(max(f1(guess, part) for guess in guesses) for part in parts) / len(parts)
    example = Example("one", (), "", "", (gold,), category=category)
    assert SCORERS["locomo_f1"].score(prediction, example) == pytest.approx(expected, abs=1e-12)


@settings(max_examples=100, deadline=None)
@given(prediction=plain, gold=plain)
def test_f1_and_exact_match_know_neither_case_nor_punctuation_nor_blanks(prediction: str, gold: str) -> None:
    example = Example("one", (), "", "", (gold,), category="4")
    other = f"  {re.sub(' ', ' .!? ', prediction.swapcase())}\n"
    for name in ("qa_f1", "exact_match", "locomo_f1"):
        assert SCORERS[name].score(other, example) == SCORERS[name].score(prediction, example)


@settings(max_examples=100, deadline=None)
@given(first=plain, second=plain)
def test_f1_is_symmetric_and_1_for_the_same_words(first: str, second: str) -> None:
    def score(prediction: str, gold: str) -> float:
        return SCORERS["qa_f1"].score(prediction, Example("one", (), "", "", (gold,)))

    assert score(first, second) == score(second, first)
    assert score(first, first) == float(bool(naive_words(first, frozenset({"a", "an", "the"}))))


@given(before=st.text(max_size=20), number=st.integers(0, 50_000), after=st.text(max_size=20))
def test_longeval_equals_reading_from_the_right(before: str, number: int, after: str) -> None:
    prediction, digits = f"{before}{number}{after}", ""
    for letter in reversed(prediction):
        if letter.isdecimal():
            digits = letter + digits
        elif digits:
            break
    example = Example("one", (), "", "", (str(number),))
    assert SCORERS["longeval_last_integer"].score(prediction, example) == float(int(digits) == number)


REFUSALS = [
    "There is no mention of a painting.",
    "This isn't stated in the conversation",
    "The conversation doesn’t specify it.",
    "It cannot be determined from the context",
    "We do not know",
    "N/A",
    "I can't tell.",
]
ANSWERS = ["a piano mention", "She was not available on Monday", "no", "He couldn't find his keys", "", "Notably, he"]


@pytest.mark.parametrize("text", REFUSALS)
def test_a_refusal_is_one(text: str) -> None:
    assert refuses(text)


@pytest.mark.parametrize("text", ANSWERS)
def test_an_answer_is_no_refusal(text: str) -> None:
    assert not refuses(text)


def test_what_no_rule_can_judge_is_refused() -> None:
    for name in SCORERS:
        with pytest.raises(UsageError, match="has no answer"):
            SCORERS[name].score("text", Example("one", (), "", "", (), category="4"))
    with pytest.raises(UsageError, match="has category '6'; LoCoMo has 1, 2, 3, 4, 5"):
        SCORERS["locomo_f1"].score("text", Example("one", (), "", "", ("gold",), category="6"))
    with pytest.raises(UsageError, match="there is no scorer 'bleu'") as refused:
        scorer("bleu")
    assert "qa_f1" in refused.value.hint
    assert scorer("qa_f1") is SCORERS["qa_f1"]


def test_without_nltk_locomo_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "nltk.stem.porter", None)
    locomo._stemmer.cache_clear()
    with pytest.raises(UsageError, match="need nltk"):
        SCORERS["locomo_f1"].score("gold", Example("one", (), "", "", ("gold",), category="4"))
    assert SCORERS["locomo_f1"].score("not mentioned", Example("one", (), "", "", ("trap",), category="5")) == 1.0
