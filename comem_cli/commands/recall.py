"""`comem recall`: how much of the evidence each selector finds in a store."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from comem_cli.commands import options
from comem_cli.commands.terms import tokenizer_of
from comem_cli.errors import PartialError, UsageError
from comem_cli.output import out

if TYPE_CHECKING:
    from comem_cli.evaluate.recall_run import RecallRow
    from comem_cli.select.attention import Scorer


def recall(
    store: Annotated[Path, typer.Argument(metavar="STORE")],
    cases: Annotated[Path, typer.Argument(metavar="CASES.jsonl", help="Questions with their evidence or answers.")],
    selector: Annotated[
        list[str] | None,
        typer.Option(
            help="bm25-iterative, bm25, hybrid, dense, attention, recency or oracle; repeatable. Default: both BM25."
        ),
    ] = None,
    terms: Annotated[list[str] | None, typer.Option(help="folded or tokens; repeatable. Default: both.")] = None,
    k: Annotated[str, typer.Option(help="Chunks that are looked at, with commas between.")] = "4,8,12,16,24",
    hop: Annotated[int, typer.Option(help="Chunks a later round of bm25-iterative adds.")] = 3,
    model: options.Model = None,
    device: options.Device = "auto",
    dtype: options.Dtype = "auto",
    json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Measure recall at k of selectors over a store.

    Each line of CASES.jsonl holds a question and either evidence, [{"path", "start", "end"}] in bytes of a file as
    `ask --json` cites it, all of it needed; or answers, of which one chunk must hold one. A case whose evidence the
    store does not hold is skipped and counted: exit 3, or 4 where none is left. The store is not changed. Only
    attention loads the model, and reads all chunks that its window holds a question.
    """
    out.configure(json=json, quiet=quiet)
    ks = _sizes(k)
    out.note(f"opening {store} ...")
    from comem_cli.evaluate.recall import corpus_of_store
    from comem_cli.evaluate.recall_cases import read_cases
    from comem_cli.evaluate.recall_run import recall_rows
    from comem_cli.read.ask import Asker, AskOptions
    from comem_cli.select.vectors import open_vectors
    from comem_cli.store.reader import StoreReader

    with ExitStack() as stack:
        reader = stack.enter_context(StoreReader(store))

        def attention() -> tuple[Scorer, int]:
            asking = AskOptions(device=device, dtype=dtype).checked()
            asker = Asker(store, lambda: options.resolve_model(model), asking, note=out.note, warn=out.warning)
            return stack.enter_context(asker).attention

        tokenizer = tokenizer_of(reader.fingerprint, options.resolve_model(model))
        corpus = corpus_of_store(reader)
        found = read_cases(cases, corpus, tokenizer)
        if ks[-1] > len(corpus.chunks):
            out.warning(
                f"--k {ks[-1]}: the store has {len(corpus.chunks)} chunks; a larger k finds no more than they hold"
            )
        rows = recall_rows(
            corpus,
            found.cases,
            tokenizer,
            selectors=selector or ["bm25", "bm25-iterative"],
            terms=terms or ["folded", "tokens"],
            ks=ks,
            hop=hop,
            vectors=lambda: open_vectors(reader),
            attention=attention,
        )
    if out.json:
        counts = {"cases": len(found.cases), "skipped": len(found.skipped), "chunks": len(corpus.chunks)}
        out.document({"store": str(store), **counts, "rows": [row.to_json() for row in rows]})
    else:
        out.table(("selector", "terms", "k", "recall", "low", "high", "all"), [_cells(row) for row in rows])
    if found.skipped:
        raise PartialError(*found.told())


def _sizes(text: str) -> list[int]:
    """Read --k; raises UsageError (2)."""
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdigit() and len(part) < 10 and int(part) for part in parts):
        raise UsageError(f"--k {text} is no list of numbers from 1", "pass --k 4,12")
    return sorted({int(part) for part in parts})


def _cells(row: RecallRow) -> tuple[Any, ...]:
    low, high = ("-" if bound is None else f"{bound:.3f}" for bound in (row.recall.low, row.recall.high))
    return row.selector, row.terms, row.k, f"{row.recall.value:.3f}", low, high, f"{row.all_found:.3f}"
