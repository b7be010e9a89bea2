"""The audit against sets of tuples, on texts of few words and on real books."""

from __future__ import annotations

import os
import unicodedata
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from comem_cli.evaluate import containment
from comem_cli.evaluate.containment import audit, rows
from comem_cli.evaluate.task import Document
from comem_cli.evaluate.word_ngrams import Vocabulary, words

DATA = Path(os.environ.get("COMEM_DATA", Path(__file__).parents[3] / "shared" / "data"))


def naive_words(text):
    """Walk over characters: a second implementation."""
    found, word = [], ""
    for letter in [*text, " "]:
        if letter.isalnum() or "\u0300" <= letter <= "\u036f":
            word += letter
        elif word:
            found.append(unicodedata.normalize("NFKC", word.casefold()))
            word = ""
    return found


def naive(training, text, n):
    """Return (n-grams, contained, longest stretch in words) with sets of tuples."""

    def grams(text):
        found = naive_words(text)
        return [tuple(found[i : i + n]) for i in range(len(found) - n + 1)]

    known = {gram for one in training for gram in grams(one)}
    flags = [gram in known for gram in grams(text)]
    runs = [len(run) + n - 1 for run in "".join(" X"[flag] for flag in flags).split()]
    return len(flags), sum(flags), max(runs, default=0)


few = st.lists(st.sampled_from(["a", "B", "b", "c-d", "É", "e\u0301", "\n", "x_y", "1", "ﬁ"]), max_size=40).map(
    " ".join
)


@given(st.lists(few, max_size=3), st.lists(few, min_size=1, max_size=3), st.integers(1, 4))
def test_counts_equal_those_of_sets_of_tuples(training, evaluation, n):
    found = audit(training, [Document(str(i), text) for i, text in enumerate(evaluation)], n)
    for one, text in zip(found.documents, evaluation, strict=True):
        assert (one.grams, one.contained, one.longest) == naive(training, text, n)
        if one.longest:
            assert len(naive_words(text[one.start : one.end])) == one.longest
            assert naive(training, text[one.start : one.end], n)[:2] == (one.longest - n + 1,) * 2
    assert found.training_words == sum(len(naive_words(text)) for text in training)


@given(st.text(max_size=60))
def test_words_are_those_of_a_walk_over_characters(text):
    assert words(text) == naive_words(text)


@given(few, st.integers(1, 9))
def test_files_read_in_blocks_give_what_the_whole_text_gives(tmp_path_factory, text, block):
    path = tmp_path_factory.mktemp("training") / "text"
    path.write_text(text, encoding="utf-8", newline="")
    document = [Document("d", "a b c d É x y 1 fi B b c d a")]
    whole = audit([text], document, 2)
    before, containment.BLOCK = containment.BLOCK, block
    try:
        assert audit([path], document, 2).documents[0].contained == whole.documents[0].contained
        assert audit([text], document, 2) == whole
    finally:
        containment.BLOCK = before


def test_a_stretch_is_found_where_it_stands_with_its_source(tmp_path):
    passage = (
        "It is a truth universally acknowledged, that a single man in possession of a good fortune must want a wife"
    )
    book = tmp_path / "book.txt"
    shouted = passage.upper().replace(" ", "\n")
    book.write_text(f"Chapter 1.\n\n“{shouted}”, they said.", encoding="utf-8")
    text = f"Before it all. {passage}. And after it came quite another thing of which nobody had ever heard or read."
    (found,) = audit(["nothing of the kind", book], [Document("d", text)]).documents
    assert text[found.start : found.end] == passage
    assert (found.longest, found.source, found.contained) == (len(passage.split()), str(book), found.longest - 12)
    assert found.share == found.contained / found.grams


def test_no_ngram_spans_two_training_texts():
    assert audit(["a b", "c d"], [Document("d", "a b c d")], 3).documents[0].contained == 0
    assert audit(["a b c", "b c d"], [Document("d", "a b c d")], 3).documents[0].contained == 2


def test_the_source_is_the_first_text_that_holds_the_stretch():
    assert audit(["x", "a b c", "a b c"], [Document("d", "a b c")], 3).documents[0].source == "text 2"


def test_short_documents_have_no_share_and_sums_weigh_ngrams():
    documents = [Document("short", "a b"), Document("half", "a b c x y"), Document("whole", "a b c"), Document("", "")]
    found = audit(["a b c"], documents, 3)
    assert [one.share for one in found.documents] == [None, 1 / 3, 1.0, None]
    assert found.share == 2 / 4
    assert [one.document for one in found.flagged()] == ["whole"]
    assert [one.document for one in found.flagged(0.2)] == ["half", "whole"]
    assert [one.document for one in found.unclean()] == ["half", "whole"]
    header, *lines = rows(found)
    assert {len(line) for line in lines} == {len(header)}
    assert lines[0] == ["whole", "3", "1", "1", "1.0000", "3", "0", "5", "text 1"]
    assert lines[-1] == ["(all)", "10", "4", "2", "0.5000", "", "", "", ""]


def test_nothing_to_audit_is_an_empty_audit():
    assert (audit([], []).share, audit(["a b c"], []).documents) == (None, ())
    assert audit([], [Document("d", "a b c")], 2).documents[0].share == 0.0
    with pytest.raises(ValueError, match="at least one word"):
        audit([], [], 0)


def test_numbers_of_distinct_ngrams_are_distinct_and_depend_on_order():
    vocabulary = Vocabulary(3)
    text = " ".join(f"{a} {b} {c}" for a in range(20) for b in range(20) for c in range(20))
    found = naive_words(text)
    numbers, _ = vocabulary.grams(vocabulary.learn(text))
    assert len(set(numbers.tolist())) == len({tuple(found[i : i + 3]) for i in range(len(found) - 2)})


def test_the_bound_on_chance_matches_counts_pairs():
    found = audit(["w " * 1000], [Document("d", "v " * 500)])
    assert found.false_matches == 988 * 488 / 2**64


@pytest.mark.skipif(not (DATA / "books").is_dir(), reason="no books in COMEM_DATA")
def test_another_edition_of_a_book_is_found_and_another_book_is_not():
    books = DATA / "books"
    evaluation = [
        Document(name, (books / f"{name}.txt").read_text(encoding="utf-8"))
        for name in ("austen_prideprejudice", "gutenberg_36")
    ]
    found = audit([books / "gutenberg_1342.txt"], evaluation)
    same, other = found.documents
    assert same.share > 0.8 and found.flagged() == (same,)
    assert other.share < 0.001
    assert found.false_matches < 1e-8
