"""The Read of one pack by hand: the stock model's own layers called one by one, every token recomputed each step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch


def residuals(model: Any, ids: Sequence[int], split: int) -> torch.Tensor:
    """h_j (t, d) of one stock forward over `ids` alone; j < L."""
    return model(torch.tensor([list(ids)]), use_cache=False, output_hidden_states=True).hidden_states[split][0]


def upper_logits(
    model: Any, pack: torch.Tensor, split: int, positions: Sequence[int], allowed: Sequence[Sequence[bool]]
) -> torch.Tensor:
    """Logits (t, vocab) of layers [j:L) over a pack (t, d): masks are additive, windows cut by hand."""
    base, config = model.base_model, model.config
    at = torch.tensor([list(positions)])
    types = getattr(config, "layer_types", None) or ["full_attention"] * config.num_hidden_layers
    h = pack[None]
    for number in range(split, config.num_hidden_layers):
        seen = torch.tensor([list(row) for row in allowed])
        if types[number] == "sliding_attention":
            places = torch.arange(len(seen))
            seen &= places[:, None] - places[None, :] < config.sliding_window
        additive = torch.zeros(seen.shape).masked_fill(~seen, torch.finfo(torch.float32).min)[None, None]
        kind = (types[number],) if config.model_type == "gemma3_text" else ()
        turned = base.rotary_emb(h, at, *kind)
        out = base.layers[number](h, attention_mask=additive, position_embeddings=turned, position_ids=at)
        h = out[0] if isinstance(out, tuple) else out
    return model.lm_head(base.norm(h))[0]


@torch.inference_mode()
def greedy(
    model: Any,
    split: int,
    chunks: Sequence[torch.Tensor],
    query: Sequence[int],
    new_tokens: int,
    *,
    bos: int | None,
    starts: Sequence[int] | None = None,
    block: bool = False,
) -> list[int]:
    """Token ids of a greedy answer from chunk residuals [(n, d)]; `starts`: origin positions, else contiguous."""
    sink = [] if bos is None else [residuals(model, [bos], split)]
    text = list(query)
    for _ in range(new_tokens):
        pack = torch.cat([*sink, *chunks, residuals(model, text, split)])
        owner = ["bos"] * len(sink) + [n for n, c in enumerate(chunks) for _ in range(len(c))] + ["query"] * len(text)
        if starts is None:
            positions = list(range(len(pack)))
        else:
            places = [len(sink) + s + i for s, c in zip(starts, chunks, strict=True) for i in range(len(c))]
            positions = list(range(len(sink))) + places
            positions += [max(positions) + 1 + i for i in range(len(text))]
        allowed = [
            [k <= q and (not block or owner[q] == "query" or owner[k] in ("bos", owner[q])) for k in range(len(pack))]
            for q in range(len(pack))
        ]
        text.append(int(upper_logits(model, pack, split, positions, allowed)[-1].argmax()))
    return text[len(query) :]
