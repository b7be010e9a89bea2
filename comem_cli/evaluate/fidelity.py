"""How near one arm's next-token distributions are to replay's, on the same pack.

LM tax: ratio of perplexities, arm over replay, on the pack's own tokens (1.0 is no loss). Agreement: share of positions
where both put the same token first. The paper's Limitations call this readout compatibility; it needs no answers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch


@dataclass
class Fidelity:
    """Sum up positions: negative log-likelihoods in nats of the arm and of replay, and equal first choices."""

    positions: int = 0
    nll: float = 0.0
    replay_nll: float = 0.0
    agreed: int = 0

    def add(self, logits: torch.Tensor, replay: torch.Tensor, targets: torch.Tensor) -> None:
        """Take one pack: logits of the arm and of replay (n, vocab), the tokens that followed (n,)."""
        self.positions += len(targets)
        self.nll += _nll(logits, targets)
        self.replay_nll += _nll(replay, targets)
        self.agreed += int((logits.argmax(-1) == replay.argmax(-1)).sum())

    @property
    def lm_tax(self) -> float:
        """Return the perplexity ratio exp((NLL - NLL of replay) / n)."""
        return math.exp((self.nll - self.replay_nll) / self.positions)

    @property
    def agreement(self) -> float:
        """Return the share of positions with the same first choice."""
        return self.agreed / self.positions


def _nll(logits: torch.Tensor, targets: torch.Tensor) -> float:
    """Sum -log p(target) in nats, a slice at a time: a whole pack over the vocabulary in fp32 is large."""
    total = 0.0
    for at in range(0, len(targets), 256):
        part, wanted = logits[at : at + 256], targets[at : at + 256]
        total += float(torch.nn.functional.cross_entropy(part.float(), wanted, reduction="sum"))
    return total
