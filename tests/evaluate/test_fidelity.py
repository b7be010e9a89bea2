import math

import numpy as np
import pytest
import torch
from scipy.special import log_softmax, rel_entr
from torch.distributions import Categorical, kl_divergence

from comem_cli.evaluate.fidelity import Fidelity, kl


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
    assert (seen.mean_kl, seen.first_kl) == (0.0, 0.0)


def test_kl_equals_torch_distributions_and_scipy():
    generator = torch.Generator().manual_seed(1)
    replay, arm = (3 * torch.randn(600, 11, generator=generator) for _ in range(2))
    found = kl(replay, arm)
    of_torch = kl_divergence(Categorical(logits=replay.double()), Categorical(logits=arm.double()))
    p, q = (np.exp(log_softmax(one.double().numpy(), axis=-1)) for one in (replay, arm))
    assert found.shape == (600,)
    assert torch.allclose(found.double(), of_torch, rtol=1e-5, atol=1e-6)
    assert found.numpy() == pytest.approx(rel_entr(p, q).sum(-1), rel=1e-5, abs=1e-6)
    assert kl(replay[7], arm[7]).item() == found[7].item()
    assert not torch.allclose(found, kl(arm, replay), rtol=0.1)  # it has a direction


def test_kl_of_two_tokens_is_the_value_worked_out_by_hand():
    half, quarter = torch.tensor([0.5, 0.5]).log(), torch.tensor([0.25, 0.75]).log()
    assert kl(half, quarter).item() == pytest.approx(0.5 * math.log(2) + 0.5 * math.log(2 / 3))
    assert kl(half + 7, quarter - 9).item() == pytest.approx(kl(half, quarter).item(), abs=1e-6)


def test_kl_is_finite_for_finite_logits_and_says_where_only_one_side_excludes_a_token():
    far = torch.tensor([0.0, -200.0])  # a probability of e^-200 is 0 in fp32
    assert kl(torch.tensor([0.0, 0.0]), far).item() == pytest.approx(0.5 * 200 - math.log(2))
    assert kl(far.bfloat16(), torch.zeros(2)).item() == pytest.approx(math.log(2))
    excluded = torch.tensor([0.0, 0.0, -math.inf])
    assert kl(excluded, excluded).item() == 0.0
    assert kl(excluded, torch.zeros(3)).item() == pytest.approx(math.log(3 / 2))
    assert kl(torch.zeros(3), excluded).item() == math.inf


def test_mean_and_first_kl_are_those_of_the_positions():
    generator = torch.Generator().manual_seed(2)
    replay, arm = (torch.randn(300, 7, generator=generator) for _ in range(2))
    targets = torch.zeros(300, dtype=torch.long)
    seen = Fidelity()
    for start, end in ((0, 1), (1, 270), (270, 300)):
        seen.add(arm[start:end], replay[start:end], targets[start:end])
    each = kl_divergence(Categorical(logits=replay.double()), Categorical(logits=arm.double()))
    assert seen.runs == 3
    assert seen.mean_kl == pytest.approx(each.mean().item(), rel=1e-5)
    assert seen.first_kl == pytest.approx(each[[0, 1, 270]].mean().item(), rel=1e-5)
