"""The loss of self-distillation: KL(teacher || student) between next-token distributions at chosen positions.

Teacher: the stock model over the same ids, j = 0. Student: the upper half with LoRA over written residuals. Only the
positions with a weight reach the LM head, in both. KL in nats (Hinton et al. 2015, at temperature 1). With top_k the
teacher's k best tokens stay apart and the rest counts as one outcome, which bounds the KL from below.

At the answers that are copied from the pack the loss is (1 - G) KL + G CE, CE = -log p_student(true token): the teacher
misses some of them, and its misses are not to be learned. G = 0 is self-distillation alone, as in the paper.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch
from peft.tuners.lora import LoraLayer
from torch import nn

from comem_cli.model.distill_pack import Pack, Parts
from comem_cli.model.distill_read import PackState, read_packs, read_parts
from comem_cli.model.split import SplitModel


@dataclass(frozen=True)
class Target:
    """Hold the teacher's distributions at n positions: log-probabilities (n, k) fp32 and their tokens, None for all."""

    log_probs: torch.Tensor
    tokens: torch.Tensor | None


def pack_logits(split: SplitModel, packs: Sequence[Pack], *, stock: bool = False) -> tuple[torch.Tensor, PackState]:
    """Read packs: -> logits (n, vocab) at their weighted places, and the state for `part_logits`.

    stock: read the ids, through the half's own embedding (a split of 0), not the written rows.
    """
    rows = [split.lower(pack.ids[None])[0] if stock else pack.rows for pack in packs]
    return read_packs(split, rows, [pack.weights > 0 for pack in packs])


def part_logits(split: SplitModel, state: PackState, parts: Sequence[Parts], *, stock: bool = False) -> torch.Tensor:
    """Read the query parts of the same packs: -> logits (n, vocab) at their weighted places."""
    rows = [split.lower(one.ids[None])[0] if stock else one.rows for one in parts]
    return read_parts(split, state, rows, [one.lengths for one in parts], [one.weights > 0 for one in parts])


def weights_of(held: Sequence[Pack] | Sequence[Parts]) -> torch.Tensor:
    """Return the weights of the weighted places, (n,) fp32, in the order of the logits."""
    return torch.cat([one.weights[one.weights > 0] for one in held]).to(held[0].rows.device)


def true_tokens(parts: Sequence[Parts]) -> torch.Tensor:
    """Return the next token where the answer is known, else -1: (n,) int64, in the order of the logits."""
    found = []
    for one in parts:
        next_ids = torch.cat([one.ids[1:], one.ids[:1]])
        found.append(torch.where(one.gold.to(one.ids.device), next_ids, -1)[(one.weights > 0).to(one.ids.device)])
    return torch.cat(found)


def target_of(logits: torch.Tensor, top_k: int) -> Target:
    """Turn the teacher's logits (n, vocab) into a target."""
    log_probs = torch.log_softmax(logits.float(), -1)
    if not top_k or top_k >= log_probs.shape[-1]:
        return Target(log_probs, None)
    best, tokens = log_probs.topk(top_k, -1)
    return Target(best, tokens)


def divergence(target: Target, logits: torch.Tensor) -> torch.Tensor:
    """Return KL(target || softmax(logits)) in nats a position: logits (n, vocab) -> (n,) fp32."""
    ours = torch.log_softmax(logits.float(), -1)
    theirs = target.log_probs
    if target.tokens is None:
        return (theirs.exp() * (theirs - ours)).sum(-1)
    ours = ours.gather(-1, target.tokens)
    return (theirs.exp() * (theirs - ours)).sum(-1) + _rest(theirs, ours)


def with_gold(each: torch.Tensor, logits: torch.Tensor, tokens: torch.Tensor, share: float) -> torch.Tensor:
    """Mix `share` of the cross-entropy into divergences (n,), where tokens (n,) says the true one (not -1)."""
    places = tokens >= 0
    if not share or not bool(places.any()):
        return each
    entropy = torch.nn.functional.cross_entropy(logits[places].float(), tokens[places], reduction="none")
    mixed = each.clone()
    mixed[places] = (1 - share) * each[places] + share * entropy
    return mixed


def _rest(theirs: torch.Tensor, ours: torch.Tensor) -> torch.Tensor:
    """Add the outcome "any other token"; its mass is kept away from 0, where the logarithm has no gradient."""
    p = (1 - theirs.exp().sum(-1)).clamp(min=1e-6)
    q = (1 - ours.exp().sum(-1)).clamp(min=1e-6)
    return p * (p.log() - q.log())


def mixed_precision(model: nn.Module) -> AbstractContextManager[object]:
    """Run fp32 LoRA weights in the base model's 16-bit dtype; with an fp32 base, do nothing."""
    weight = next(parameter for parameter in model.parameters() if not parameter.requires_grad)
    if weight.dtype == torch.float32:
        return nullcontext()
    for module in model.modules():
        if isinstance(module, LoraLayer):
            module.cast_input_dtype_enabled = False  # else every input is copied to fp32 and back
    return torch.autocast(weight.device.type, weight.dtype)
