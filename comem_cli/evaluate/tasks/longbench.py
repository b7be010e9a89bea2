"""LongBench's six English question-answering sets, from the <dataset>.jsonl files that users supply.

A line holds input (the question), context, answers and _id. The context is the one document: nothing is cut from its
middle, as LongBench does for models with a shorter window. The prompt is comem's own, not LongBench's, so that scores
compare the arms of one run and not with published tables; answer lengths and the score are LongBench's. Questions over
one context share the document.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

from comem_cli.evaluate.task import Cell, Document, Example, TaskContext
from comem_cli.evaluate.tasks import qa
from comem_cli.evaluate.tasks.data_files import Source, read_jsonl, take
from comem_cli.evaluate.tasks.spec import Builder

NEW_TOKENS = {  # LongBench's config/dataset2maxlen.json
    "narrativeqa": 128,
    "qasper": 128,
    "multifieldqa_en": 64,
    "hotpotqa": 32,
    "2wikimqa": 32,
    "musique": 32,
}


@dataclass(frozen=True)
class LongBench:
    """Load one of the six sets, a key of NEW_TOKENS."""

    dataset: str

    @property
    def source(self) -> Source:
        """Return where its file is and comes from."""
        return Source(
            f"LongBench {self.dataset}",
            (f"longbench/{self.dataset}.jsonl", f"LongBench/{self.dataset}.jsonl", f"{self.dataset}.jsonl"),
            "https://github.com/THUDM/LongBench",
            "MIT for LongBench; the texts keep the terms of their own data sets",
        )

    def cell(self, context: TaskContext) -> Cell:
        """Load the examples; raises UsageError (2) where the file is missing or a line is not one of LongBench's."""
        path = self.source.find(context)
        examples, corpora = [], dict[str, tuple[Document, ...]]()
        for number, given in read_jsonl(path):
            with self.source.reading(path, number):
                examples.append(_example(given, corpora))
        return Cell(
            task=f"longbench_{self.dataset}",
            label="",
            cohort=f"longbench/comem-1 file={path.name} {qa.PROMPT}",
            scorer=qa.QA_SCORER,
            max_new_tokens=NEW_TOKENS[self.dataset],
            examples=take(examples, context.n, context.seed),
            stop=qa.QA_STOP,
            provenance=self.source.provenance(path) | {"questions": str(len(examples)), "seed": str(context.seed)},
        )


def _example(given: dict[str, Any], corpora: dict[str, tuple[Document, ...]]) -> Example:
    text, question = given["context"], given["input"].strip()
    group = hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
    documents = corpora.setdefault(group, (Document("context.txt", text),))
    return Example(given["_id"], documents, question, qa.prompt(question), qa.answers(given["answers"]), group=group)


def _builder(dataset: str) -> Builder:
    return lambda options: LongBench(dataset)


LONGBENCH_TASKS: dict[str, Builder] = {f"longbench_{dataset}": _builder(dataset) for dataset in NEW_TOKENS}
