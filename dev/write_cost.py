"""Measure what Write costs by mode and split, against chunk mode, on a store's own documents.

    python dev/write_cost.py STORE [--splits 6,10,12] [--tokens 15000] [--repeat 3] [--model M]

Arms are interleaved in one process; prints the median wall and CPU ratio to chunk mode beside the ratio of FLOPs.
"""

from __future__ import annotations

import argparse
import random
import statistics
from pathlib import Path

from comem_cli.evaluate.tune_speed import write_once
from comem_cli.model import load
from comem_cli.model.device import pick
from comem_cli.model.flops import lower_flops
from comem_cli.model.modes import ChunkMode, DocumentMode, OverlapMode, WriteMode
from comem_cli.model.split import SplitModel
from comem_cli.store.reader import StoreReader

LONGEST = 24  # chunks of a document


def sample_documents(store: Path, tokens: int) -> list[list[bytes]]:
    """Draw documents of 2 to LONGEST chunks until they hold `tokens` tokens."""
    with StoreReader(store) as reader:
        ids = [row.id for row in reader.documents()]
        random.Random(1).shuffle(ids)
        drawn: list[list[bytes]] = []
        for document in ids:
            chunks = [chunk.ids for chunk in reader.document_chunks(document)]
            if 2 <= len(chunks) <= LONGEST:
                drawn.append(chunks)
            if sum(len(chunk) for chunks in drawn for chunk in chunks) // 4 >= tokens:
                break
    return drawn


def main() -> None:
    """Print one TSV line a split and mode: wall, CPU and FLOP ratio to chunk mode."""
    parser = argparse.ArgumentParser()
    parser.add_argument("store", type=Path)
    parser.add_argument("--splits", default="6,10,12")
    parser.add_argument("--tokens", type=int, default=15_000)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--model")
    args = parser.parse_args()
    files = load.resolve(args.model)
    identity, model = load.identity(files), load.load(files, *pick())
    documents = sample_documents(args.store, args.tokens)
    lengths = [[len(chunk) // 4 for chunk in chunks] for chunks in documents]
    modes: dict[str, WriteMode] = {
        "chunk": ChunkMode(),
        "overlap 32": OverlapMode(32),
        "overlap 128": OverlapMode(128),
        "document": DocumentMode(identity.window),
    }
    print(f"# {len(documents)} documents, {sum(map(sum, lengths))} tokens, {sum(map(len, lengths))} chunks")
    for j in map(int, args.splits.split(",")):
        split, flops = SplitModel(model, j), lower_flops(files.directory, j)
        costs = {name: sum(flops.forwards(mode.forwards(n)) for n in lengths) for name, mode in modes.items()}
        times: dict[str, list[tuple[float, float]]] = {name: [] for name in modes}
        for _ in range(args.repeat):
            for name, mode in modes.items():
                times[name].append(write_once(split, mode, documents, 512, routed=identity.routed))
        for name in modes:
            wall, cpu = (
                statistics.median(run[k] for run in times[name]) / statistics.median(run[k] for run in times["chunk"])
                for k in (0, 1)
            )
            print(f"{j}\t{name}\t{wall:.3f}\t{cpu:.3f}\t{costs[name] / costs['chunk']:.3f}", flush=True)


if __name__ == "__main__":
    main()
