"""Measure recall at k of selectors and term schemes on benchmark tasks: the table in dev/LOG.md.

    python dev/recall_table.py --data DIR squad-paragraphs hotpotqa [--encoder DIR] [--chunk 512 --chunk 128]

All documents of a task are one corpus. No decoder is loaded; the tokenizer is that of the embedded model.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

from comem_cli.evaluate.recall import Corpus, cases_of, corpus_of_documents
from comem_cli.evaluate.recall_run import recall_rows
from comem_cli.evaluate.task import Document, Example, TaskContext
from comem_cli.evaluate.tasks.registry import make_task
from comem_cli.model import load
from comem_cli.select.encoder import SentenceEncoder, find_encoder
from comem_cli.select.selector import decode_ids
from comem_cli.select.vectors import build_vectors, open_vectors

SELECTORS = ("bm25", "bm25-iterative", "recency", "oracle")
KS = (4, 8, 12, 16, 24)


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


def main() -> None:
    """Print one table a task and chunk size."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tasks", nargs="+")
    parser.add_argument("--data", type=Path)
    parser.add_argument("--encoder")
    parser.add_argument("--chunk", type=int, action="append")
    parser.add_argument("--n", type=int, default=0)
    given = parser.parse_args()
    files = load.resolve(None)
    tokenizer = load.tokenizer(files)
    context = TaskContext(tokenizer, load.identity(files).tokenizer, given.data, given.n)
    encoder = SentenceEncoder(find_encoder(given.encoder)) if given.encoder else None
    selectors = [*SELECTORS, *(("dense", "hybrid") if encoder else ())]
    for task in given.tasks:
        documents, examples = pooled(make_task(task).cell(context).examples)
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
                    terms=("tokens", "folded"),
                    ks=KS,
                    vectors=lambda made=vectors: made,
                )
            print("selector\tterms\tk\trecall\tlow\thigh\tall")
            for row in rows:
                bounds = f"{row.recall.low:.3f}\t{row.recall.high:.3f}"
                print(f"{row.selector}\t{row.terms}\t{row.k}\t{row.recall.value:.3f}\t{bounds}\t{row.all_found:.3f}")


if __name__ == "__main__":
    main()
