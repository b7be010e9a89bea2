"""Timing boundaries: what each figure of a question includes, and how two arms are timed over identical packs.

All G of one arm share a run of the largest G: the time at G is that of the parts before decoding plus the decoding up
to token G, taken from a time stamp a token. The arms are interleaved: in every repetition each question runs through
both, questions and arms in an order drawn from a seed, so that drift of the machine meets both alike.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from comem_cli.read.ask import ARMS
from comem_cli.read.evidence import Evidence

if TYPE_CHECKING:
    from comem_cli.read.session import Session

BOTH = ARMS["both"]
BOUNDARIES = {
    "select": "question to chunks, their token ids read; both arms share it, so it is in no total",
    "fetch": "what is left to wait for the pack's rows when the query is written: comem reads residuals from the store "
    "and checks every checksum meanwhile, replay embeds the token ids then",
    "query_write": "layers [0:j) over the query",
    "read": "layers [j:L) over the pack, up to the first new token",
    "decode": "every further token up to the G-th; end-of-sequence ids do not end it",
}
WARM_TOKENS = 2  # enough to run every kind of forward once


@dataclass(frozen=True)
class Question:
    """Hold a question that both arms get: its text, the rendered query's ids and the selected chunks."""

    text: str
    query: tuple[int, ...]
    evidence: Evidence


@dataclass(frozen=True)
class Run:
    """Hold one timed run of one arm over one question, in ms; decode_ms: G -> ms up to token G.

    order: 0 for the arm of a pair that ran first.
    """

    repetition: int
    question: int
    arm: str
    order: int
    fetch_ms: float
    query_write_ms: float
    read_ms: float
    decode_ms: dict[int, float]

    def seconds(self, new_tokens: int) -> float:
        """Return fetch + query Write + Read + decode for exactly `new_tokens` tokens, in s."""
        return (self.fetch_ms + self.query_write_ms + self.read_ms + self.decode_ms[new_tokens]) / 1e3

    def to_json(self) -> dict[str, Any]:
        """Return the fields as JSON values, unrounded."""
        return {**vars(self), "decode_ms": {str(length): ms for length, ms in self.decode_ms.items()}}


def run_arm(
    session: Session, question: Question, arm: str, lengths: Sequence[int]
) -> tuple[dict[str, float], dict[int, float]]:
    """Run one arm for exactly max(lengths) greedy tokens; return ms by boundary and decode ms at each length."""
    from comem_cli.read.generate import Sampling

    stamps: list[float] = []

    def on_token(token: int) -> bool:
        stamps.append(time.perf_counter())  # drawing an id has waited for the accelerator
        return False

    sampling = Sampling(max_new_tokens=max(lengths))
    done = session.generate(question.evidence, question.query, arm, sampling, on_token)
    return done.timing_ms, {length: (stamps[length - 1] - stamps[0]) * 1e3 for length in lengths}


def interleave(
    session: Session, questions: Sequence[Question], lengths: Sequence[int], repeat: int, seed: int
) -> Iterator[Run]:
    """Warm up once with every question and arm, then yield the timed runs of `repeat` repetitions."""
    for question in questions:
        for arm in BOTH:
            run_arm(session, question, arm, [min(WARM_TOKENS, max(lengths))])
    draw = random.Random(seed)
    for repetition in range(repeat):
        for number in draw.sample(range(len(questions)), len(questions)):
            for order, arm in enumerate(draw.sample(BOTH, len(BOTH))):
                ms, decode = run_arm(session, questions[number], arm, lengths)
                yield Run(repetition, number, arm, order, ms["fetch"], ms["query_write"], ms["read"], decode)


def by_repetition(runs: Sequence[Run], arm: str, new_tokens: int) -> list[float]:
    """Return the mean time a question of one arm in each repetition, in s."""
    times: dict[int, list[float]] = {}
    for run in runs:
        if run.arm == arm:
            times.setdefault(run.repetition, []).append(run.seconds(new_tokens))
    return [sum(some) / len(some) for _, some in sorted(times.items())]
