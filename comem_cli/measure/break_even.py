"""Measure a store's break-even: both one-time costs, then both arms interleaved over the same packs. DESIGN.md §7."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from comem_cli.errors import UsageError
from comem_cli.measure.crossing import Row, row_json, solve
from comem_cli.measure.one_time import RawTime, WriteTime, raw_time, write_time
from comem_cli.measure.questions import made_questions, read_cases
from comem_cli.measure.statistics import CONFIDENCE, RESAMPLES
from comem_cli.measure.timing import BOTH, BOUNDARIES, Question, Run, interleave
from comem_cli.model import load
from comem_cli.read.ask import Asker, AskOptions
from comem_cli.select.choose import HOP
from comem_cli.store.reader import StoreReader

if TYPE_CHECKING:
    from comem_cli.read.session import Session

SCHEMA = 1
LEAST_REPEAT = 5  # with fewer the smallest and the largest repetition cover the median in less than 93 %
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class BreakEvenOptions:
    """Hold what to measure: answer lengths, repetitions, and questions from a file or `samples` made ones."""

    generate: tuple[int, ...] = (1, 32, 128)
    repeat: int = 7
    cases: Path | None = None
    samples: int = 2
    top_k: int = 12
    hop: int = HOP
    rounds: int | None = None  # as many as top_k needs
    seed: int = 0
    device: str = "auto"
    dtype: str = "auto"

    def checked(self) -> BreakEvenOptions:
        """Return the options; raises UsageError (2) for a value out of range."""
        if not self.generate or min(self.generate) < 1:
            raise UsageError("--generate needs lengths of at least 1 token", "pass --generate 1,32,128")
        if self.repeat < LEAST_REPEAT:
            raise UsageError(
                f"--repeat {self.repeat} is too few for a 95 % interval", f"pass --repeat {LEAST_REPEAT} or more"
            )
        if self.samples < 1:
            raise UsageError(f"--samples {self.samples} is below 1", "pass --samples 2")
        return self


@dataclass(frozen=True)
class BreakEven:
    """Hold everything that was measured on one store, and the rows worked out from it."""

    facts: dict[str, Any]  # store, model, machine and settings
    write: WriteTime
    raw: RawTime
    questions: tuple[Question, ...]
    rows: tuple[Row, ...]
    runs: tuple[Run, ...]

    def to_json(self, questions: int | None) -> dict[str, Any]:
        """Return every number that Q* follows from; `questions` adds the balance at that many."""
        asked = [
            {
                "question": question.text,
                "query_tokens": len(question.query),
                "chunks": len(question.evidence.pack),
                "chunk_tokens": question.evidence.tokens,
                "select_ms": question.evidence.select_ms,
            }
            for question in self.questions
        ]
        return {
            "schema": SCHEMA,
            **self.facts,
            "boundaries": BOUNDARIES,
            "write": asdict(self.write),
            "raw": asdict(self.raw),
            "rows": [row_json(row, questions) for row in self.rows],
            "questions": asked,
            "runs": [run.to_json() for run in self.runs],
        }


def measure(
    store: Path,
    resolve: Callable[[], load.ModelFiles],
    options: BreakEvenOptions,
    *,
    note: Callable[[str], None],
    warn: Callable[[str], None],
    progress: Progress,
) -> BreakEven:
    """Measure W, I0, T0 and T on a store; progress receives (runs done, runs in all).

    Raises: UsageError (2) for a store of split 0, ComemError (1) for a ledger without Write, and what `ask` raises.
    """
    _require_residuals(store)
    files = resolve()
    asking = AskOptions(
        top_k=options.top_k,
        hop=options.hop,
        rounds=options.rounds,
        max_new_tokens=max(options.generate),
        device=options.device,
        dtype=options.dtype,
    )
    with Asker(store, lambda: files, asking.checked(), note=note, warn=warn) as asker:
        reader = asker.store
        write = write_time(reader)
        questions = [Question(text, *_prepared(asker, text)) for text in _texts(reader, files, options)]
        note("timing the ingest of raw text ...")
        raw = raw_time(reader, files)
        session = asker.session
        runs = _run(session, questions, options, note, progress)
        _warn_of_other_machine(write, session, warn)
        facts = _facts(reader, files, session, options)
    rows = solve(runs, options.generate, write, raw, options.seed)
    return BreakEven(facts, write, raw, tuple(questions), tuple(rows), tuple(runs))


def _require_residuals(store: Path) -> None:
    with StoreReader(store) as reader:
        if not reader.fingerprint.split:
            raise UsageError(
                f"{store} has split 0: it is the replay arm itself, with nothing written that could pay",
                "write a store with residuals: comem ingest PATH --store DIR --split N",
            )
        write_time(reader)


def _texts(reader: StoreReader, files: load.ModelFiles, options: BreakEvenOptions) -> list[str]:
    if options.cases is not None:
        return read_cases(options.cases)
    return made_questions(reader, load.tokenizer(files), options.samples, options.seed)


def _prepared(asker: Asker, text: str) -> tuple[tuple[int, ...], Any]:
    query, evidence = asker.prepare(text)
    return tuple(query), evidence


def _run(
    session: Session,
    questions: Sequence[Question],
    options: BreakEvenOptions,
    note: Callable[[str], None],
    progress: Progress,
) -> list[Run]:
    total = options.repeat * len(questions) * len(BOTH)
    note(f"timing {total} answers of {max(options.generate)} tokens, after a warm-up ...")
    runs = []
    for run in interleave(session, questions, options.generate, options.repeat, options.seed):
        runs.append(run)
        progress(len(runs), total)
    return runs


def _warn_of_other_machine(write: WriteTime, session: Session, warn: Callable[[str], None]) -> None:
    device = str(session.model.device)
    if set(write.devices) != {device}:
        warn(f"the store was written on {', '.join(write.devices)}, questions are timed on {device}")


def _facts(reader: StoreReader, files: load.ModelFiles, session: Session, options: BreakEvenOptions) -> dict[str, Any]:
    import torch

    return {
        "store": str(reader.path),
        "store_id": reader.store_id,
        "generation": reader.generation,
        "split": reader.fingerprint.split,
        "model": files.name,
        "device": str(session.model.device),
        "dtype": str(session.model.dtype).removeprefix("torch."),
        "threads": torch.get_num_threads(),
        "generate": list(options.generate),
        "repeat": options.repeat,
        "top_k": options.top_k,
        "seed": options.seed,
        "questions_from": "cases" if options.cases is not None else "store",
        "confidence": CONFIDENCE,
        "resamples": RESAMPLES,
    }
