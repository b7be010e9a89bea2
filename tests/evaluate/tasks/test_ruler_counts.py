from __future__ import annotations

import random
import re
from collections import Counter

import pytest

from comem_cli.evaluate.tasks.registry import make_task
from tests.evaluate.tasks.ruler_samples import context, whole


def drawn(spec: str, n: int, seed: int = 5):
    return make_task(spec).source(context()).draw(0, random.Random(seed), n)


@pytest.mark.parametrize(
    ("size", "often", "seldom", "shown", "shown_often", "shown_seldom"),
    [(4096, 30, 3, 40, 10, 3), (2048, 6, 1, 20, 3, 1)],
)
def test_cwe_counts_words_as_the_table_says(
    size: int, often: int, seldom: int, shown: int, shown_often: int, shown_seldom: int
) -> None:
    record = drawn(f"cwe:{size}", 25)
    head = (
        "Below is a numbered list of words. In these words, some appear more often than others. "
        "Memorize the ones that appear most often.\n"
    )
    tail = (
        "\nQuestion: What are the 10 most common words in the above list?"
        " Answer: The top 10 words that appear most often in the list are:"
    )
    _, example, own = whole(record).split(head)
    solved, answer = example.split(tail)
    listed, nothing = own.split(tail)
    assert nothing == ""
    for text, words, high, low, common in (
        (listed, 25, often, seldom, set(record.answers)),
        (solved, shown, shown_often, shown_seldom, set(re.findall(r"\d+\. (\S+)", answer))),
    ):
        numbers, found = zip(*re.findall(r"(\d+)\. (\S+)", text), strict=True)
        assert list(map(int, numbers)) == list(range(1, len(found) + 1))
        counts = Counter(found)
        assert {word for word, count in counts.items() if count == high} == common
        assert sorted(counts.values()) == [low] * (words - 10) + [high] * 10
    assert record.question == "What are the 10 most common words in the above list?"
    assert not record.evidence


def test_fwe_counts_follow_the_zeta_law() -> None:
    scipy = pytest.importorskip("scipy.special")
    n, size = 9, 4096
    record = drawn(f"fwe:{size}", n)
    room = size - 50
    total = room // 6 % (room // 32) + n * (room // 32)
    head, text = record.document.split("Find the three most frequently appeared coded words. ")
    assert head == "Read the following coded text and track the frequency of each coded word. "
    ranked = Counter(text.split()).most_common()
    expected = [int(total * rank**-2.0 / scipy.zeta(2.0)) for rank in range(1, room // 50 + 1)]
    assert [count for _, count in ranked] == [count for count in expected if count]
    assert [word for word, _ in ranked[:4]] == ["...", *record.answers]
    assert all(re.fullmatch("[a-z]{6}", word) for word, _ in ranked[1:])
    assert record.document.endswith("\n")
    assert record.prompt == (
        "Question: Do not provide any explanation. Please ignore the dots '....'. What are the three most frequently "
        "appeared words in the above coded text? Answer: According to the coded text above, the three most frequently "
        "appeared words are:"
    )
    assert record.question in record.prompt


def test_cells_name_their_scorer_and_limits() -> None:
    for spec, limit in (("cwe:4096", 120), ("fwe:4096", 50)):
        cell = make_task(spec).cell(context(n=1))
        assert (cell.scorer, cell.max_new_tokens) == ("string_match_all", limit)
        assert cell.examples[0].evidence == ()
