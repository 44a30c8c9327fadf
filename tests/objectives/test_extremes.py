"""No NaN and no inf, for log-ratios up to ±1e4 and responses of up to 1e5 tokens."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

import fspo

CASES: list[tuple[str, dict[str, Any]]] = [(name, {}) for name in fspo.objectives.names()]
CASES += [("fspo", {"drift": drift}) for drift in ("kl", "bounded")]
OPTIONS: dict[str, Any] = {
    "kl": {"coef": 0.1, "importance": True},
    "entropy_coef": 0.01,
    "mismatch": {"mode": "truncate"},
}


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("size", [0.0, 1e-8, 1.0, 80.0, 1e4])
@pytest.mark.parametrize(("name", "parameters"), CASES, ids=str)
def test_loss_and_gradient_stay_finite(name: str, parameters: dict[str, Any], size: float, dtype: torch.dtype) -> None:
    T = 100_000 if dtype == torch.float32 else 300
    g = torch.Generator().manual_seed(0)
    signs = torch.tensor([1.0, -1.0, 1.0, -1.0, 1.0, 0.0])
    old = -torch.rand(6, T, generator=g)
    l = size * torch.randn(6, T, generator=g).clamp(-1, 1)
    l[:2] = size
    l[2:4] = -size
    mask = torch.rand(6, T, generator=g) < 0.9
    mask[:, 0] = True
    logprobs = (old + l).to(dtype).requires_grad_()
    out = fspo.objectives.get(name, **parameters, **OPTIONS)(
        logprobs, old.to(dtype), signs.to(dtype), mask, ref_logprobs=old.to(dtype),
        sampler_logprobs=(old + l).to(dtype), entropy=torch.ones(6, T).to(dtype),
    )  # fmt: skip
    out.loss.backward()
    assert torch.isfinite(out.loss)
    assert logprobs.grad is not None
    assert torch.isfinite(logprobs.grad).all()
    assert ((out.accepted >= 0) & (out.accepted <= 1)).all()
    assert all(abs(v) < float("inf") for v in out.metrics.values()), out.metrics


def test_the_hard_cap_is_counted() -> None:
    logprobs = torch.full((2, 30), 1.0, requires_grad=True)
    mask, advantages = torch.ones(2, 30, dtype=torch.bool), torch.tensor([-1.0, 1.0])
    out = fspo.objectives.get("fspo", dual=None, reference_length=1)(logprobs, torch.zeros(2, 30), advantages, mask)
    assert out.metrics["capped"] == 0.5  # S = 30 with A < 0; with A > 0 the band is tighter than the cap
    assert out.accepted.tolist() == [0, 0]
    assert float(out.loss) == pytest.approx((math.exp(20) - math.exp(0.05 * 30**0.5)) / 2, rel=1e-5)
    bounded = fspo.objectives.get("fspo")(logprobs, torch.zeros(2, 30), advantages, mask)
    assert bounded.metrics["capped"] == 0
    assert abs(float(bounded.loss)) < 2
