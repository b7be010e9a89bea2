"""Measure what a write mode costs in fidelity on a store's own documents: LM tax and agreement with replay.

    python dev/mode_fidelity.py STORE QUESTIONS.jsonl --splits 6,10,12 [--packs 10] [--chunks 4] [--model M]

Each question selects `--chunks` chunks, no two adjacent in one document. Every mode writes them in memory at every
split, [BOS; chunks] is read, and all chunk tokens are scored against the j = 0 replay of the same pack.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import numpy as np
import torch

from comem_cli.evaluate.fidelity import Fidelity
from comem_cli.model import load
from comem_cli.model.device import pick
from comem_cli.model.document import DocumentStream
from comem_cli.model.split import SplitModel
from comem_cli.read.evidence import EvidenceFinder
from comem_cli.select.bm25 import Bm25
from comem_cli.store.reader import StoreReader

MODES = ("chunk", "overlap 32", "overlap 128", "document")
FURTHEST = 14  # chunks further into a document make the document mode slow to measure


def select_pack(finder: EvidenceFinder, reader: StoreReader, question: str, size: int) -> list[tuple[int, int]]:
    """Return (document id, chunk number) of the best chunks, no two adjacent, in document order."""
    evidence = finder.find(question, sys.maxsize)
    pack: list[tuple[int, int]] = []
    for source in evidence.sources:
        place = source.places[0]
        near = any(document == place.document_id and abs(number - place.number) <= 1 for document, number in pack)
        if not near and place.number <= FURTHEST and len(pack) < size:
            pack.append((place.document_id, place.number))
    return sorted(pack)


def write(split: SplitModel, mode: str, chunks: list[bytes], number: int, cache: dict) -> torch.Tensor:
    """Write one chunk of a document in a mode: -> (n, d)."""
    if mode == "document":
        stream, done = cache.setdefault("stream", DocumentStream(split, 7680)), cache.setdefault("done", [])
        while len(done) <= number:
            done.append(stream.step(chunks[len(done)]))
        return done[number]
    left = int(mode.split()[1]) if " " in mode else 0
    before = np.frombuffer(b"".join(chunks[:number]), "<u4")[-left:] if left and number else np.empty(0, "<u4")
    ids = np.concatenate([before, np.frombuffer(chunks[number], "<u4")]).astype(np.int64)
    with torch.inference_mode():
        return split.lower(torch.from_numpy(ids)[None])[0, len(before) :]


@torch.inference_mode()
def read(split: SplitModel, bos: int, rows: list[torch.Tensor]) -> torch.Tensor:
    """Read [BOS; rows] -> the logits that predict each chunk token, (n, vocab)."""
    pack = torch.cat([split.lower(torch.tensor([[bos]]))[0], *rows])[None]
    return split.upper(pack, keep=0)[0, :-1]


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
    identity, tokenizer, model = load.identity(files), load.tokenizer(files), load.load(files, *pick())
    questions = [json.loads(line)["question"] for line in args.questions.read_text().splitlines()][: args.packs]
    seen: dict[tuple[int, str], Fidelity] = {}
    with (
        StoreReader(args.store) as reader,
        EvidenceFinder(reader, tokenizer, Bm25(top_k=40)) as finder,
    ):
        texts = document_chunks(reader)
        packs = [select_pack(finder, reader, question, args.chunks) for question in questions]
    replay_model = SplitModel(model, 0)
    replays = [read(replay_model, identity.bos_id, [embed(replay_model, texts[d][n]) for d, n in p]) for p in packs]
    for j in map(int, args.splits.split(",")):
        split = SplitModel(model, j)
        for mode in MODES:
            caches: dict[int, dict] = {}
            total = seen.setdefault((j, mode), Fidelity())
            for pack, replay in zip(packs, replays, strict=True):
                rows = [write(split, mode, texts[d], n, caches.setdefault(d, {})).to(torch.bfloat16) for d, n in pack]
                ids = np.frombuffer(b"".join(texts[d][n] for d, n in pack), "<u4").astype(np.int64)
                logits = read(split, identity.bos_id, [row.to(model.dtype) for row in rows])
                total.add(logits, replay, torch.from_numpy(ids))
            print(f"{j}\t{mode}\t{total.lm_tax:.3f}\t{total.agreement:.3f}\t{total.positions}", flush=True)


def document_chunks(reader: StoreReader) -> dict[int, list[bytes]]:
    """Return the token ids of every document's chunks, in order."""
    ids = {chunk.id: chunk.ids for chunk in reader.iter_chunks()}
    found: dict[int, dict[int, bytes]] = {}
    for chunk_id, places in reader.places(ids).items():
        for place in places:
            found.setdefault(place.document_id, {})[place.number] = ids[chunk_id]
    return {document: [chunks[n] for n in sorted(chunks)] for document, chunks in found.items()}


def embed(split: SplitModel, ids: bytes) -> torch.Tensor:
    """Embed token ids for the j = 0 replay: -> (n, d)."""
    with torch.inference_mode():
        return split.lower(torch.from_numpy(np.frombuffer(ids, "<u4").astype(np.int64))[None])[0]


if __name__ == "__main__":
    main()
