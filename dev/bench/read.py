"""Read at a split against replay of the same pack: first token, and memory.

`read`: query Write and [j:L) over the pack up to the first token, j in turns with j = 0. The bar is 0.95 of
L / (L - j), what the layers alone would give.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from comem_cli.model.split import SplitModel
from comem_cli.read.generate import Reader, Sampling
from dev.bench.interleave import Figure, Times, interleaved, ratio
from dev.bench.material import CHUNK, Material

ONE = Sampling(max_new_tokens=1)


def read_times(material: Material, splits: list[int], chunks: int, repeat: int, warm: int) -> Times:
    """Time Read of one pack at each split, s."""
    query = material.query()
    ids = torch.tensor([material.ids(chunks * CHUNK)])

    def arm(split: int) -> Callable[[], float]:
        reader = Reader(SplitModel(material.model, split), material.identity.bos_id)
        with torch.inference_mode():
            parts = [reader.split.lower(part) for part in ids.to(reader.split.device).split(CHUNK, dim=1)]
            rows = torch.cat(parts, dim=1)[0].to(torch.bfloat16)

        def run() -> float:
            timing = reader.generate(rows, query, ONE).timing_ms
            return (timing["query_write"] + timing["read"]) / 1e3

        return run

    return interleaved({str(split): arm(split) for split in splits}, repeat, warm=warm)


def read(material: Material, splits: list[int], packs: list[int], repeat: int, warm: int) -> Iterator[Figure]:
    """Yield one figure a pack size and split."""
    layers = material.identity.n_layers
    for chunks in packs:
        times = read_times(material, [0, *splits], chunks, repeat, warm)
        for split in splits:
            full = layers / (layers - split)
            facts = {"layers_alone": round(full, 4), "pack_tokens": chunks * CHUNK}
            name = f"read j=0 / j={split}, {chunks} chunks"
            yield ratio(name, times["0"], times[str(split)], bar=round(0.95 * full, 4), facts=facts)


def memory(material: Material, split: int, chunks: int, repeat: int) -> Iterator[Figure]:
    """Yield what a Read adds to the process at its peak, at the split against j = 0, `repeat` times each."""
    query, peaks = material.query(), {0: list[float](), split: list[float]()}
    rows = torch.randn(chunks * CHUNK, material.identity.width).to(torch.bfloat16)
    for _ in range(repeat):
        for j in peaks:
            reader = Reader(SplitModel(material.model, j), material.identity.bos_id)
            peaks[j].append(_peak_mib(lambda reader=reader: reader.generate(rows, query, ONE)))
    yield ratio(
        f"peak memory of Read, j={split} / j=0, {chunks} chunks",
        peaks[split],
        peaks[0],
        facts={"mib": [round(min(peaks[split]), 1), round(min(peaks[0]), 1)]},
    )


def _peak_mib(run: Callable[[], object]) -> float:
    """Return the MiB by which resident memory rises above what it is before, at its peak (Linux)."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)  # or what the run before freed would count as there already
    Path("/proc/self/clear_refs").write_text("5")  # resets VmHWM to VmRSS
    before = _status("VmRSS")
    run()
    return max(4, _status("VmHWM") - before) / 1024


def _status(name: str) -> int:
    found = re.search(rf"{name}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1])


def read_in_processes(material: Material, options: argparse.Namespace) -> Iterator[Figure]:
    """Yield the same figures from several fresh processes, their turns pooled: the paper's protocol is 3 x 3 x 20."""
    found: dict[str, list[dict[str, Any]]] = {}
    for _ in range(options.processes):
        with tempfile.TemporaryDirectory(prefix="comem-bench-") as folder:
            out = Path(folder) / "read.json"
            given = {"--splits": ",".join(map(str, options.splits)), "--repeat": options.repeat, "--warm": options.warm}
            given |= {
                "--packs": ",".join(map(str, options.packs)),
                "--device": options.device,
                "--dtype": options.dtype,
                "--out": out,
            }
            given |= {"--model": options.model} if options.model else {}
            line = [sys.executable, "-m", "dev.bench", "read"]
            subprocess.run(
                [*line, *(str(part) for pair in given.items() for part in pair)], check=True, stdout=sys.stderr
            )
            for figure in json.loads(out.read_text())["figures"]:
                found.setdefault(figure["name"], []).append(figure)
    for name, figures in found.items():
        first, second = ([t for one in figures for t in one["facts"][key]] for key in ("first_runs_s", "second_runs_s"))
        kept = {key: value for key, value in figures[0]["facts"].items() if not key.startswith(("first", "second"))}
        facts = kept | {"processes": [round(one["value"], 4) for one in figures]}
        yield ratio(f"{name}, {len(figures)} processes", first, second, bar=figures[0]["bar"], facts=facts)
