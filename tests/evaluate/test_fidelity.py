import math

import pytest
import torch

from comem_cli.evaluate.fidelity import Fidelity


def test_tax_and_agreement_equal_the_sums_written_out():
    generator = torch.Generator().manual_seed(0)
    arm, replay = (torch.randn(600, 11, generator=generator) for _ in range(2))
    targets = torch.randint(0, 11, (600,), generator=generator)
    seen = Fidelity()
    seen.add(arm[:400], replay[:400], targets[:400])
    seen.add(arm[400:], replay[400:], targets[400:])

    def perplexity(logits):
        picked = torch.log_softmax(logits.double(), -1)[range(600), targets]
        return math.exp(-picked.mean().item())

    assert seen.positions == 600
    assert seen.lm_tax == pytest.approx(perplexity(arm) / perplexity(replay), rel=1e-5)
    assert seen.agreement == pytest.approx((arm.argmax(-1) == replay.argmax(-1)).double().mean().item())


def test_an_arm_that_equals_replay_costs_nothing():
    logits = torch.randn(5, 7)
    seen = Fidelity()
    seen.add(logits, logits, torch.arange(5))
    assert (seen.lm_tax, seen.agreement) == (1.0, 1.0)
