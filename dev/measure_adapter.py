"""Measure an adapter again on held-out packs, such as 4 and 12 chunks of full length, and write that into its record.

    python dev/measure_adapter.py ADAPTER --held-out PATH... [--length 6400] [--packs 3] [--seed 0]

A run measures on packs of up to its own --length, where 12 chunks are short ones. Here --length is what the packs may
hold together with a query part: 6,400 tokens hold 12 chunks of 512. comem.json gets "metrics" (before: without the
adapter) and "measured": the settings; the history of the run stays. `ingest` looks at "metrics" for its default split.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import fields, replace
from pathlib import Path

from comem_cli.model import distill_corpus, load, lora
from comem_cli.model.adapter import RECORD, Interface, read_adapter
from comem_cli.model.device import pick
from comem_cli.model.distill_checkpoint import write_whole
from comem_cli.model.distill_data import Sampler
from comem_cli.model.distill_held import HeldOut
from comem_cli.model.distill_lesson import Lesson
from comem_cli.model.distill_options import DistillOptions


def main() -> None:
    """Measure before and after, print both, and change the record."""
    parser = argparse.ArgumentParser()
    parser.add_argument("adapter", type=Path)
    parser.add_argument("--held-out", type=Path, nargs="+", required=True)
    parser.add_argument("--length", type=int, default=6400)
    parser.add_argument("--packs", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--model")
    args = parser.parse_args()
    adapter = read_adapter(args.adapter)
    record = dict(adapter.record)
    texts = distill_corpus.read_corpus(args.held_out)
    known = {text["sha256"] for text in record["data"]}
    if seen := [text.name for text in texts if text.sha256 in known]:
        sys.exit(f"the adapter was trained on {seen[0]}")
    files = load.resolve(args.model)
    identity, tokenizer = load.identity(files), load.tokenizer(files)
    device, dtype = pick("auto", "auto")
    names = {field.name for field in fields(DistillOptions)}
    given = DistillOptions(**{name: value for name, value in record["options"].items() if name in names})
    options = replace(given, length=args.length, seed=args.seed).checked(identity)
    fit = {name: getattr(options, name) for name in ("split", "chunk", "mode", "overlap")}
    adapter.require(options.kind, Interface.of(identity, **fit))
    lesson = Lesson(load.load(files, device, dtype), identity, options)
    recipe = options.recipe(held=True)
    held = HeldOut(lesson, Sampler([text.text for text in texts], tokenizer, recipe), recipe, args.packs)
    before = held.measure()
    print(json.dumps({"before": before}), flush=True)
    lora.load_weights(lesson.forked, lora.read_weights(adapter)[1])
    after = held.measure()
    print(json.dumps({"after": after}), flush=True)
    record["metrics"] = {"before": {"step": 0, **before}, "after": {"step": record["steps"], **after}}
    record["measured"] = {
        "length": args.length,
        "packs": args.packs,
        "seed": args.seed,
        "dtype": str(dtype).removeprefix("torch."),
    }
    record["held_out"] = {"how": "named", "documents": distill_corpus.facts(texts, tokenizer)}
    write_whole(args.adapter / RECORD, json.dumps(record, indent=1).encode())


if __name__ == "__main__":
    main()
