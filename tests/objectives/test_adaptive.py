"""The adaptive band reaches its rate, keeps its caps, and can be saved and restored."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch

import fspo

SIGMA = 0.02
TRUE_C = 1.6448536 * SIGMA


def simulate(rng: np.random.Generator, n: int, heavy: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
    """S and L of n responses, L from 8 to 32,768."""
    L = np.exp(rng.uniform(math.log(8), math.log(32768), n)).round()
    noise = rng.standard_t(4, n) / math.sqrt(2) if heavy else rng.standard_normal(n)
    return torch.tensor(-(SIGMA**2) / 2 * L + SIGMA * np.sqrt(L) * noise), torch.tensor(L)


def outside(objective: fspo.objectives.FSPOAdaptive, S: torch.Tensor, L: torch.Tensor, staleness: int) -> np.ndarray:
    mu, low, high = objective.tracked(staleness)
    z = (S - mu * L) / L.sqrt()
    return ((z < -low) | (z > high)).numpy()


@pytest.mark.parametrize("heavy", [False, True], ids=["Gaussian", "Student t"])
@pytest.mark.parametrize("factor", [0.1, 10.0])
def test_reaches_ten_percent_in_every_bin_from_a_wrong_start(factor: float, heavy: bool) -> None:
    objective = fspo.objectives.FSPOAdaptive(c_start=factor * TRUE_C, c_max=0.2)
    rng = np.random.default_rng(0)
    for _ in range(200):
        for staleness in (1, 2):
            S, L = simulate(rng, 512, heavy)
            objective.observe(staleness * S, L, staleness)
    for staleness in (1, 2):
        S, L = simulate(np.random.default_rng(1), 400_000, heavy)
        report = fspo.fairness.measure(L, 1.0 - outside(objective, staleness * S, L, staleness), bins=8)
        for row in report.bins:
            assert row.clip_rate == pytest.approx(0.1, abs=0.01), (staleness, str(report))


def test_small_batches_do_not_bias_the_rate() -> None:
    objective = fspo.objectives.FSPOAdaptive(memory=50, step=0.005)
    rng, rates = np.random.default_rng(0), []
    for update in range(6000):
        S, L = simulate(rng, 8)
        if update >= 1000:
            rates.append(outside(objective, S, L, 1).mean())
        objective.observe(S, L, 1)
    assert np.mean(rates) == pytest.approx(0.1, abs=0.01)


def test_hard_caps_hold_whatever_is_observed() -> None:
    objective = fspo.objectives.FSPOAdaptive(c_max=0.2)
    L = torch.full((64,), 100.0)
    for sign in (1, -1):
        for _ in range(100):
            objective.observe(sign * (500 + 100 * torch.randn(64)), L, 3)
            mu, low, high = objective.tracked(3)
            assert abs(mu) <= 0.2**2 / 2
            assert max(low, high) <= 0.2
    # On-policy data: z is 0, and the band stays at its floor instead of clipping rounding noise.
    for _ in range(50):
        objective.observe(torch.zeros(64), L, 0)
    assert objective.tracked(0) == (0.0, 1e-3, 1e-3)
    # Once the data is sane again, so is the band.
    rng = np.random.default_rng(0)
    for _ in range(600):
        objective.observe(*simulate(rng, 256), 3)
    assert objective.tracked(3)[1] == pytest.approx(TRUE_C, rel=0.1)


def test_the_loss_uses_the_band_of_its_staleness() -> None:
    objective = fspo.objectives.FSPOAdaptive(c_start=0.05, c_max=0.2)
    logprobs, mask = torch.full((1, 4), 0.03), torch.ones(1, 4, dtype=torch.bool)  # S = 0.12, band ± 0.1
    out = objective(logprobs, torch.zeros(1, 4), torch.ones(1), mask, staleness=1)
    assert float(out.loss) == pytest.approx(-math.exp(0.1), rel=1e-6)
    assert out.accepted.item() == 0
    S = torch.tensor([0.12, -0.12, 0.4, -0.4])
    objective.observe(S, torch.full((4,), 4.0), staleness=1)
    wider = objective(logprobs, torch.zeros(1, 4), torch.ones(1), mask, staleness=1)
    assert wider.accepted.item() == 1
    assert objective(logprobs, torch.zeros(1, 4), torch.ones(1), mask, staleness=2).accepted.item() == 0


def test_dual_clip_bounds_a_bad_answer_that_became_likelier() -> None:
    logprobs, mask = torch.full((1, 4), 0.5, requires_grad=True), torch.ones(1, 4, dtype=torch.bool)  # S = 2
    for dual, loss, slope in ((None, math.exp(2), math.exp(2)), (3.0, math.exp(0.3), 0.0)):
        objective = fspo.objectives.FSPOAdaptive(c_start=0.05, dual=dual)  # 3 half-widths of 0.1
        out = objective(logprobs, torch.zeros(1, 4), -torch.ones(1), mask, staleness=1)
        assert float(out.loss.detach()) == pytest.approx(loss, rel=1e-6)
        assert torch.autograd.grad(out.loss, logprobs)[0].sum().item() == pytest.approx(4 * slope, rel=1e-6)


def test_state_survives_json_and_continues_identically() -> None:
    rng = np.random.default_rng(0)
    batches = [(*simulate(rng, 32), k % 3) for k in range(60)]
    straight = fspo.objectives.FSPOAdaptive()
    for S, L, k in batches:
        straight.observe(S, L, k)
    first, second = fspo.objectives.FSPOAdaptive(), fspo.objectives.FSPOAdaptive()
    for S, L, k in batches[:31]:
        first.observe(S, L, k)
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    for S, L, k in batches[31:]:
        second.observe(S, L, k)
    assert second.state_dict() == straight.state_dict()
    with pytest.raises(ValueError, match="not a state of fspo_adaptive"):
        second.load_state_dict({"0": {"mu": 1.0}})
    with pytest.raises(ValueError, match="finite log-ratios"):
        second.observe(torch.tensor([math.nan]), torch.tensor([1.0]))
