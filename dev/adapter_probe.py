"""Measure an adapter on held-out text: LM tax and agreement on plain packs, copying of planted facts, before and after.

    python dev/adapter_probe.py --split 12 --data TEXTS [--adapter DIR [--unmerged]] [--chunks 4,12] [--n 40]

For each number of chunks: `--texts` packs of plain text give LM tax and agreement over the pack's tokens; `--n` packs
with planted facts, up to four asked for, in phrasings that training never sees give copying, which needs no decoding: a
value is copied where it is the first choice at each of its tokens. Arms: replay (stock, j = 0), frozen (no adapter),
adapted (merged, as `ask` reads), unmerged (with --unmerged: the adapter in fp32 beside the weights, not rounded into
them). Copying is paired: the last columns count facts that only replay and that only the adapted reader copies, with
McNemar's exact p.
Name data that the adapter was not trained on.
"""

from __future__ import annotations

import argparse
import sys
from functools import partial
from pathlib import Path

import torch

from comem_cli.measure.inference import mcnemar_exact
from comem_cli.model import load, lora
from comem_cli.model.adapter import Interface, choose_adapter
from comem_cli.model.device import pick
from comem_cli.model.distill_corpus import read_corpus
from comem_cli.model.distill_data import Sampler
from comem_cli.model.distill_held import Scores, compare, score
from comem_cli.model.distill_options import DistillOptions
from comem_cli.model.distill_pack import PackMaker
from comem_cli.model.distill_read import say
from comem_cli.model.distill_sample import Recipe, Sample
from comem_cli.model.distill_step import pack_logits, part_logits
from comem_cli.model.modes import make_mode
from comem_cli.model.split import SplitModel


def exactly(sampler: Sampler, chunks: int, size: int, kind: str, count: int, seed: int) -> list[tuple[int, Sample]]:
    """Draw `count` samples with a part of a kind whose packs hold `chunks` chunks, cut at `size` tokens."""
    found: list[tuple[int, Sample]] = []
    for number in range(10_000):
        sample = sampler.sample(seed, number, chunks)
        whole = all(len(stretch.chunks[0]) == size for stretch in sample.stretches)
        if whole and len(sample.lengths) == chunks and any(part.kind == kind for part in sample.parts):
            found.append((number, sample))
        if len(found) == count:
            return found
    sys.exit(f"the texts are too short for {count} packs of {chunks} chunks")


def main() -> None:
    """Print one TSV line a number of chunks."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--split", type=int, required=True)
    parser.add_argument("--data", type=Path, nargs="+", required=True)
    parser.add_argument("--adapter")
    parser.add_argument("--unmerged", action="store_true")
    parser.add_argument("--mode", default="chunk")
    parser.add_argument("--overlap", type=int, default=0)
    parser.add_argument("--chunk", type=int, default=512)
    parser.add_argument("--chunks", default="4,12")
    parser.add_argument("--texts", type=int, default=8)
    parser.add_argument("--n", type=int, default=40)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--model")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--dtype", default="auto")
    args = parser.parse_args()
    files = load.resolve(args.model)
    identity, tokenizer = load.identity(files), load.tokenizer(files)
    mode_name = "overlap" if args.overlap and args.mode == "chunk" else args.mode
    here = Interface.of(identity, split=args.split, chunk=args.chunk, mode=mode_name, overlap=args.overlap)
    adapter = choose_adapter(args.adapter, "suffix", here)
    model = load.load(files, *pick(args.device, args.dtype))
    teacher, frozen = SplitModel(model, 0), SplitModel(model, args.split)
    arms = {"replay": teacher, "frozen": frozen}
    if adapter is not None:
        arms["adapted"] = SplitModel(lora.adapted(model, adapter), args.split)
        if args.unmerged:
            arms["unmerged"] = SplitModel(lora.adapted(model, adapter, merge=False), args.split)
    texts = [text.text for text in read_corpus(args.data)]
    mode = make_mode(mode_name, args.overlap, identity.window)
    print("chunks\tarm\ttokens\tlm_tax\tagreement\tcopied\tonly replay\tonly this\tp", flush=True)
    for chunks in map(int, args.chunks.split(",")):
        length = chunks * args.chunk + 256
        options = DistillOptions(args.split, chunk=args.chunk, length=length, max_chunks=chunks)
        maker = PackMaker(frozen, frozen, mode, options, identity.bos_id)
        seen: dict[str, list[Scores]] = {arm: [] for arm in arms}
        copied: dict[str, list[bool]] = {arm: [] for arm in arms}
        for kind, count in (("continue", args.texts), ("fact", args.n)):
            held = kind == "fact"
            sampler = Sampler(texts, tokenizer, Recipe({kind: 1.0}, args.chunk, length, chunks, held=held))
            for drawn in exactly(sampler, chunks, args.chunk, kind, count, args.seed):
                packs = maker.packs([drawn], every=True)
                state = pack_logits(teacher, packs, stock=True)[1]
                parts = maker.parts(packs, partial(say, teacher, state))
                for arm, split in arms.items():
                    with torch.inference_mode():
                        inside, state = pack_logits(split, packs, stock=split is teacher)
                        said = part_logits(split, state, parts, stock=split is teacher)
                        result = score(packs[0], parts[0], inside, said)
                    if held:
                        copied[arm] += [right for asked, right in result.copied if asked == "fact"]
                    else:
                        seen[arm].append(result)
        for arm in arms:
            plain = compare(seen[arm], seen["replay"])
            pairs = list(zip(copied["replay"], copied[arm], strict=True))
            lost, won = sum(a and not b for a, b in pairs), sum(b and not a for a, b in pairs)
            share = f"{sum(copied[arm])}/{len(pairs)}"
            figures = f"{plain['positions']}\t{plain['lm_tax']:.4f}\t{plain['agreement']:.4f}"
            print(f"{chunks}\t{arm}\t{figures}\t{share}\t{lost}\t{won}\t{mcnemar_exact(lost, won):.3g}", flush=True)


if __name__ == "__main__":
    main()
