"""Check comem's exactness contracts on any model; the tests and `comem verify` call the same functions.

Each function returns the figure that its contract bounds; `Tolerances` holds the bounds of a dtype. All are run with
greedy decoding, in the model's own dtype. The reference is always the stock Transformers forward or `generate`.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedModel

from comem_cli.model.document import DocumentStream
from comem_cli.model.modes import OverlapMode
from comem_cli.model.shapes import Pending, Shape, shape_of
from comem_cli.model.split import SplitModel, layers_of
from comem_cli.model.write import BatchWriter, run_batch
from comem_cli.read.generate import Reader, Sampling


@dataclass(frozen=True)
class Tolerances:
    """Hold what a dtype allows: `logits` for contract 4, `residuals` for contracts 5 and 6, both relative.

    fp32 as DESIGN.md states them. A 16-bit dtype rounds every layer's output: about sqrt(2 L) roundings of half an eps
    add up, up to 6 eps at 60 layers, and kernels of another shape round differently. Contracts 1 to 3 call the same
    kernels with the same shapes on both sides, so they allow nothing in any dtype. A recurrent layer sums its state up
    in blocks whose borders move with the place of a chunk, so residuals of such models get the bound of logits.
    """

    logits: float
    residuals: float

    @classmethod
    def of(cls, dtype: torch.dtype, *, recurrent: bool = False) -> Tolerances:
        """Return the bounds of a compute dtype."""
        if dtype == torch.float32:
            return cls(1e-4, 1e-4 if recurrent else 1e-5)
        eight = 8 * torch.finfo(dtype).eps
        return cls(eight, eight)


def _batch(model: PreTrainedModel, ids: Sequence[int]) -> torch.Tensor:
    return torch.tensor([list(ids)], dtype=torch.int64, device=model.device)


@torch.inference_mode()
def partition_error(model: PreTrainedModel, ids: Sequence[int], splits: Sequence[int] | None = None) -> float:
    """Return max |Δlogit| between lower-then-upper and the stock forward over every split (contract 1)."""
    batch = _batch(model, ids)
    stock = model(batch, use_cache=False).logits
    worst = 0.0
    for j in range(len(layers_of(model)) + 1) if splits is None else splits:
        split = SplitModel(model, j)
        logits = split.upper(split.lower(batch), keep=0)
        worst = max(worst, float((logits - stock).abs().max()))
    return worst


@torch.inference_mode()
def replay_mismatches(
    model: PreTrainedModel, bos_id: int | None, chunks: Sequence[int], query: Sequence[int], new_tokens: int
) -> int:
    """Count tokens of the j = 0 replay that differ from stock greedy `generate` over the same ids (contract 2)."""
    reader = Reader(SplitModel(model, 0), bos_id)
    ours = reader.generate(reader.rows_from_ids(chunks), query, Sampling(max_new_tokens=new_tokens)).ids
    prompt = _batch(model, [*([] if bos_id is None else [bos_id]), *chunks, *query])
    stock = stock_generate(model, prompt, new_tokens)
    return sum(a != b for a, b in zip(ours, stock, strict=True))


def stock_generate(model: PreTrainedModel, prompt: torch.Tensor, new_tokens: int) -> list[int]:
    """Run Transformers' own greedy `generate` for exactly `new_tokens` tokens, end-of-sequence ids ignored."""
    generate: Any = model.generate
    out = generate(
        prompt,
        attention_mask=torch.ones_like(prompt),
        do_sample=False,
        max_new_tokens=new_tokens,
        eos_token_id=model.config.vocab_size,  # never drawn: exactly new_tokens come, as from Reader without eos_ids
        pad_token_id=0,
    )
    ids: list[int] = out[0, prompt.shape[1] :].tolist()
    return ids


@torch.inference_mode()
def oracle_error(model: PreTrainedModel, bos_id: int | None, pack: Sequence[int], split: int) -> float:
    """Return max |Δlogit| between the continuous-prefix oracle and the j = 0 replay of one pack (contract 3).

    The oracle runs [0:j) jointly over the pack and query, then [j:L) with the cache of a Read; the replay runs the
    whole pack through the j = 0 path. The paper's §5.1, "continuous-prefix".
    """
    ids = [*([] if bos_id is None else [bos_id]), *pack]
    halves, replay = SplitModel(model, split), SplitModel(model, 0)
    oracle = halves.upper(halves.lower(_batch(model, ids), halves.lower_cache()), halves.upper_cache(), keep=0)
    whole = replay.upper(replay.lower(_batch(model, ids)), replay.upper_cache(), keep=0)
    return float((oracle - whole).abs().max())


@torch.inference_mode()
def decode_error(
    model: PreTrainedModel, bos_id: int | None, chunks: Sequence[int], query: Sequence[int], split: int, new_tokens: int
) -> tuple[float, int]:
    """Compare cached two-half decoding with recomputing everything for every token (contract 4).

    Returns (max |Δlogit| / max(1, max |logit|), tokens whose argmax differs). A token can differ only where the two
    best logits are nearer to each other than twice the error.
    """
    halves = SplitModel(model, split)
    reader = Reader(halves, bos_id)
    rows = halves.lower(_batch(model, chunks))[0]
    lower_cache, upper_cache = halves.lower_cache(), halves.upper_cache()
    cached = halves.upper_last(reader.pack(rows, query, lower_cache), upper_cache)
    text, worst, flips = list(query), 0.0, 0
    for _ in range(new_tokens):
        fresh = halves.upper(reader.pack(rows, text, halves.lower_cache()))
        worst = max(worst, float((cached - fresh).abs().max() / fresh.abs().max().clamp(min=1)))
        flips += int(cached.argmax(-1).item() != fresh.argmax(-1).item())
        text.append(int(cached[:, -1].argmax(-1).item()))
        cached = halves.upper(halves.lower(_batch(model, text[-1:]), lower_cache), upper_cache)
    return worst, flips


@torch.inference_mode()
def write_error(model: PreTrainedModel, chunks: Sequence[bytes], shapes: Sequence[Shape], split: int) -> float:
    """Compare batched Write with one-by-one stock forwards of the same chunks (contract 5).

    chunks: token ids as uint32 LE bytes; 0 < split < L. Compared before rounding to bf16; the stock forward's h_j is
    its `hidden_states[j]`. Returns the worst token's max |Δh| / max |h|.
    """
    halves = SplitModel(model, split)
    worst = 0.0
    for number, ids in enumerate(chunks):
        pending = Pending(str(number), ids)
        h = run_batch(halves, shape_of(pending, shapes), [pending])[0, : pending.n_tokens].float()
        tokens = np.frombuffer(ids, dtype="<u4").tolist()
        worst = max(worst, row_error(h, _stock_rows(model, tokens, split)))
    return worst


def row_error(h: torch.Tensor, reference: torch.Tensor) -> float:
    """Return the worst row's max |Δh| / max |h|, both (n, d): every token counts, whatever its scale."""
    scale = reference.abs().amax(-1).clamp(min=torch.finfo(torch.float32).tiny)
    return float(((h - reference).abs().amax(-1) / scale).max())


def _stock_rows(model: PreTrainedModel, ids: Sequence[int], split: int) -> torch.Tensor:
    """Return the stock forward's h_j (n, d) in fp32; split < L."""
    states = model(_batch(model, ids), use_cache=False, output_hidden_states=True).hidden_states
    h: torch.Tensor = states[split][0].float()
    return h


def write_bits_changed(split: SplitModel, chunks: Sequence[bytes], shapes: Sequence[Shape], seed: int = 0) -> int:
    """Count chunks whose residual bytes depend on their neighbours (contract 5): 0 is the only good answer.

    Every chunk is written once in its order and once in a shuffled order among other neighbours.
    """
    order = list(range(len(chunks)))
    first = _write_all(split, chunks, order, shapes)
    random.Random(seed).shuffle(order)
    second = _write_all(split, chunks, order[1:] + order[:1], shapes)
    return sum(first[i] != second[i] for i in range(len(chunks)))


def _write_all(
    split: SplitModel, chunks: Sequence[bytes], order: Sequence[int], shapes: Sequence[Shape]
) -> dict[int, bytes]:
    writer = BatchWriter(split, shapes)
    written: dict[int, bytes] = {}
    for number in order:
        written.update((int(p.key), rows) for p, rows in writer.add(Pending(str(number), chunks[number])))
    written.update((int(p.key), rows) for p, rows in writer.flush())
    return written


@torch.inference_mode()
def document_error(model: PreTrainedModel, document: Sequence[bytes], split: int, window: int) -> float:
    """Compare document mode with slices of one whole-document forward (contract 6).

    document: the chunks' token ids as uint32 LE bytes, the first one the longest; not more than `window` tokens in all.
    Compared before rounding to bf16. Returns the worst token's max |Δh| / max |h|.
    """
    halves = SplitModel(model, split)
    stream = DocumentStream(halves, window - len(document[0]) // 4)
    streamed = torch.cat([stream.step(ids) for ids in document])
    whole = halves.lower(_batch(model, np.frombuffer(b"".join(document), dtype="<u4").tolist()))[0]
    return row_error(streamed.float(), whole.float())


@torch.inference_mode()
def overlap_error(model: PreTrainedModel, document: Sequence[bytes], split: int) -> float:
    """Compare overlap that reaches back to the beginning (w >= offset) with slices of one whole-document forward.

    The other half of contract 6; arguments and figure as for `document_error`.
    """
    halves = SplitModel(model, split)
    tokens = sum(map(len, document)) // 4
    whole = halves.lower(_batch(model, np.frombuffer(b"".join(document), dtype="<u4").tolist()))[0]
    worst = 0.0
    for chunk in OverlapMode(tokens).pending(document, lambda left, ids: ""):
        start = len(chunk.left) // 4
        h = run_batch(halves, Shape(1, tokens), [chunk])[0, start : chunk.n_tokens]
        worst = max(worst, row_error(h.float(), whole[start : chunk.n_tokens].float()))
    return worst
