"""Move weights and AdamW moments between a run and its checkpoint."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from comem_cli.model.distill_checkpoint import Checkpoint

_MOMENTS = ("exp_avg", "exp_avg_sq")
Parameters = Sequence[tuple[str, nn.Parameter]]


def snapshot(
    step: int, parameters: Parameters, optimiser: torch.optim.Optimizer, history: list[dict[str, Any]]
) -> Checkpoint:
    """Copy the state after `step` steps: fp32, on the CPU."""
    tensors: dict[str, torch.Tensor] = {}
    for name, parameter in parameters:
        tensors[name] = parameter.detach().cpu().contiguous()
        for kind in _MOMENTS:
            tensors[f"{name}.{kind}"] = optimiser.state[parameter][kind].cpu().contiguous()
    return Checkpoint(step, tensors, {"history": history})


@torch.no_grad()
def restore(found: Checkpoint, parameters: Parameters, optimiser: torch.optim.Optimizer) -> None:
    """Set weights and moments as they were when the checkpoint was taken."""
    for name, parameter in parameters:
        parameter.copy_(found.tensors[name])
        moments = {kind: found.tensors[f"{name}.{kind}"].to(parameter.device) for kind in _MOMENTS}
        optimiser.state[parameter] = {"step": torch.tensor(float(found.step)), **moments}
