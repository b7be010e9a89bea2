from __future__ import annotations

import random
import re

import pytest

from comem_cli.evaluate.tasks import ruler_niah
from comem_cli.evaluate.tasks.registry import make_task
from comem_cli.evaluate.tasks.ruler_haystack import NOISE
from comem_cli.evaluate.tasks.words import load_words
from tests.evaluate.tasks.ruler_samples import context, quoted, whole, with_book

NEEDLE = re.compile(r"One of the special magic (\w+) for (.+?) is: (\S+)\.")


def drawn(spec: str, n: int, tmp_path, seed: int = 7):
    task = make_task(spec)
    return task.source(context(data=tmp_path)).draw(0, random.Random(seed), n)


def test_the_word_lists_are_those_of_wonderwords() -> None:
    words = load_words()
    assert (len(words.nouns), len(words.adjectives), len(words.verbs)) == (6782, 910, 1041)
    assert len(words.vocabulary) == 8166
    assert {"contact lens", "dune buggy"} <= set(words.nouns)  # a line is one word


def test_one_needle_in_noise_reads_as_ruler_writes_it(tmp_path) -> None:
    record = drawn("niah_single_1:4096", 3, tmp_path)
    (value,) = record.answers
    _, key, _ = NEEDLE.search(record.document).groups()
    needle = f"One of the special magic numbers for {key} is: {value}."
    place = record.document.split("\n").index(needle) - 1
    lines = [NOISE] * 3
    lines.insert(place, needle)
    assert whole(record) == (
        "A special magic number is hidden within the following text. Make sure to memorize it. "
        "I will quiz you about the number afterwards.\n" + "\n".join(lines) + "\n"
        f"What is the special magic number for {key} mentioned in the provided text? "
        f"The special magic number for {key} mentioned in the provided text is"
    )
    assert record.question == f"What is the special magic number for {key} mentioned in the provided text?"
    assert record.prompt.startswith(record.question)
    assert quoted(record) == [needle]


def test_several_values_and_keys_read_as_ruler_writes_them(tmp_path) -> None:
    record = drawn("niah_multiquery:4096:haystack=books,values=2,queries=3", 40, with_book(tmp_path))
    found = NEEDLE.findall(record.document)
    assert {kind for kind, _, _ in found} == {"numbers"}
    keys = list(dict.fromkeys(key for value in record.answers for _, key, its in found if its == value))
    query = f"{keys[0]}, {keys[1]}, and {keys[2]}"
    head, text = NEEDLE.sub("", record.document).split("\n", 1)
    assert head == (
        "Some special magic numbers are hidden within the following text. Make sure to memorize it. "
        "I will quiz you about the numbers afterwards."
    )
    assert text.split()[:4] == ["The", "harbour", "was", "quiet."]
    assert record.prompt == (
        f"What are all the special magic numbers for {query} mentioned in the provided text? "
        f"The special magic numbers for {query} mentioned in the provided text are"
    )


def test_the_singular_is_the_plural_with_rulers_replacements() -> None:
    for plural, singular in zip(ruler_niah.SOME, ruler_niah.ONE, strict=True):
        assert plural.replace("Some", "A").replace("are all", "is").replace("are", "is") == singular


TABLE = {
    # task: haystack, key, value, needles, distinct keys, answers
    "niah_single_1": ("noise", "words", "numbers", 1, 1, 1),
    "niah_single_2": ("prose", "words", "numbers", 1, 1, 1),
    "niah_single_3": ("prose", "words", "uuids", 1, 1, 1),
    "niah_multikey_1": ("prose", "words", "numbers", 4, 4, 1),
    "niah_multikey_2": ("needle", "words", "numbers", 41, 41, 1),
    "niah_multikey_3": ("needle", "uuids", "uuids", 41, 41, 1),
    "niah_multivalue": ("prose", "words", "numbers", 4, 1, 4),
    "niah_multiquery": ("prose", "words", "numbers", 4, 4, 4),
}
KINDS = {
    "numbers": r"[1-9]\d{6}",
    "words": r"\S.*-.*\S",
    "uuids": r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}",
}


@pytest.mark.parametrize("name", TABLE)
def test_every_task_is_as_the_table_says(name: str, tmp_path) -> None:
    haystack, key_kind, value_kind, needles, keys, answers = TABLE[name]
    spec = f"{name}:4096:haystack=books" if haystack == "prose" else f"{name}:4096"
    for seed in range(20):
        record = drawn(spec, 40, with_book(tmp_path) if not seed else tmp_path, seed)
        found = NEEDLE.findall(record.document)
        assert len(found) == needles
        assert len({key for _, key, _ in found}) == keys
        assert all(kind == value_kind for kind, _, _ in found)
        assert all(re.fullmatch(KINDS[key_kind], key) for _, key, _ in found)
        assert all(re.fullmatch(KINDS[value_kind], value) for _, _, value in found)
        assert len(record.answers) == len(set(record.answers)) == answers
        # The evidence is exactly the needles of the keys that the question names.
        asked = [(kind, key, value) for kind, key, value in found if key in record.question]
        assert sorted(NEEDLE.fullmatch(text).groups() for text in quoted(record)) == sorted(asked)
        assert sorted(value for _, _, value in asked) == sorted(record.answers)
        bare = NEEDLE.sub("", record.document)
        assert bare.count(NOISE) == (40 if haystack == "noise" else 0)


def test_the_haystack_is_a_prefix_of_the_prose_around_the_needles(tmp_path) -> None:
    record = drawn("niah_multikey_1:4096:haystack=books", 300, with_book(tmp_path))
    text = record.document.split("\n")[1]
    book = (tmp_path / "books" / "harbour.txt").read_text(encoding="utf-8")
    assert " ".join(NEEDLE.sub("", text).split()) == " ".join(book.split()[:300])
    assert "  " not in text
    for sentence in re.split(r" ?One of the special magic numbers for .+? is: \d+\. ?", text)[:-1]:
        assert sentence == "" or sentence[-1] in ".!?"  # a needle stands between sentences


def test_needles_stand_in_one_shuffled_order_in_every_sample(tmp_path) -> None:
    task = make_task("niah_multivalue:4096:haystack=books")
    source = task.source(context(data=with_book(tmp_path)))
    expected = [0, 1, 2, 3]
    random.Random(42).shuffle(expected)
    for index in range(5):
        record = source.draw(index, random.Random(index), 200)
        placed = [value for _, _, value in NEEDLE.findall(record.document)]
        assert [record.answers.index(value) for value in placed] == expected
