"""One reused buffer in host memory that residuals are fetched into on their way to the model's device.

For a CUDA device it is pinned, and the copy to the device does not wait: it runs in its stream while the host goes on.
The next fetch waits for it before the first byte is written. On any other device the rows are the buffer itself, good
until the next fetch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


class RowBuffer:
    """Hold room for the residuals of the longest pack so far, (n, d) bf16."""

    def __init__(self, width: int, device: torch.device) -> None:
        """Start without room; width: d; device: where the rows are wanted."""
        self._device = device
        self._pinned = device.type == "cuda"
        self._rows = torch.empty(0, width, dtype=torch.bfloat16)
        self._copied: torch.cuda.Event | None = None  # when the copy of the last rows is done

    def fill(self, tokens: int, fetch: Callable[[memoryview], object]) -> torch.Tensor:
        """Let `fetch` write the bytes of so many rows; returns them, (tokens, d) bf16. Raises what `fetch` raises."""
        if self._copied is not None:
            self._copied.synchronize()
        if len(self._rows) < tokens:
            self._rows = torch.empty(tokens, self._rows.shape[1], dtype=torch.bfloat16, pin_memory=self._pinned)
        rows = self._rows[:tokens]
        fetch(_memory(rows))
        if not self._pinned:
            return rows
        moved = rows.to(self._device, non_blocking=True)
        self._copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
        self._copied.record(torch.cuda.current_stream(self._device))
        return moved


def _memory(rows: torch.Tensor) -> memoryview:
    """Return the bytes of a CPU tensor, (n, d) bf16, without a copy."""
    numbers: Any = rows.view(torch.uint16).numpy()
    return memoryview(numbers)
