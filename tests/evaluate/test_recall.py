"""Recall on a corpus small enough to count by hand."""

from __future__ import annotations

import json
import struct

import pytest

from comem_cli.corpus.chunk import chunk
from comem_cli.corpus.extract import Extracted
from comem_cli.errors import NoEvidenceError, UsageError
from comem_cli.evaluate.recall import (
    Case,
    candidates_of,
    cases_of,
    corpus_of_documents,
    corpus_of_store,
    make_query,
    recall,
)
from comem_cli.evaluate.recall_cases import read_cases
from comem_cli.evaluate.recall_run import recall_rows
from comem_cli.evaluate.task import Document, Example, Span
from comem_cli.model import load
from comem_cli.select.bm25 import IterativeBm25
from comem_cli.select.selector import decode_ids
from comem_cli.select.terms import FoldedTerms
from comem_cli.store.reader import StoreReader
from tests.tiny import tiny_tokenizer
from tests.tiny_store import make_store

TOKENIZER = tiny_tokenizer()
DOCUMENTS = (
    Document("a.txt", "the pilots wait at the gate — “dusk”"),
    Document("b.txt", "the harbour master keeps a ledger"),
    Document("c.txt", "storm cones are black"),
)


def example(question, *spans, answers=("x",)):
    return Example(question, DOCUMENTS, question, question, answers, evidence=spans)


def test_a_span_needs_every_chunk_that_its_bytes_touch():
    text = DOCUMENTS[0].text
    corpus = corpus_of_documents(DOCUMENTS, TOKENIZER, 3)
    parts = chunk(Extracted(text, "utf-8", "text", "", 0, 0), TOKENIZER, 3)
    start = text.index("“dusk")
    [case] = cases_of([example("q", Span("a.txt", start, start + 5))], corpus, TOKENIZER)
    first, last = len(text[:start].encode()), len(text[: start + 5].encode())
    touched = {part.number for part in parts if part.bytes[0] < last and part.bytes[1] > first}
    assert len(touched) > 1
    assert case.needs == ((frozenset(touched),),)


def test_recall_counts_needs_and_all_counts_cases():
    corpus = corpus_of_documents(DOCUMENTS, TOKENIZER, 64)
    assert len(corpus.chunks) == 3
    cases = [
        Case("harbour ledger", ((frozenset({1}),), (frozenset({2}),))),  # one of two needs is found
        Case("black cones", ((frozenset({0}), frozenset({2})),)),  # the second alternative is
        Case("nothing at all like it: zebra", ((frozenset({1}),),)),
    ]
    rows = recall_rows(corpus, cases, TOKENIZER, selectors=["bm25", "oracle"], terms=["folded"], ks=[1, 3])
    found = {(row.selector, row.k): (row.recall.value, row.all_found) for row in rows}
    assert found["bm25", 1] == (pytest.approx(1.5 / 3), pytest.approx(1 / 3))
    assert found["oracle", 1][0] == pytest.approx((0.5 + 1 + 1) / 3)  # one chunk cannot meet two needs
    assert {row.terms for row in rows if row.selector == "oracle"} == {"-"}
    for row in rows:
        assert 0 <= row.recall.low <= row.recall.value <= row.recall.high <= 1 and row.recall.n == 3


def test_terms_decide_what_a_lexical_selector_finds():
    corpus = corpus_of_documents(DOCUMENTS, TOKENIZER, 64)
    case = Case("LEDGERS", ((frozenset({1}),),))
    rows = recall_rows(corpus, [case], TOKENIZER, selectors=["bm25"], terms=["tokens", "folded"], ks=[1])
    assert [(row.terms, row.recall.value) for row in rows] == [("tokens", 0.0), ("folded", 1.0)]


def test_a_word_that_a_chunk_border_cuts_is_found_by_its_rest():
    text = "keeps an uncommonword"
    ids = TOKENIZER.encode(text).ids
    size = len(ids) - 1
    corpus = corpus_of_documents([Document("0.txt", text), *DOCUMENTS], TOKENIZER, size)
    assert corpus.chunks[1] == struct.pack("<I", ids[-1])
    assert not TOKENIZER.decode(ids[-1:]).startswith(" ")
    case = Case("Uncommonwords, or an uncommonword?", ((frozenset({1}),),))
    rows = recall_rows(corpus, [case], TOKENIZER, selectors=["bm25"], terms=["folded"], ks=[40])
    assert rows[0].recall.value == 1.0


def test_a_round_goes_on_from_a_value_whose_name_the_border_cut_off():
    first = "wait" + " cones" * 20 + " harbour"
    cut = Document("a.txt", f"{first} dusk at")
    link = Document("b.txt", "black harbour")
    corpus = corpus_of_documents([cut, link], TOKENIZER, len(TOKENIZER.encode(first).ids))
    assert len(corpus.chunks) == 3 and "harbour" not in TOKENIZER.decode(list(decode_ids(corpus.chunks[1])))
    case = Case("dusk", ((frozenset({1}),), (frozenset({2}),)))
    for border, found in ((16, 1.0), (0, 0.5)):
        scheme = FoldedTerms(TOKENIZER, border=border)
        with candidates_of(corpus, scheme) as candidates:
            query = make_query(scheme, TOKENIZER)
            (got,) = recall([case], lambda k: IterativeBm25(k, hop=2), candidates, query, [3])
        assert got.shares == (found,)


def test_unknown_evidence_is_any_chunk_with_an_answer():
    corpus = corpus_of_documents(DOCUMENTS, TOKENIZER, 64)
    held, absent = example("q", answers=("MASTER  keeps", "zebra")), example("r", answers=("zebra",))
    assert cases_of([held, absent], corpus, TOKENIZER) == [Case("q", ((frozenset({1}),),))]


def test_unknown_selectors_and_no_k_are_refused():
    corpus = corpus_of_documents(DOCUMENTS, TOKENIZER, 64)
    case = [Case("ledger", ((frozenset({1}),),))]
    for wrong in ({"selectors": ["attention"]}, {"ks": []}, {"terms": ["stems"]}, {"selectors": ["dense"]}):
        with pytest.raises(UsageError):
            recall_rows(corpus, case, TOKENIZER, **({"selectors": ["bm25"], "terms": ["folded"], "ks": [1]} | wrong))


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return make_store(tmp_path_factory.mktemp("recall"))


def test_cases_of_a_store_cite_bytes_of_its_files_or_answers(store, tmp_path):
    tokenizer, file = load.tokenizer(store.files), tmp_path / "cases.jsonl"
    text = (store.sources / "doc0.txt").read_bytes()
    start = text.index(b"entry 1")
    lines = [
        {"question": "q", "evidence": [{"path": "doc0.txt", "start": start, "end": start + 7}]},
        {"question": "r", "answers": ["entry 1 "]},
    ]
    file.write_text("\n".join(map(json.dumps, lines)))
    with StoreReader(store.path) as reader:
        corpus = corpus_of_store(reader)
        assert list(corpus.chunks) == reader.chunk_ids_in_order()
        spans, answers = read_cases(file, corpus, tokenizer).cases
        places = reader.places(spans.needs[0][0])
        assert min(p[0].byte_start for p in places.values()) <= start
        assert max(p[0].byte_end for p in places.values()) >= start + 7
        assert all(p[0].byte_start < start + 7 and p[0].byte_end > start for p in places.values())
        assert answers.needs[0]
        for bad in (
            "[]",
            "{}",
            '{"question": "q"}',
            '{"question": "q", "answers": [1]}',
            '{"question": "q", "evidence": [1]}',
            '{"question": "q", "evidence": [{"path": "doc0.txt", "start": 0, "end": 1e999}]}',
            '{"question": "q", "evidence": [{"path": "doc0.txt", "start": 5, "end": 3}]}',
            '{"question": "q", "evidence": [{"path": "doc0.txt", "start": "0", "end": "3"}]}',
            '{"question": "\\ud800", "answers": ["harbour"]}',
            "[" * 100_000,
        ):
            file.write_text(bad)
            with pytest.raises(UsageError, match="line 1"):
                read_cases(file, corpus, tokenizer)
        file.write_text('\ufeff{"question": "a line\u2028separator", "answers": ["harbour"]}\n')
        assert [case.question for case in read_cases(file, corpus, tokenizer).cases] == ["a line\u2028separator"]
        absent = [{"question": "q", "evidence": [{"path": "none.txt", "start": 0, "end": 4}]}] * 6
        file.write_text("\n".join(map(json.dumps, absent)))
        with pytest.raises(NoEvidenceError, match=r"6 of 6 cases skipped.*, line 1, 2, 3, 4, 5 \.\.\."):
            read_cases(file, corpus, tokenizer)
        file.write_text("\n".join(map(json.dumps, [lines[1], {"question": "s", "answers": ["zebra"]}, lines[0]])))
        found = read_cases(file, corpus, tokenizer)
        assert found.cases == (answers, spans) and found.skipped == (2,)
