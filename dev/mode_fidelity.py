"""Measure what a write mode costs in fidelity on a store's own documents: LM tax and agreement with replay.

    python dev/mode_fidelity.py STORE QUESTIONS.jsonl --splits 6,10,12 [--packs 10] [--chunks 4] [--model M]

As `comem tune`, but each question selects the pack: `--chunks` chunks, no two adjacent in one document. Every mode
writes them in memory at every split, [BOS; chunks] is read, and all chunk tokens are scored against the j = 0 replay of
the same pack.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from comem_cli.evaluate.arm_adapters import Forks
from comem_cli.evaluate.arm_reader import ArmReader
from comem_cli.evaluate.arms import REPLAY, parse_arm
from comem_cli.evaluate.fidelity import Fidelity
from comem_cli.evaluate.pack_fidelity import FURTHEST, Documents, Pack, Spot, pack_logits, pack_targets
from comem_cli.model import load
from comem_cli.model.device import pick
from comem_cli.read.evidence import EvidenceFinder
from comem_cli.select.bm25 import Bm25
from comem_cli.store.reader import StoreReader

MODES = ("mode=chunk", "overlap=32", "overlap=128", "mode=document")


def select_pack(finder: EvidenceFinder, question: str, size: int) -> Pack:
    """Return the best chunks, no two adjacent, in document order."""
    evidence = finder.find(question, sys.maxsize)
    pack: list[Spot] = []
    for source in evidence.sources:
        spot = Spot(source.places[0].document_id, source.places[0].number)
        if not any(spot.near(other) for other in pack) and spot.number <= FURTHEST and len(pack) < size:
            pack.append(spot)
    return tuple(sorted(pack))


def main() -> None:
    """Print one TSV line a split and mode."""
    parser = argparse.ArgumentParser()
    parser.add_argument("store", type=Path)
    parser.add_argument("questions", type=Path)
    parser.add_argument("--splits", default="6,10,12")
    parser.add_argument("--packs", type=int, default=10)
    parser.add_argument("--chunks", type=int, default=4)
    parser.add_argument("--model")
    args = parser.parse_args()
    files = load.resolve(args.model)
    identity, tokenizer, forks = load.identity(files), load.tokenizer(files), Forks(load.load(files, *pick()))
    questions = [json.loads(line)["question"] for line in args.questions.read_text().splitlines()][: args.packs]
    arms = [parse_arm(f"comem:j={split},{mode}") for split in args.splits.split(",") for mode in MODES]
    with (
        StoreReader(args.store) as reader,
        EvidenceFinder(reader, tokenizer, Bm25(top_k=40)) as finder,
    ):
        documents, chunk = Documents(reader), reader.fingerprint.chunk
        packs = [[documents.up_to(spot) for spot in select_pack(finder, one, args.chunks)] for one in questions]
    readers = {arm: ArmReader(arm, forks, identity, tokenizer, chunk) for arm in (REPLAY, *arms)}
    seen = {arm: Fidelity() for arm in arms}
    for pack in packs:
        replay = pack_logits(readers[REPLAY].reader.split, identity.bos_id, readers[REPLAY].writer.rows(pack))
        targets = pack_targets([document[-1] for document in pack], identity.bos_id)
        for arm in arms:
            mine = pack_logits(readers[arm].reader.split, identity.bos_id, readers[arm].writer.rows(pack))
            seen[arm].add(mine, replay, targets.to(mine.device))
    for arm, total in seen.items():
        print(f"{arm.spec}\t{total.lm_tax:.3f}\t{total.agreement:.3f}\t{total.positions}", flush=True)


if __name__ == "__main__":
    main()
