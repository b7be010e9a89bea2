"""Decode against stock decode: the halves' two caches and grouped queries against Transformers' own `generate` loop.

Both go on from the same pack, greedy, end-of-sequence ignored. The stock arm is Transformers' growing cache and plain
SDPA over all layers at j = 0; beside it stand ms a token of both.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import torch
from transformers import DynamicCache, PreTrainedModel

from comem_cli.model import load
from comem_cli.model.device import pick
from comem_cli.model.split import SplitModel
from comem_cli.read.generate import Reader, Sampling
from dev.bench.interleave import Figure, interleaved, ratio
from dev.bench.material import CHUNK, Material

NEW = 16


def decode(material: Material, split: int, chunks: int, repeat: int) -> Iterator[Figure]:
    """Yield stock / ours for one pack, and the pack cache: a question over a kept pack / over a new one."""
    stock = load.load(material.files, *pick(material.device, material.dtype))
    stock.set_attn_implementation("sdpa")
    ids, query = material.ids(chunks * CHUNK), material.query()
    reader = Reader(SplitModel(material.model, split), material.identity.bos_id)
    with torch.inference_mode():
        rows = reader.split.lower(torch.tensor([ids], device=reader.split.device))[0]
    arms: dict[str, Callable[[], float]] = {
        "ours": lambda: reader.generate(rows, query, Sampling(max_new_tokens=NEW)).timing_ms["decode"] / 1e3,
        "stock": _stock(stock, [*ids, *query]),
    }
    times = interleaved(arms, repeat)
    per_token = {name: round(min(some) / (NEW - 1) * 1e3, 2) for name, some in times.items()}
    yield ratio(f"decode stock / ours, {chunks} chunks", times["stock"], times["ours"], facts={"ms_a_token": per_token})
    kept = reader.prefill(rows)
    one = Sampling(max_new_tokens=1)
    arms = {
        "new": lambda: sum(reader.generate(rows, query, one).timing_ms.values()) / 1e3,
        "kept": lambda: sum(reader.decode(reader.start_after(kept, query, one), one).timing_ms.values()) / 1e3,
    }
    times = interleaved(arms, repeat)
    yield ratio(f"first token, new pack / kept pack, {chunks} chunks", times["new"], times["kept"])


def _stock(model: PreTrainedModel, ids: list[int]) -> Callable[[], float]:
    @torch.inference_mode()
    def run() -> float:
        cache = DynamicCache(config=model.config)
        batch = torch.tensor([ids], device=model.device)
        token = model(batch, cache=cache, logits_to_keep=1).logits[:, -1].argmax(-1)
        token.item()
        begin = time.perf_counter()
        for _ in range(NEW - 1):
            token = model(token[None], cache=cache).logits[:, -1].argmax(-1)
            token.item()
        return time.perf_counter() - begin

    return run
