"""Score the predictions of `comem eval` by another rule, as new records: no model runs.

    python dev/rescore.py TASK SCORER OUT RECORDS... [--n 300] [--data DIR]

An example is known by its id; the cell of the new records is TASK's name with the scorer's. `comem eval --out OUT`
reports them, paired as any others. Take a rule of the same answers, such as answer_contained for qa_f1: a prediction
was cut where its own rule had settled.
"""

from __future__ import annotations

import argparse
import os
import sys
from dataclasses import replace
from pathlib import Path

from comem_cli.evaluate.records import RecordFile, read_records
from comem_cli.evaluate.score import scorer
from comem_cli.evaluate.task import TaskContext
from comem_cli.evaluate.tasks.registry import make_task
from comem_cli.model import load


def main() -> None:
    """Write OUT; it must not be there."""
    parser = argparse.ArgumentParser()
    parser.add_argument("task")
    parser.add_argument("scorer")
    parser.add_argument("out", type=Path)
    parser.add_argument("records", type=Path, nargs="+")
    parser.add_argument("--n", type=int, default=100)
    parser.add_argument("--data", type=Path, default=os.environ.get("COMEM_DATA") or None)
    parser.add_argument("--model")
    args = parser.parse_args()
    if args.out.exists():
        sys.exit(f"{args.out} is there already")
    files = load.resolve(args.model)
    context = TaskContext(load.tokenizer(files), load.identity(files).tokenizer, args.data, args.n)
    cell = make_task(args.task).cell(context)
    rule, examples = scorer(args.scorer), {example.id: example for example in cell.examples}
    name = f"{cell.name}:{args.scorer}"
    with RecordFile(args.out) as out:
        for path in args.records:
            for record in read_records(path):
                if record.example in examples and record.cell == cell.name:
                    score = rule.score(record.prediction, examples[record.example])
                    out.add(replace(record, cell=name, score=score))


if __name__ == "__main__":
    main()
