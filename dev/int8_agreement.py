"""Measure what int8 residuals change: relative error, and agreement with bf16 on the first token of answers.

    python dev/int8_agreement.py XQUAD.json --splits 12,6 [--packs 41] [--each 5] [--model M]

XQUAD.json is in SQuAD's format. A pack is two paragraphs, each a chunk written alone, the shortest ones with at least
`--each` questions; [BOS; chunks] is read once from bf16 rows and once from int8 rows, and every question of the first
paragraph after both. One TSV line a split.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
import torch

from comem_cli.model import load
from comem_cli.model.device import pick
from comem_cli.model.split import SplitModel
from comem_cli.model.write import stored_rows
from comem_cli.read.text import TEMPLATE, render
from comem_cli.store.int8 import quantise, relative_errors
from comem_cli.store.row_layout import INT8, RowLayout


def tensor(rows: bytes, layout: RowLayout) -> torch.Tensor:
    """Return rows (n, d) in bf16."""
    return torch.frombuffer(bytearray(rows), dtype=torch.bfloat16).view(-1, layout.width)


def batch(ids: list[int], split: SplitModel) -> torch.Tensor:
    """Return token ids as (1, n) where the model is."""
    return torch.tensor([ids], device=split.device)


def agreement(
    split: SplitModel, layout: RowLayout, bos: list[int], rows: list[bytes], queries: list[list[list[int]]]
) -> tuple[int, int, float]:
    """Return (answers, those with the same first token, mean KL of bf16 from int8 in nats); queries: of each pack."""
    answers = same = 0
    divergence = 0.0
    first = split.lower(batch(bos, split))[0] if bos else torch.empty(0, layout.width)
    for number, asked in enumerate(queries):
        pair = rows[number], rows[(number + 1) % len(rows)]
        caches = []
        for written in (pair, [layout.round_trip(one) for one in pair]):
            parts = [tensor(one, layout).to(split.device, split.dtype) for one in written]
            cache = split.upper_cache()
            split.upper(torch.cat([first.to(split.device, split.dtype), *parts])[None], cache)
            caches.append(cache)
        for query in asked:
            h = split.lower(batch(query, split))
            exact, other = (split.upper(h, cache)[0, -1].float().log_softmax(-1) for cache in caches)
            for cache in caches:
                cache.crop(-len(query))
            answers += 1
            same += int(exact.argmax() == other.argmax())
            divergence += float((exact.exp() * (exact - other)).sum())
    return answers, same, divergence / answers


@torch.inference_mode()
def main() -> None:
    """Print one TSV line a split."""
    parser = argparse.ArgumentParser()
    parser.add_argument("xquad", type=Path)
    parser.add_argument("--splits", default="12,6")
    parser.add_argument("--packs", type=int, default=41)
    parser.add_argument("--each", type=int, default=5)
    parser.add_argument("--model")
    args = parser.parse_args()
    files = load.resolve(args.model)
    identity, tokenizer, model = load.identity(files), load.tokenizer(files), load.load(files, *pick())
    paragraphs = [one for article in json.loads(args.xquad.read_text())["data"] for one in article["paragraphs"]]
    fitting = [one for one in paragraphs if len(one["qas"]) >= args.each]
    chosen = sorted(fitting, key=lambda one: len(one["context"]))[: args.packs]

    def ids(text: str) -> list[int]:
        found: list[int] = tokenizer.encode(text, add_special_tokens=False).ids
        return found

    queries = [[ids(render(TEMPLATE, qa["question"])) for qa in one["qas"][: args.each]] for one in chosen]
    layout = RowLayout(identity.width, INT8)
    bos = [] if identity.bos_id is None else [identity.bos_id]
    print("split\trows\terror_mean\terror_p99\terror_max\tanswers\tsame_first_token\tkl")
    for j in map(int, args.splits.split(",")):
        split = SplitModel(model, j)
        rows = [stored_rows(split.lower(batch(ids(one["context"]), split)))[0].tobytes() for one in chosen]
        errors = np.concatenate([relative_errors(one, quantise(one, layout), layout) for one in rows])
        answers, same, kl = agreement(split, layout, bos, rows, queries)
        shown = (errors.mean(), np.quantile(errors, 0.99), errors.max())
        print(j, len(errors), *(f"{one:.6f}" for one in shown), answers, same, f"{kl:.6f}", sep="\t", flush=True)


if __name__ == "__main__":
    main()
