"""Measure recall at k of selectors and term schemes on benchmark tasks: the table in dev/LOG.md.

    python dev/recall_table.py --data DIR squad-paragraphs hotpotqa [--encoder DIR] [--chunk 512 --chunk 128]
    python dev/recall_table.py --apart --n 30 vt:8192 vt:131072:hops=11 niah_multikey_1:8192

All documents of a task are one corpus; with --apart, which RULER wants, each example is one of its own. There a need is
a chunk with evidence, not a span, and the last column is what k chunks can hold at best: the mean of min(1, k / E) over
the examples, E their chunks with evidence. No decoder is loaded; the tokenizer is that of the embedded model.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
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
    make_query,
    recall,
    selector_for,
)
from comem_cli.evaluate.recall_run import RecallRow, recall_rows, rows_of
from comem_cli.evaluate.task import Document, Example, TaskContext
from comem_cli.evaluate.tasks.registry import make_task
from comem_cli.model import load
from comem_cli.select.encoder import SentenceEncoder, find_encoder
from comem_cli.select.selector import decode_ids
from comem_cli.select.terms import term_scheme
from comem_cli.select.vectors import build_vectors, open_vectors

TERMS = ("tokens", "folded")
SELECTORS = ("bm25", "bm25-iterative", "recency", "oracle")
KS = (4, 8, 12, 16, 24)
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


def apart(task: str, examples: Sequence[Example], tokenizer: Any, size: int) -> None:
    """Print the table of a task whose every example is a corpus of its own."""
    found: dict[tuple[str, str], list[Found]] = {}
    chunks, evidence = [], []
    for example in examples:
        corpus = corpus_of_documents(example.documents, tokenizer, size)
        (case,) = cases_of([example], corpus, tokenizer)
        held = sorted(set().union(*(need[0] for need in case.needs)))
        cases = [Case(case.question, tuple((frozenset({chunk}),) for chunk in held))]
        chunks.append(len(corpus.chunks))
        evidence.append(len(held))
        for terms in TERMS:
            scheme = term_scheme(terms, tokenizer)
            with candidates_of(corpus, scheme) as candidates:
                for name in ("bm25", "bm25-iterative"):
                    selector = selector_for(name, cases, max(KS), 4)
                    got = recall(cases, selector, candidates, make_query(scheme, tokenizer), KS)
                    found.setdefault((name, terms), []).extend(got)
    print(f"\n{task}, chunk {size}: {len(examples)} corpora of {fmean(chunks):.0f} chunks, ", end="")
    print(f"{fmean(evidence):.2f} with evidence ({min(evidence)} to {max(evidence)})")
    most = {k: f"\t{fmean(min(1.0, k / one) for one in evidence):.3f}" for k in KS}
    show([row for (name, terms), got in found.items() for row in rows_of(name, terms, got, KS)], most)


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
    parser.add_argument("--apart", action="store_true")
    given = parser.parse_args()
    files = load.resolve(None)
    tokenizer = load.tokenizer(files)
    context = TaskContext(tokenizer, load.identity(files).tokenizer, given.data, given.n)
    encoder = SentenceEncoder(find_encoder(given.encoder)) if given.encoder else None
    selectors = [*SELECTORS, *(("dense", "hybrid") if encoder else ())]
    for task in given.tasks:
        found = make_task(task).cell(context).examples
        if given.apart:
            for size in given.chunk or [512]:
                apart(task, found, tokenizer, size)
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
                    terms=TERMS,
                    ks=KS,
                    vectors=lambda made=vectors: made,
                )
            show(rows)


if __name__ == "__main__":
    main()
