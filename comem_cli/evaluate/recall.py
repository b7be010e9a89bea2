"""Measure how much of the evidence a selector finds: recall at k, by case.

    corpus = corpus_of_documents(...) | corpus_of_store(...)
    with candidates_of(corpus, scheme) as candidates:
        found = recall(cases, make, candidates, query, ks=(4, 12))

A case names what it needs; a need is met where the first k chunks hold every chunk of one of its alternatives. A span
of a document needs all chunks that it touches; an answer needs one chunk that holds it. recall@k of a case is the share
of its needs that are met, all@k tells whether every one is. The first k of one long selection stand for a selection of
k, as ties are settled by document order; only iterative BM25, whose first round grows with k, is asked for each k.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from comem_cli.corpus.chunk import chunk
from comem_cli.corpus.extract import Extracted
from comem_cli.errors import NoEvidenceError, UsageError
from comem_cli.evaluate.task import Document, Example
from comem_cli.select.attention import Scorer
from comem_cli.select.bm25 import IterativeBm25
from comem_cli.select.choose import SELECTORS, SelectorChoice
from comem_cli.select.dense import VectorSearch
from comem_cli.select.index import open_index
from comem_cli.select.index_write import build_index
from comem_cli.select.oracle import Oracle
from comem_cli.select.selector import Candidates, Query, Selector, decode_ids
from comem_cli.select.terms import TermScheme
from comem_cli.store.reader import StoreReader

if TYPE_CHECKING:
    import tokenizers

ORACLE = "oracle"
NAMES = (*SELECTORS, ORACLE)
Need = tuple[frozenset[int], ...]  # alternatives, each a set of chunk ids


@dataclass(frozen=True)
class Case:
    """One question with its needs; at least one."""

    question: str
    needs: tuple[Need, ...]


@dataclass(frozen=True)
class Found:
    """What one case got at each k: the share of its needs, in the order of ks."""

    shares: tuple[float, ...]


@dataclass(frozen=True)
class Corpus:
    """Chunks in document order, id to token ids (uint32 LE), and where they stand.

    spans: document name -> one list a document of that name, of (chunk id, first byte, end).
    """

    chunks: Mapping[int, bytes]
    spans: Mapping[str, Sequence[Sequence[tuple[int, int, int]]]]

    def need(self, name: str, start: int, end: int) -> Need:
        """Return the chunks that the bytes [start, end) of a document touch; empty where it has no such bytes."""
        touched = (
            frozenset(chunk_id for chunk_id, first, last in document if first < end and start < last)
            for document in self.spans.get(name, ())
        )
        return tuple(dict.fromkeys(chunks for chunks in touched if chunks))

    def left(self) -> dict[int, bytes]:
        """Return the token ids of the chunk before each chunk, at its first place; none at a document's start."""
        left: dict[int, bytes] = {}
        for documents in self.spans.values():
            for document in documents:
                before = b""
                for chunk_id, _, _ in document:
                    left.setdefault(chunk_id, before)
                    before = self.chunks[chunk_id]
        return left

    def holding(self, answers: Sequence[str], tokenizer: tokenizers.Tokenizer) -> Need:
        """Return each chunk whose text holds one of the answers, case and white space aside, as an alternative."""
        wanted = [_plain(answer) for answer in answers]
        texts = ((key, _plain(tokenizer.decode(list(decode_ids(ids))))) for key, ids in self.chunks.items())
        return tuple(frozenset({key}) for key, text in texts if any(answer in text for answer in wanted))


def corpus_of_store(reader: StoreReader) -> Corpus:
    """Read a store's live chunks and places."""
    order = reader.chunk_ids_in_order()
    documents: dict[int, tuple[str, list[tuple[int, int, int]]]] = {}
    for chunk_id, places in reader.places(order).items():
        for place in places:
            document = documents.setdefault(place.document_id, (place.path, []))
            document[1].append((chunk_id, place.byte_start, place.byte_end))
    spans: dict[str, list[list[tuple[int, int, int]]]] = {}
    for name, held in documents.values():
        spans.setdefault(name, []).append(held)
    return Corpus({chunk_id: reader.token_ids(chunk_id) for chunk_id in order}, spans)


def corpus_of_documents(documents: Iterable[Document], tokenizer: tokenizers.Tokenizer, size: int) -> Corpus:
    """Cut documents into chunks of `size` tokens as ingest does; equal chunks are one, at their first place."""
    ids: dict[bytes, int] = {}
    spans: dict[str, list[list[tuple[int, int, int]]]] = {}
    for document in sorted(documents, key=lambda one: one.name.encode()):
        held = chunk(Extracted(document.text, "utf-8", "text", "", 0, 0), tokenizer, size)
        places = [(ids.setdefault(part.ids, len(ids)), *part.bytes) for part in held]
        spans[document.name] = [places]
    return Corpus({number: stored for stored, number in ids.items()}, spans)


def cases_of(examples: Iterable[Example], corpus: Corpus, tokenizer: tokenizers.Tokenizer) -> list[Case]:
    """Turn examples into cases of a corpus that holds their documents.

    Where the evidence is unknown, any chunk that holds an answer will do; an example whose answer no chunk holds is
    left out.
    """
    found = []
    for example in examples:
        texts = {document.name: document.text for document in example.documents}
        needs = []
        for span in example.evidence:
            first = len(texts[span.document][: span.start].encode())
            end = first + len(texts[span.document][span.start : span.end].encode())
            needs.append(corpus.need(span.document, first, end))
        if not needs and example.answers:
            needs = [corpus.holding(example.answers, tokenizer)]
        if needs and all(needs):
            found.append(Case(example.question, tuple(needs)))
    return found


@contextmanager
def candidates_of(corpus: Corpus, scheme: TermScheme) -> Iterator[Candidates]:
    """Index a corpus over the terms of `scheme` in a temporary folder."""

    with tempfile.TemporaryDirectory(prefix="comem-recall-") as folder:
        path = Path(folder) / "index"
        build_index(path, corpus.chunks.items(), scheme)
        left = corpus.left()
        with open_index(path) as index:
            yield Candidates.over(index, scheme, list(corpus.chunks), corpus.chunks.__getitem__, left.__getitem__)


def selector_for(
    name: str,
    cases: Sequence[Case],
    most: int,
    hop: int,
    vectors: Callable[[], VectorSearch] | None = None,
    attention: Callable[[], tuple[Scorer, int]] | None = None,
) -> Selector:
    """Build a selector of `NAMES` that lists `most` chunks.

    attention: gives what scores chunks, and how many at once. Raises: UsageError (2) for another name, or one that
    needs what is not given; what `vectors` and `attention` raise.
    """
    if name != ORACLE:
        if name not in NAMES:
            raise UsageError(f"no recall of the selector '{name}'", f"pass --selector {', '.join(NAMES)}")
        given = attention() if name == "attention" and attention else ()
        return SelectorChoice(name, most, hop).build(vectors, *given)
    known: dict[str, set[int]] = {}
    for case in cases:
        known.setdefault(case.question, set()).update(*(need[0] for need in case.needs if need))
    return Oracle(lambda question: known[question], most)


def recall(
    cases: Sequence[Case],
    make: Callable[[int], Selector],
    candidates: Candidates,
    query: Callable[[str], Query],
    ks: Sequence[int],
) -> list[Found]:
    """Return each case's share of needs at each k. A selection without evidence finds nothing.

    make: builds the selector of so many chunks. Fewer are the first of more, but where rounds share out `top_k`.
    """
    widest = make(max(ks))
    shared = isinstance(widest, IterativeBm25)
    found = []
    for case in cases:
        asked = query(case.question)
        most = [] if shared else _chosen(widest, asked, candidates)
        chosen = [_chosen(make(k), asked, candidates) if shared else most[:k] for k in ks]
        found.append(Found(tuple(_share(case, frozenset(one)) for one in chosen)))
    return found


def _chosen(selector: Selector, query: Query, candidates: Candidates) -> list[int]:
    try:
        return [choice.chunk_id for choice in selector.select(query, candidates)]
    except NoEvidenceError:
        return []


def make_query(scheme: TermScheme, tokenizer: tokenizers.Tokenizer) -> Callable[[str], Query]:
    """Return the function that turns a question's text into a query."""

    def query(question: str) -> Query:
        ids = tokenizer.encode(question, add_special_tokens=False).ids
        return Query(question, tuple(dict.fromkeys(scheme.query_terms(ids))))

    return query


def _share(case: Case, chosen: frozenset[int]) -> float:
    met = sum(any(alternative <= chosen for alternative in need) for need in case.needs)
    return met / len(case.needs)


def _plain(text: str) -> str:
    return " ".join(text.casefold().split())
