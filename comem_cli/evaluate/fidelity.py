"""How near one arm's next-token distributions are to replay's, on the same pack.

LM tax: ratio of perplexities, arm over replay, on the pack's own tokens (1.0 is no loss). Agreement: share of positions
where both put the same token first. KL: of replay's distribution from the arm's, KL(replay || arm) =
sum p_replay (log p_replay - log p_arm) in nats, the loss of the paper's distillation; 0 is no difference. The paper's
Limitations call this readout compatibility; it needs no answers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

_AT_ONCE = 256  # positions: a whole pack over the vocabulary in fp32 is large


@dataclass
class Fidelity:
    """Sum up positions: negative log-likelihoods in nats of the arm and of replay, equal first choices, KL in nats.

    first_kl_sum: KL at the first position of each of the `runs` that were added; the first token of an answer, where
    the logits are those of an answer.
    """

    positions: int = 0
    nll: float = 0.0
    replay_nll: float = 0.0
    agreed: int = 0
    kl_sum: float = 0.0
    runs: int = 0
    first_kl_sum: float = 0.0

    def add(self, logits: torch.Tensor, replay: torch.Tensor, targets: torch.Tensor) -> None:
        """Take one pack or answer: logits of the arm and of replay (n, vocab), n > 0; what followed, (n,)."""
        divergence = kl(replay, logits)
        self.positions += len(targets)
        self.nll += _nll(logits, targets)
        self.replay_nll += _nll(replay, targets)
        self.agreed += int((logits.argmax(-1) == replay.argmax(-1)).sum())
        self.kl_sum += float(divergence.sum())
        self.runs += 1
        self.first_kl_sum += float(divergence[0])

    @property
    def lm_tax(self) -> float:
        """Return the perplexity ratio exp((NLL - NLL of replay) / n)."""
        return math.exp((self.nll - self.replay_nll) / self.positions)

    @property
    def agreement(self) -> float:
        """Return the share of positions with the same first choice."""
        return self.agreed / self.positions

    @property
    def mean_kl(self) -> float:
        """Return KL(replay || arm) in nats, the mean over positions."""
        return self.kl_sum / self.positions

    @property
    def first_kl(self) -> float:
        """Return KL(replay || arm) in nats at the first position, the mean over what was added."""
        return self.first_kl_sum / self.runs


def kl(replay: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
    """Return KL(replay || arm) in nats a position: logits (n, vocab) or (vocab,) of each -> (n,) or scalar, fp32 >= 0.

    Finite logits give a finite value, however unlikely a token is. One of -inf counts nothing where replay has it, and
    is infinite where only the arm does.
    """
    if replay.ndim == 1:
        return kl(replay[None], logits[None])[0]
    parts = [
        _slice_kl(replay[at : at + _AT_ONCE], logits[at : at + _AT_ONCE]) for at in range(0, len(replay), _AT_ONCE)
    ]
    return torch.cat(parts).clamp(min=0.0)  # rounding can bring equal distributions just below 0


def _slice_kl(replay: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
    log_p, log_q = (torch.log_softmax(one.float(), -1) for one in (replay, logits))
    terms = torch.nn.functional.kl_div(log_q, log_p, reduction="none", log_target=True)
    return terms.masked_fill(log_p.isneginf(), 0.0).sum(-1)


def _nll(logits: torch.Tensor, targets: torch.Tensor) -> float:
    """Sum -log p(target) in nats, a slice at a time."""
    total = 0.0
    for at in range(0, len(targets), _AT_ONCE):
        part, wanted = logits[at : at + _AT_ONCE], targets[at : at + _AT_ONCE]
        total += float(torch.nn.functional.cross_entropy(part.float(), wanted, reduction="sum"))
    return total
