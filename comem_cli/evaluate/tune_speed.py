"""How long Read takes at each split, and Write in each mode: interleaved in one process, as medians of repetitions.

Read: query Write, layers [j:L) over the pack and exactly G new tokens, over the same packs for every split and for
replay (j = 0). Modes and merged adapters change neither shapes nor work, so one Read a split stands for all its arms.
Fetching stored rows is left out; `comem break-even` measures it on a store. Write: layers [0:j) over whole documents,
each mode beside chunk mode at the same j; reading and tokenising, which replay needs too, are left out.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch

from comem_cli.evaluate.pack_fidelity import Documents
from comem_cli.model.modes import WriteMode
from comem_cli.model.shapes import TOKENS_PER_BATCH
from comem_cli.model.split import SplitModel
from comem_cli.read.generate import Clock, Reader, Sampling
from comem_cli.store.fingerprint import chunk_key

LONGEST = 24  # chunks of a document that is written
Tick = Callable[[], None]


@dataclass(frozen=True)
class ReadTimes:
    """Hold s a question in each repetition, the mean over the packs.

    first: query Write and Read, up to the first token; whole: up to the G-th.
    """

    first: tuple[float, ...]
    whole: tuple[float, ...]


@dataclass(frozen=True)
class Timed:
    """Hold what is read: a reader, its rows (n, d) for each pack, and each pack's query."""

    reader: Reader
    rows: tuple[torch.Tensor, ...]
    queries: tuple[tuple[int, ...], ...]


def read_times(timed: Mapping[int, Timed], new_tokens: int, repeat: int, seed: int, tick: Tick) -> dict[int, ReadTimes]:
    """Time every split over every pack `repeat` times, splits in a drawn order, after one run of each to warm up."""
    draw, sampling = random.Random(seed), Sampling(max_new_tokens=new_tokens)
    found: dict[int, list[list[dict[str, float]]]] = {split: [[] for _ in range(repeat)] for split in timed}
    for repetition in range(-1, repeat):
        for pack in range(len(next(iter(timed.values())).rows)):
            for split in draw.sample(sorted(timed), len(timed)):
                one = timed[split]
                done = one.reader.generate(one.rows[pack], one.queries[pack], sampling)
                if repetition >= 0:
                    found[split][repetition].append(done.timing_ms)
                tick()
    return {split: ReadTimes(_means(runs, "read"), _means(runs, "decode")) for split, runs in found.items()}


def _means(runs: Sequence[Sequence[Mapping[str, float]]], last: str) -> tuple[float, ...]:
    """Return the mean s up to the end of a boundary, for each repetition."""
    parts = ("query_write", "read", "decode")
    upto = parts[: parts.index(last) + 1]
    return tuple(sum(sum(run[part] for part in upto) for run in some) / len(some) / 1e3 for some in runs)


def sample_documents(documents: Documents, tokens: int, seed: int) -> list[list[bytes]]:
    """Draw documents, each through its first LONGEST chunks, until they hold `tokens` tokens."""
    ids = [row.id for row in documents.reader.documents()]
    random.Random(f"{seed}/write").shuffle(ids)
    drawn: list[list[bytes]] = []
    held = 0
    for document in ids:
        chunks = documents.chunks(document)[:LONGEST]
        if chunks:
            drawn.append(chunks)
            held += sum(map(len, chunks)) // 4
        if held >= tokens:
            break
    return drawn


def write_once(
    split: SplitModel, mode: WriteMode, documents: Sequence[Sequence[bytes]], chunk: int, *, routed: bool
) -> tuple[float, float]:
    """Write every document in a mode, in the batch shapes of `ingest`; return wall s and CPU s."""
    shapes = mode.shapes(chunk, TOKENS_PER_BATCH[split.device.type], routed=routed)
    writer, key = mode.writer(split, shapes), partial(chunk_key, "00" * 16)
    clock, cpu = Clock(split.device), time.process_time()
    for document in documents:
        for pending in mode.pending(document, key):
            list(writer.add(pending))
    list(writer.flush())
    return clock.lap() / 1e3, time.process_time() - cpu


def write_times(
    split: SplitModel,
    modes: Sequence[WriteMode],
    documents: Sequence[Sequence[bytes]],
    chunk: int,
    *,
    routed: bool,
    repeat: int,
    tick: Tick,
) -> list[tuple[float, ...]]:
    """Return the wall s of each mode in each repetition, modes interleaved, after a warm-up on one document."""
    found: list[list[float]] = [[] for _ in modes]
    for mode in modes:
        write_once(split, mode, documents[:1], chunk, routed=routed)
    for _ in range(repeat):
        for number, mode in enumerate(modes):
            found[number].append(write_once(split, mode, documents, chunk, routed=routed)[0])
            tick()
    return [tuple(times) for times in found]
