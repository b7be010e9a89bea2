"""The processes of one training run, as `accelerate launch` or `torchrun` starts them; one alone needs neither."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import torch


class Ranks:
    """Hold this process's place among the others."""

    def __init__(self, device: torch.device) -> None:
        """Join the others where there are any (WORLD_SIZE above 1), over NCCL on GPUs, else gloo."""
        self.rank, self.size, self.device = 0, 1, device
        if int(os.environ.get("WORLD_SIZE", "1")) > 1:
            from accelerate import PartialState

            state: Any = PartialState(cpu=device.type == "cpu")
            self.rank, self.size = int(state.process_index), int(state.num_processes)
            self.device = state.device if device.type == "cuda" else device

    @property
    def first(self) -> bool:
        """Tell whether this process writes and prints."""
        return self.rank == 0

    def share(self, count: int) -> range:
        """Return the numbers of 0..count-1 that this process takes."""
        return range(self.rank, count, self.size)

    def sum_gradients(self, parameters: Sequence[torch.nn.Parameter]) -> None:
        """Add up every process's gradients, as one flat tensor; a missing gradient counts as 0."""
        if self.size == 1:
            return
        flat = torch.cat([_gradient(parameter).reshape(-1) for parameter in parameters])
        torch.distributed.all_reduce(flat)
        for parameter, part in zip(parameters, torch.split(flat, [p.numel() for p in parameters]), strict=True):
            parameter.grad = part.view_as(parameter).clone()

    def sum_numbers(self, numbers: Sequence[float]) -> list[float]:
        """Add up every process's numbers."""
        if self.size == 1:
            return list(numbers)
        total = torch.tensor(numbers, dtype=torch.float64, device=self.device)
        torch.distributed.all_reduce(total)
        return [float(number) for number in total]

    def wait(self) -> None:
        """Wait for the others."""
        if self.size > 1:
            torch.distributed.barrier()


def _gradient(parameter: torch.nn.Parameter) -> torch.Tensor:
    return torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
