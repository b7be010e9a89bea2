from __future__ import annotations

import itertools
import time
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from comem_cli.corpus import tokens
from comem_cli.corpus.chunk import Chunk, chunk
from comem_cli.corpus.extract import Extracted, extract
from comem_cli.corpus.walk import SourceFile

LINES = ["the quick brown fox jumps over the lazy dog", "the observatory opens at nine\nand closes at five\n\n"]


def byte_level(*, prefix_space: bool = False, trim: bool = False) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=prefix_space)
    tokenizer.decoder = decoders.ByteLevel()
    if trim:
        tokenizer.post_processor = processors.ByteLevel(trim_offsets=True)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=300, initial_alphabet=alphabet, special_tokens=["<s>"], show_progress=False
    )
    tokenizer.train_from_iterator(LINES, trainer)
    return tokenizer


def metaspace() -> Tokenizer:
    """Build what Llama 2 has: a normaliser that prepends and no splitting into words."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    trainer = trainers.BpeTrainer(vocab_size=120, special_tokens=["<unk>"], show_progress=False)
    tokenizer.train_from_iterator(LINES, trainer)
    return tokenizer


TOKENIZERS = {
    "byte-level": byte_level(),
    "prefix space": byte_level(prefix_space=True),
    "trimmed offsets": byte_level(trim=True),
    "metaspace": metaspace(),
}
plain = TOKENIZERS["byte-level"]


def text_of(text: str, *, encoding: str = "utf-8", bom: int = 0) -> Extracted:
    return Extracted(text, encoding, "text", "", 0, 0, bom)


def ids_of(chunks: list[Chunk]) -> list[int]:
    joined = b"".join(part.ids for part in chunks)
    return [int.from_bytes(joined[at : at + 4], "little") for at in range(0, len(joined), 4)]


def check(chunks: list[Chunk], extracted: Extracted, tokenizer: Tokenizer, size: int) -> None:
    expected = tokenizer.encode(extracted.text, add_special_tokens=False).ids
    assert ids_of(chunks) == expected
    assert [part.number for part in chunks] == list(range(-(-len(expected) // size)))
    assert [part.n_tokens for part in chunks] == [len(expected[at : at + size]) for at in range(0, len(expected), size)]
    if not chunks:
        return
    raw = extracted.text.encode(extracted.encoding)
    assert chunks[0].bytes[0] == extracted.bom
    assert chunks[-1].bytes[1] == extracted.bom + len(raw)
    assert chunks[0].lines[0] == 1
    for before, after in itertools.pairwise(chunks):
        assert before.bytes[0] <= after.bytes[0] <= before.bytes[1] <= after.bytes[1]
        if after.bytes[0] != before.bytes[1]:  # they share one character
            shared = raw[after.bytes[0] - extracted.bom : before.bytes[1] - extracted.bom]
            assert len(shared.decode(extracted.encoding)) == 1
        assert after.lines[0] in (before.lines[1], before.lines[1] + 1)


@settings(deadline=None, max_examples=200)
@given(text=st.text(max_size=200), size=st.integers(1, 7))
@example(text="", size=1)
@example(text="天文台😀é", size=1)
@example(text="a\r\nb\rc\n", size=1)
@example(text="<s> in the text", size=2)
def test_ids_and_spans_round_trip_on_any_text(text: str, size: int) -> None:
    for tokenizer in TOKENIZERS.values():
        check(chunk(text_of(text), tokenizer, size), text_of(text), tokenizer, size)


@settings(deadline=None, max_examples=100)
@given(text=st.text(max_size=120), size=st.integers(1, 5))
def test_spans_decode_to_what_the_tokens_say(text: str, size: int) -> None:
    raw = text.encode()
    for part in chunk(text_of(text), plain, size):
        span = raw[part.bytes[0] : part.bytes[1]].decode()  # never cuts a character
        assert plain.decode(ids_of([part]), skip_special_tokens=False).strip("\ufffd") in span
        start, end = part.bytes
        assert part.lines[0] == len(lines_before(raw[:start].decode(), raw[start : start + 1])) + 1
        assert part.lines[1] - part.lines[0] == inner_line_ends(span, raw[end:].decode())


def lines_before(text: str, following: bytes) -> list[str]:
    ends = text.replace("\r\n", "\n").replace("\r", "\n").count("\n")
    return ["line"] * (ends - (text.endswith("\r") and following == b"\n"))


def inner_line_ends(span: str, after: str) -> int:
    """Count the line ends before the span's last character."""
    inner = span[:-1]
    ends = inner.replace("\r\n", "\n").replace("\r", "\n").count("\n")
    return ends - (span.endswith("\r\n") and inner.endswith("\r"))


@settings(deadline=None, max_examples=200)
@given(
    text=st.lists(
        st.sampled_from(["the", " ", "  ", "\n", "\r\n", "é", "天", "1", ".", "<s>", "fox", "\t"]), max_size=80
    ),
    segment=st.integers(1, 40),
)
def test_pieces_give_the_ids_of_the_whole_text(text: list[str], segment: int) -> None:
    joined = "".join(text)
    for tokenizer in TOKENIZERS.values():
        pieces = list(tokens.encode_pieces(tokenizer, joined, segment=segment, context=16))
        assert [at for piece in pieces for at in piece.encoding.ids] == tokenizer.encode(
            joined, add_special_tokens=False
        ).ids


def test_a_long_text_is_cut_into_pieces_and_still_exact(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "the quick fox, 天文台 opens at nine.\nand closes\r\n\n  at five " * 400
    whole = {name: chunk(text_of(text), tokenizer, 64) for name, tokenizer in TOKENIZERS.items()}
    assert len(list(tokens.encode_pieces(plain, text, segment=1_000))) > 10
    assert len(list(tokens.encode_pieces(TOKENIZERS["metaspace"], text, segment=1_000))) == 1
    monkeypatch.setattr(tokens.encode_pieces, "__kwdefaults__", {"segment": 1_000, "context": 256})
    for name, tokenizer in TOKENIZERS.items():
        assert chunk(text_of(text), tokenizer, 64) == whole[name]


@pytest.mark.parametrize(("encoding", "bom"), [("utf-8", 3), ("utf-16-le", 2), ("cp1251", 0), ("cp932", 0)])
def test_byte_spans_are_those_of_the_source_in_its_own_encoding(encoding: str, bom: int) -> None:
    text = "Привет, мир\nthe fox\r\n" * 20
    extracted = text_of(text, encoding=encoding, bom=bom)
    chunks = chunk(extracted, plain, 16)
    check(chunks, extracted, plain, 16)
    raw = b"M" * bom + text.encode(encoding)
    for part in chunks:
        span = raw[slice(*part.bytes)].decode(encoding)
        assert plain.decode(ids_of([part])).strip("\ufffd") in span
        assert span in text


def test_lines_are_one_based_and_inclusive() -> None:
    text = "the fox\n" * 10
    per_line = len(plain.encode("the fox\n").ids)
    spans = [part.lines for part in chunk(text_of(text), plain, 2 * per_line)]
    assert spans == [(1, 2), (3, 4), (5, 6), (7, 8), (9, 10)]


def test_a_carriage_return_split_from_its_line_feed_ends_no_line() -> None:
    chunks = chunk(text_of("a\r\nb"), plain, 1)
    assert [part.lines for part in chunks] == [(1, 1), (1, 1), (1, 1), (2, 2)]


def test_a_character_split_between_two_chunks_is_in_both() -> None:
    chunks = chunk(text_of("天"), plain, 1)
    assert [part.bytes for part in chunks] == [(0, 3), (0, 3), (0, 3)]


def test_truncation_and_padding_of_the_tokenizer_do_not_reach_the_store() -> None:
    tokenizer = byte_level()
    tokenizer.enable_truncation(4)
    tokenizer.enable_padding(length=64)
    text = "the quick brown fox"
    assert ids_of(chunk(text_of(text), tokenizer, 8)) == plain.encode(text).ids


def test_default_size_is_512() -> None:
    assert next(part.n_tokens for part in chunk(text_of("x " * 300), plain)) == 512


def test_from_file_to_chunks(tmp_path: Path) -> None:
    raw = b"\xef\xbb\xbf" + "the fox é\r\n".encode() * 50
    (tmp_path / "a.md").write_bytes(raw)
    extracted = extract(SourceFile(tmp_path, "a.md", 0, 0))
    assert isinstance(extracted, Extracted)
    chunks = chunk(extracted, plain, 32)
    check(chunks, extracted, plain, 32)
    assert chunks[-1].lines[1] == 50
    assert chunks[-1].bytes[1] == len(raw)


def test_two_megabytes_on_one_line_take_bounded_time() -> None:
    text = "the quick brown fox " * 100_000
    start = time.process_time()
    chunks = chunk(text_of(text), plain, 512)
    assert time.process_time() - start < 20
    assert chunks[-1].bytes[1] == len(text)
    assert {part.lines for part in chunks} == {(1, 1)}
