"""Measure recall at k of selectors and term schemes on benchmark tasks: the table in dev/LOG.md.

    python dev/recall_table.py --data DIR xquad:documents=paragraph hotpotqa [--encoder DIR] [--chunk 512 --chunk 128]
    python dev/recall_table.py --apart --n 30 vt:8192 vt:131072:hops=11 niah_multikey_1:8192 [--bare] [--ask prompt]

All documents of a task are one corpus; with --apart, which RULER wants, each example is one of its own. There a need is
a chunk with evidence, not a span, and the last column is what k chunks can hold at best: the mean of min(1, k / E) over
the examples, E their chunks with evidence. A line on stderr names each example of which 12 chunks miss some. No decoder
is loaded; the tokenizer is that of the embedded model. Generated cells are kept in the user's cache.

--bare leaves of a document of variable tracking only its haystack: neither solved example nor task sentence.
--attention 12, with --apart, adds the attention selector over a store of that split; it loads the model, and its window
bounds how many chunks it can compare.
--ask prompt asks all that stands after the document, in place of the question's sentence.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import fmean
from subprocess import DEVNULL, run
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

from comem_cli.evaluate.recall import (
    Case,
    Corpus,
    Found,
    candidates_of,
    cases_of,
    corpus_of_documents,
    corpus_of_store,
    make_query,
    recall,
    selector_for,
)
from comem_cli.evaluate.recall_run import RecallRow, recall_rows, rows_of
from comem_cli.evaluate.task import Document, Example, TaskContext
from comem_cli.evaluate.tasks.cache import cached_cell
from comem_cli.evaluate.tasks.registry import make_task
from comem_cli.evaluate.tasks.ruler_vt import HEAD
from comem_cli.model import load
from comem_cli.read.ask import Asker, AskOptions
from comem_cli.select.choose import HOP
from comem_cli.select.encoder import SentenceEncoder, find_encoder
from comem_cli.select.selector import Selector, decode_ids
from comem_cli.select.terms import term_scheme
from comem_cli.select.vectors import build_vectors, open_vectors
from comem_cli.store.reader import StoreReader

TERMS = ("tokens", "folded")
SELECTORS = ("bm25", "bm25-iterative", "recency", "oracle")
APART = ("bm25", "bm25-iterative", "oracle")
KS = (4, 8, 12, 16, 24)
TOLD = 12  # chunks in which a miss is named
NONE: Mapping[int, str] = {}


def pooled(examples: Sequence[Example]) -> tuple[list[Document], list[Example]]:
    """Put the documents of all examples into one corpus; a name that two texts share gets the example's id in front."""
    texts: dict[str, str] = {}
    made = []
    for example in examples:
        names = {}
        for document in example.documents:
            name = document.name
            if texts.setdefault(name, document.text) != document.text:
                name = f"{example.id}/{document.name}"
                texts[name] = document.text
            names[document.name] = name
        documents = tuple(Document(names[one.name], one.text) for one in example.documents)
        spans = tuple(replace(span, document=names[span.document]) for span in example.evidence)
        made.append(replace(example, documents=documents, evidence=spans))
    return [Document(name, text) for name, text in texts.items()], made


def vectors_of(corpus: Corpus, tokenizer: Any, encoder: SentenceEncoder, folder: Path) -> Any:
    """Encode a corpus and open its vectors."""
    texts = ((key, tokenizer.decode(list(decode_ids(ids)))) for key, ids in corpus.chunks.items())
    build_vectors(folder, encoder, texts, "corpus")
    reader: Any = SimpleNamespace(path=folder, content="corpus")
    return open_vectors(reader)


def bare(example: Example) -> Example:
    """Cut all but the haystack off a document of variable tracking; raises ValueError for other documents."""
    (document,) = example.documents
    start = document.text.rindex(HEAD) + len(HEAD)
    spans = tuple(replace(span, start=span.start - start, end=span.end - start) for span in example.evidence)
    return replace(example, documents=(Document(document.name, document.text[start:]),), evidence=spans)


def by_chunk(example: Example, corpus: Corpus, tokenizer: Any) -> list[Case]:
    """Return the one case of an example whose needs are its chunks with evidence, one by one."""
    (case,) = cases_of([example], corpus, tokenizer)
    held = sorted(set().union(*(need[0] for need in case.needs)))
    return [Case(case.question, tuple((frozenset({chunk}),) for chunk in held))]


def attended(example: Example, files: load.ModelFiles, size: int, split: int, ks: Sequence[int]) -> Found:
    """Return what the attention selector finds in a store of one example, with chunks of `size` tokens."""
    with TemporaryDirectory() as folder, ExitStack() as stack:
        docs, store = Path(folder, "docs"), Path(folder, "store")
        docs.mkdir()
        (document,) = example.documents
        (docs / "text.txt").write_text(document.text, encoding="utf-8", newline="")
        done = ["ingest", str(docs), "--store", str(store), "--split", str(split), "--chunk", str(size), "-q"]
        run([sys.executable, "-m", "comem_cli", *done], check=True, stdout=DEVNULL)
        corpus = corpus_of_store(stack.enter_context(StoreReader(store)))
        (name,) = corpus.spans
        spans = tuple(replace(span, document=name) for span in example.evidence)
        example = replace(example, documents=(Document(name, document.text),), evidence=spans)
        tokenizer = load.tokenizer(files)
        cases = by_chunk(example, corpus, tokenizer)
        asker = stack.enter_context(Asker(store, lambda: files, AskOptions().checked(), note=str, warn=str))
        scheme = term_scheme("folded", tokenizer)
        with candidates_of(corpus, scheme) as candidates:

            def make(most: int) -> Selector:
                return selector_for("attention", cases, most, HOP, attention=lambda: asker.attention)

            return recall(cases, make, candidates, make_query(scheme, tokenizer), ks)[0]


def apart(
    task: str,
    examples: Sequence[Example],
    files: load.ModelFiles,
    size: int,
    schemes: Sequence[str],
    ks: Sequence[int],
    split: int | None,
    selectors: Sequence[str],
    encoder: SentenceEncoder | None,
) -> None:
    """Print the table of a task whose every example is a corpus of its own; split: of `attended`."""
    tokenizer = load.tokenizer(files)
    found: dict[tuple[str, str], list[Found]] = {}
    chunks, evidence = [], []
    for example in examples:
        corpus = corpus_of_documents(example.documents, tokenizer, size)
        cases = by_chunk(example, corpus, tokenizer)
        chunks.append(len(corpus.chunks))
        evidence.append(len(cases[0].needs))
        if split is not None:
            found.setdefault(("attention", "-"), []).append(attended(example, files, size, split, ks))
        for terms in schemes:
            scheme = term_scheme(terms, tokenizer)
            with candidates_of(corpus, scheme) as candidates, TemporaryDirectory() as folder:
                vectors = vectors_of(corpus, tokenizer, encoder, Path(folder)) if encoder else None
                for name in selectors:
                    make = partial(selector_for, name, cases, hop=HOP, vectors=lambda made=vectors: made)
                    (got,) = recall(cases, make, candidates, make_query(scheme, tokenizer), ks)
                    found.setdefault((name, terms), []).append(got)
                    if TOLD in ks and got.shares[ks.index(TOLD)] < min(1.0, TOLD / evidence[-1]):
                        print(example.id, name, terms, got.shares, file=sys.stderr, flush=True)
    print(f"\n{task}, chunk {size}: {len(examples)} corpora of {fmean(chunks):.0f} chunks, ", end="")
    print(f"{fmean(evidence):.2f} with evidence ({min(evidence)} to {max(evidence)})")
    most = {k: f"\t{fmean(min(1.0, k / one) for one in evidence):.3f}" for k in ks}
    show([row for (name, terms), got in found.items() for row in rows_of(name, terms, got, ks)], most)


def show(rows: Sequence[RecallRow], most: Mapping[int, str] = NONE) -> None:
    """Print rows; most: a further column by k."""
    print("selector\tterms\tk\trecall\tlow\thigh\tall", "\tat best" if most else "", sep="")
    for row in rows:
        low, high = ("-" if bound is None else f"{bound:.3f}" for bound in (row.recall.low, row.recall.high))
        figures = f"{row.recall.value:.3f}\t{low}\t{high}\t{row.all_found:.3f}"
        print(f"{row.selector}\t{row.terms}\t{row.k}\t{figures}{most.get(row.k, '')}", flush=True)


def main() -> None:
    """Print one table a task and chunk size."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tasks", nargs="+")
    parser.add_argument("--data", type=Path)
    parser.add_argument("--encoder")
    parser.add_argument("--chunk", type=int, action="append")
    parser.add_argument("--n", type=int, default=0)
    parser.add_argument("--terms", action="append", choices=TERMS)
    parser.add_argument("--selector", action="append", help="instead of all that need no model")
    parser.add_argument("--k", type=int, action="append")
    parser.add_argument("--apart", action="store_true")
    parser.add_argument("--attention", type=int, metavar="SPLIT")
    parser.add_argument("--bare", action="store_true")
    parser.add_argument("--ask", choices=("question", "prompt"), default="question")
    given = parser.parse_args()
    files = load.resolve(None)
    tokenizer = load.tokenizer(files)
    context = TaskContext(tokenizer, load.identity(files).tokenizer, given.data, given.n)
    encoder = SentenceEncoder(find_encoder(given.encoder)) if given.encoder else None
    selectors = given.selector or [*(APART if given.apart else SELECTORS), *(("dense", "hybrid") if encoder else ())]
    schemes, ks = given.terms or TERMS, sorted(given.k or KS)
    for task in given.tasks:
        found = cached_cell(task, make_task(task), context).examples
        if given.ask == "prompt":
            found = tuple(replace(one, question=one.prompt) for one in found)
        if given.bare:
            found = tuple(map(bare, found))
        if given.apart:
            for size in given.chunk or [512]:
                apart(task, found, files, size, schemes, ks, given.attention, selectors, encoder)
            continue
        documents, examples = pooled(found)
        for size in given.chunk or [512]:
            corpus = corpus_of_documents(documents, tokenizer, size)
            cases = cases_of(examples, corpus, tokenizer)
            kind = "spans" if any(one.evidence for one in examples) else "answers"
            print(f"\n{task}, chunk {size}: {len(documents)} documents, {len(corpus.chunks)} chunks, ", end="")
            print(f"{len(cases)} of {len(examples)} questions, evidence: {kind}")
            with TemporaryDirectory() as folder:
                vectors = vectors_of(corpus, tokenizer, encoder, Path(folder)) if encoder else None
                rows = recall_rows(
                    corpus,
                    cases,
                    tokenizer,
                    selectors=selectors,
                    terms=schemes,
                    ks=ks,
                    vectors=lambda made=vectors: made,
                )
            show(rows)


if __name__ == "__main__":
    main()
