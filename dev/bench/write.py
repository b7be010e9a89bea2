"""Ingest against the bare batched lower forward of the same chunks, and the Write modes against each other.

`bare`: the lower half over batches of whole chunks that were made before, nothing else. `ingest`: everything that
`comem ingest` does after the model is loaded, to the last commit: walk, decode, tokenise, key, forward, flush; without
the index.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest.mock import patch

import torch

from comem_cli.model import load
from comem_cli.model.shapes import TOKENS_PER_BATCH
from comem_cli.model.split import SplitModel
from comem_cli.select.store_index import refresh_index
from comem_cli.select.terms import DEFAULT_TERMS, term_scheme
from comem_cli.store.run import IngestRun
from comem_cli.store.setup import WriteOptions
from dev.bench.interleave import Figure, interleaved, ratio
from dev.bench.material import CHUNK, Material

OVERLAP = 32


def write(material: Material, split: int, chunks: int, repeat: int) -> Iterator[Figure]:
    """Yield ingest / bare, and the modes / chunk mode, all through `ingest`."""
    with tempfile.TemporaryDirectory(prefix="comem-bench-") as folder:
        docs = _documents(material, Path(folder) / "docs", chunks)
        written = _ingest(material, docs, WriteOptions(split=split), Path(folder) / "count")()
        modes = {
            "chunk": WriteOptions(split=split),
            "overlap": WriteOptions(split=split, overlap=OVERLAP),
            "document": WriteOptions(split=split, mode="document"),
        }
        arms: dict[str, Callable[[], float | None]] = {"bare": _bare(material, split, written)}
        for name, options in modes.items():
            arms[name] = _timed(_ingest(material, docs, options, Path(folder) / name))
        times = interleaved(arms, repeat)
    tokens = {"tokens": written}
    yield ratio(
        f"ingest tokens/s / bare lower forward, j={split}", times["bare"], times["chunk"], bar=0.95, facts=tokens
    )
    name = f"ingest overlap {OVERLAP} / chunk, j={split}"
    yield ratio(name, times["overlap"], times["chunk"], bar=1.05 * (1 + OVERLAP / CHUNK), better="lower")
    yield ratio(f"ingest document / chunk, j={split}", times["document"], times["chunk"])


def _timed(run: Callable[[], int]) -> Callable[[], float]:
    def timed() -> float:
        begin = time.perf_counter()
        run()
        return time.perf_counter() - begin

    return timed


def _documents(material: Material, folder: Path, chunks: int) -> Path:
    """Write files of about four chunks each, whose texts differ."""
    folder.mkdir()
    text = load.tokenizer(material.files).decode(material.ids(chunks * CHUNK))
    files = max(1, chunks // 4)
    for number in range(files):
        part = text[number * len(text) // files : (number + 1) * len(text) // files]
        (folder / f"{number:03}.md").write_text(f"Part {number}.\n{part}")
    return folder


def _bare(material: Material, split: int, tokens: int) -> Callable[[], None]:
    halves = SplitModel(material.model, split)
    batch = max(1, TOKENS_PER_BATCH[halves.device.type] // CHUNK)
    count = -(-tokens // CHUNK)
    ids = torch.tensor(material.ids(count * CHUNK), device=halves.device).view(count, CHUNK)

    @torch.inference_mode()
    def run() -> None:
        left = tokens
        for part in ids.split(batch):
            halves.lower(part[:, : min(CHUNK, left)])
            left -= part.numel()
        if halves.device.type == "cuda":
            torch.cuda.synchronize()

    return run


def _ingest(material: Material, docs: Path, options: WriteOptions, store: Path) -> Callable[[], int]:
    """Ingest into a new store each time; returns the tokens that were written."""
    count = iter(range(10**6))
    return lambda: ingest_once(material, docs, options, store.with_name(f"{store.name}-{next(count)}"))


def ingest_once(material: Material, docs: Path, options: WriteOptions, store: Path, *, index: bool = False) -> int:
    """Ingest with the model that is loaded, with its BM25 index where asked; returns the tokens that were written."""

    def nothing(*given: object) -> None:
        pass

    model = material.model  # before `load` is replaced: it is what loads it
    with patch.object(load, "load", lambda files, *picked: model):
        job = IngestRun(store, material.files, options)
        with job.open() as writer:
            done = job.ingest(writer, [docs], on_plan=nothing, on_event=nothing, on_bytes=nothing, on_load=lambda: None)
            if index:
                refresh_index(writer, term_scheme(DEFAULT_TERMS, load.tokenizer(material.files)))
    return done.written_tokens
