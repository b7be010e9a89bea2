"""The loss of self-distillation: KL(teacher || student) between next-token distributions at chosen positions.

Teacher: the stock model over the same ids, j = 0. Student: the upper half with LoRA over written residuals. Only the
positions with a weight reach the LM head, in both. KL in nats (Hinton et al. 2015, at temperature 1). With top_k the
teacher's k best tokens stay apart and the rest counts as one outcome, which bounds the KL from below.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch
from peft.tuners.lora import LoraLayer
from torch import nn

from comem_cli.model.distill_pack import Pack, batch
from comem_cli.model.split import SplitModel


@dataclass(frozen=True)
class Target:
    """Hold the teacher's distributions at n positions: log-probabilities (n, k) fp32 and their tokens, None for all."""

    log_probs: torch.Tensor
    tokens: torch.Tensor | None


@torch.no_grad()
def teacher_logits(teacher: SplitModel, packs: Sequence[Pack]) -> torch.Tensor:
    """Run the stock model over the ids: -> logits (n, vocab) at the weighted positions, pack by pack."""
    return teacher.upper(teacher.lower(batch([pack.ids for pack in packs])), keep=weighted(packs))


def student_logits(student: SplitModel, packs: Sequence[Pack]) -> torch.Tensor:
    """Run the upper half over the written residuals: -> logits (n, vocab) at the same positions."""
    return student.upper(batch([pack.rows for pack in packs]), keep=weighted(packs))


def weighted(packs: Sequence[Pack]) -> torch.Tensor:
    """Mark the positions with a weight: (b, T) bool, on the device of the packs."""
    return batch([pack.weights > 0 for pack in packs]).to(packs[0].rows.device)


def weights_of(packs: Sequence[Pack]) -> torch.Tensor:
    """Return the weights of those positions, (n,) fp32, in the same order."""
    return torch.cat([pack.weights[pack.weights > 0] for pack in packs]).to(packs[0].rows.device)


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
