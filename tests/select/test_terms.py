"""Terms of token ids: what counts as one, in words people write, in other scripts, and over pieces of words."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from comem_cli.errors import UsageError
from comem_cli.select.terms import (
    CUT,
    IDENTITIES,
    LONGEST,
    READABLE,
    TOKENS,
    FoldedTerms,
    TokenTerms,
    folded_words,
    recorded_scheme,
    term_scheme,
)
from tests.tiny import tiny_tokenizer


@pytest.fixture(scope="module")
def scheme() -> FoldedTerms:
    return FoldedTerms(tiny_tokenizer())


def test_token_terms_are_the_ids_in_decimal() -> None:
    assert TOKENS.terms([7, 512, 7]) == ["7", "512", "7"]
    assert TOKENS.readable("7") == "7"
    tokenizer = tiny_tokenizer()
    [first, *_] = tokenizer.encode(" ledger").ids
    assert TokenTerms(tokenizer).readable(str(first)).startswith("' ")


@pytest.mark.parametrize("text", ["git", " git", "Git", "GIT", "ＧＩＴ", "“git”", "git,"])
def test_case_blanks_width_and_punctuation_fold_away(scheme: FoldedTerms, text: str) -> None:
    ids = scheme.tokenizer.encode(text).ids
    assert [term for term in scheme.terms(ids) if not term.startswith(CUT)] == ["git"]


def test_a_word_cut_in_pieces_is_one_term(scheme: FoldedTerms) -> None:
    ids = scheme.tokenizer.encode("an uncommonword").ids
    assert len(ids) > 2
    assert scheme.terms(ids)[:2] == ["an", "uncommonword"]


@pytest.mark.parametrize(
    "text", ["the uncommonword, again", "no 1234567 no", "Zürich größter", "हिन्दी भाषा", "x" * 300]
)
def test_the_rest_of_a_word_that_a_border_cuts_is_found_by_the_whole_word(scheme: FoldedTerms, text: str) -> None:
    ids = scheme.tokenizer.encode(text).ids
    asked = scheme.query_terms(ids)
    assert [term for term in asked if not term.startswith(CUT)] == folded_words(text)
    rests = 0
    for cut in range(1, len(ids)):
        before, after = (scheme.tokenizer.decode(part, skip_special_tokens=False) for part in (ids[:cut], ids[cut:]))
        if "\N{REPLACEMENT CHARACTER}" in before + after:
            continue  # the border cuts a character: its halves are no text
        *words, last = scheme.terms(ids[cut:]) or [""]
        inside = bool(before[-1:].isalnum() and after[:1].isalnum())
        if inside:
            assert words and last == CUT + words[0] and last in asked
        rests += inside
    assert rests or not text.isascii()


def test_no_rest_where_a_word_begins_and_none_in_unspaced_scripts(scheme: FoldedTerms) -> None:
    encode = scheme.tokenizer.encode
    assert scheme.terms(encode(" git").ids) == ["git"]
    assert scheme.terms(encode("東京").ids) == scheme.query_terms(encode("東京").ids) == ["東", "京", "東京"]
    assert scheme.terms([]) == scheme.query_terms([]) == []
    assert TOKENS.query_terms([7, 7]) == ["7", "7"]


def test_a_recorded_scheme_of_version_1_has_no_rests() -> None:
    tokenizer = tiny_tokenizer()
    first = recorded_scheme("folded 1", tokenizer)
    ids = tokenizer.encode("uncommonword").ids
    assert first.terms(ids) == first.query_terms(ids) == ["uncommonword"]
    assert (first.identity, first.name) == ("folded 1", "folded")
    assert [recorded_scheme(identity, tokenizer).identity for identity in READABLE] == list(READABLE)
    assert set(IDENTITIES.values()) <= set(READABLE)
    with pytest.raises(UsageError):
        recorded_scheme("folded 0", tokenizer)


@pytest.mark.parametrize(
    ("word", "term"),
    [
        ("stores", "store"),
        ("queries", "query"),
        ("movies", "movy"),  # as Harman's rules have it, in document and question alike
        ("shoes", "shoes"),
        ("classes", "classe"),
        ("class", "class"),
        ("status", "status"),
        ("gas", "gas"),
        ("files2", "files2"),
    ],
)
def test_an_english_plural_is_taken_off(word: str, term: str) -> None:
    assert folded_words(word) == [term]


def test_marks_belong_to_their_word_and_underscores_part_words() -> None:
    assert folded_words("हिन्दी भाषा") == ["हिन्दी", "भाषा"]
    assert folded_words("read_token_ids") == ["read", "token", "ids"]
    assert folded_words(unicodedata.normalize("NFD", "Café")) == folded_words("café") == ["café"]
    assert folded_words("Straße") == folded_words("STRASSE") == ["strasse"]


def test_scripts_without_blanks_give_characters_and_pairs() -> None:
    assert folded_words("東京都") == ["東", "京", "都", "東京", "京都"]
    assert folded_words("東") == ["東"]
    assert folded_words("JR東京line") == ["jr", "東", "京", "東京", "line"]
    assert set(folded_words("東京")) <= set(folded_words("新東京駅"))


def test_no_words_no_terms_and_long_ones_are_cut() -> None:
    assert folded_words("--- ... \n\t") == []
    assert folded_words("a" * 1000) == ["a" * LONGEST]


@given(st.text(max_size=60))
def test_folding_is_stable_and_no_term_holds_white_space(text: str) -> None:
    terms = folded_words(text)
    assert all(term and not any(character.isspace() for character in term) for term in terms)
    assert folded_words(unicodedata.normalize("NFD", text)) == terms


def test_schemes_by_name() -> None:
    assert term_scheme("tokens", None).identity == "tokens 1"
    assert term_scheme("folded", tiny_tokenizer()).identity == "folded 2" == IDENTITIES["folded"]
    for name, tokenizer in (("stems", tiny_tokenizer()), ("folded", None)):
        with pytest.raises(UsageError):
            term_scheme(name, tokenizer)
