"""Text that appears token by token: nothing lost, nothing early, stop strings noticed wherever they begin."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from comem_cli.errors import UsageError
from comem_cli.read.text import STOP, TEMPLATE, TextStream, question_object, render
from tests.tiny import EOS_ID, tiny_tokenizer

TOKENIZER = tiny_tokenizer()


def encode(text: str) -> list[int]:
    return TOKENIZER.encode(text, add_special_tokens=False).ids


def stream(ids: list[int], stop=()) -> tuple[list[str], TextStream]:
    made = TextStream(TOKENIZER, stop)
    pieces = []
    for token in ids:
        pieces.append(made.push(token))
        if made.stopped:
            break
    pieces.append(made.finish())
    return pieces, made


@given(st.text(st.characters(codec="utf-8", exclude_characters="\ufffd"), max_size=30))
@settings(deadline=None, max_examples=100)
def test_the_pieces_are_the_text(text):
    pieces, made = stream(encode(text))
    assert "".join(pieces) == made.text == text


@given(st.text("ab\n", max_size=14), st.lists(st.text("ab\n", min_size=1, max_size=3), max_size=3))
@settings(deadline=None, max_examples=200)
def test_a_stop_string_ends_the_text_before_its_first_place_and_nothing_of_it_shows(text, stops):
    # One id a byte, so a stop string is always split over tokens.
    ids = [i for letter in text for i in encode(letter)]
    pieces, made = stream(ids, stops)
    # The stream stops at the first token that completes some stop string, at the earliest one complete by then.
    wanted = text
    for end in range(len(text) + 1):
        places = [at for at in (text[:end].find(s) for s in stops) if at >= 0]
        if places:
            wanted = text[: min(places)]
            break
    assert "".join(pieces) == made.text == wanted
    assert made.stopped == any(s in text for s in stops)


def test_the_default_stop_strings_work_over_several_tokens():
    ids = encode("Dusk.\n\nQuestion: and then?")
    assert len(ids) > 6
    pieces, made = stream(ids, STOP)
    assert "".join(pieces) == "Dusk."
    assert made.stopped


def test_what_could_begin_a_stop_string_is_held_back_until_it_is_settled():
    made = TextStream(TOKENIZER, ["\n\nQuestion:"])
    shown = [made.push(token) for token in encode("a") + encode("\n") + encode("\n") + encode("b")]
    assert shown == ["a", "", "", "\n\nb"]


def test_a_character_of_several_tokens_appears_whole():
    ids = encode("é€🙂")
    assert len(ids) == 9
    pieces, _ = stream(ids)
    assert [piece for piece in pieces if piece] == ["é", "€", "🙂"]


def test_special_tokens_are_not_shown():
    pieces, _ = stream([*encode("dusk"), EOS_ID, *encode("dawn")])
    assert "".join(pieces) == "duskdawn"


def test_the_template_takes_the_question_as_it_is():
    assert render(TEMPLATE, " {x} {question}? ") == "\n\nQuestion: {x} {question}?\nAnswer:"


@pytest.mark.parametrize(("template", "question", "said"), [(TEMPLATE, " \n", "empty"), ("Q:", "who?", "{question}")])
def test_an_empty_question_and_a_template_without_a_place_are_refused(template, question, said):
    with pytest.raises(UsageError, match=said):
        render(template, question)


@pytest.mark.parametrize("line", ["", "{", "[]", "3", '{"question": 1}', '{"q": "x"}', b"\xff", "[" * 100_000])
def test_a_line_that_is_no_question_is_none_of_any_kind(line):
    assert question_object(line) is None


def test_a_question_keeps_its_other_fields():
    assert question_object(b'{"question": "who?", "id": 7}') == {"question": "who?", "id": 7}
