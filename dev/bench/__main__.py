"""Print comem's speed figures: `python -m dev.bench [FIGURE…] [--repeat 7] [--out FILE]`.

Figures: read, memory, write, fetch, ask, decode. Each is a ratio of arms that took turns in one process, the median of
at least seven with its quartiles, beside the bar of the design. `read --processes 3 --warm 3 --repeat 20` is the
paper's protocol. One JSON document goes to --out, the table to stdout. With a GPU the same figures are the GPU's.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import time
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from dev.bench.interleave import Figure
from dev.bench.material import Material

SPLITS = [6, 10, 12, 15]


def main() -> int:
    """Run the figures; the exit code is 0 whether bars are met or not."""
    options = _options()
    material = Material(options.model, options.device, options.dtype)
    document: dict[str, Any] = {"machine": _machine(options), "figures": []}
    print("figure\tratio\tquartiles\tn\tbar\tmet", flush=True)
    for name in options.figure or list(FIGURES):
        for figure in FIGURES[name](material, options):
            document["figures"].append(figure.to_json())
            _show(figure)
            options.out.parent.mkdir(parents=True, exist_ok=True)
            options.out.write_text(json.dumps(document, indent=1) + "\n")
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m dev.bench", description=__doc__)
    parser.add_argument("figure", nargs="*", choices=[*FIGURES, []])
    parser.add_argument("--repeat", type=int, default=7)
    parser.add_argument("--warm", type=int, default=1)
    parser.add_argument("--processes", type=int, default=1, help="of `read`: fresh processes, pooled")
    parser.add_argument("--splits", type=_numbers, default=SPLITS)
    parser.add_argument("--split", type=int, default=12, help="of every figure but `read`")
    parser.add_argument("--chunks", type=int, default=16, help="of `write`")
    parser.add_argument("--packs", type=_numbers, default=[6, 12], help="chunks of each pack of `read`")
    parser.add_argument("--widths", type=_numbers, default=[576, 4096])
    parser.add_argument("--model")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--out", type=Path, default=Path("build/bench.json"))
    return parser.parse_args()


def _numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def _machine(options: argparse.Namespace) -> dict[str, Any]:
    names = ("torch", "transformers")
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    return {
        "processor": platform.processor() or platform.machine(),
        "threads": torch.get_num_threads(),
        "gpu": gpu,
        "libraries": {name: version(name) for name in names},
        "date": time.strftime("%Y-%m-%d"),
        "repeat": options.repeat,
    }


def _show(figure: Figure) -> None:
    bar = "" if figure.bar is None else f"{figure.bar:.3f}"
    met = {None: "", True: "yes", False: "no"}[figure.met]
    spread = f"{figure.low:.3f}..{figure.high:.3f}"
    print(f"{figure.name}\t{figure.value:.3f}\t{spread}\t{figure.n}\t{bar}\t{met}", flush=True)


def _read(material: Material, options: argparse.Namespace) -> Iterator[Figure]:
    from dev.bench.read import read, read_in_processes

    if options.processes > 1:
        return read_in_processes(material, options)
    return read(material, options.splits, options.packs, options.repeat, options.warm)


def _memory(material: Material, options: argparse.Namespace) -> Iterator[Figure]:
    from dev.bench.read import memory

    return memory(material, options.split, max(options.packs), options.repeat)


def _decode(material: Material, options: argparse.Namespace) -> Iterator[Figure]:
    from dev.bench.decode import decode

    return decode(material, options.split, min(options.packs), options.repeat)


def _write(material: Material, options: argparse.Namespace) -> Iterator[Figure]:
    from dev.bench.write import write

    return write(material, options.split, options.chunks, options.repeat)


def _fetch(material: Material, options: argparse.Namespace) -> Iterator[Figure]:
    from dev.bench.fetch import fetch

    return fetch(options.widths, 3 * options.repeat)


def _ask(material: Material, options: argparse.Namespace) -> Iterator[Figure]:
    from dev.bench.stages import ask_stages

    return ask_stages(options.model, options.split, options.repeat)


FIGURES: dict[str, Callable[[Material, argparse.Namespace], Iterator[Figure]]] = {
    "read": _read,
    "decode": _decode,
    "memory": _memory,
    "write": _write,
    "fetch": _fetch,
    "ask": _ask,
}

if __name__ == "__main__":
    sys.exit(main())
