"""The cosine guarantee on random problems; tests/training/test_update.py has both sides on a real model."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import fspo


@pytest.mark.parametrize("problems", [5_000, pytest.param(100_000, marks=pytest.mark.slow)])
def test_the_bound_holds_on_random_problems(problems: int) -> None:
    rng = np.random.default_rng(0)
    guaranteed, tightest = 0, 1.0
    for _ in range(problems):
        bins, size = int(rng.integers(2, 9)), int(rng.integers(2, 7))
        p = rng.dirichlet(np.ones(bins))
        a = np.clip(rng.uniform(0.2, 1) * (1 + rng.uniform(0, 0.5) * rng.uniform(-1, 1, bins)), 0.01, 1)
        g = rng.standard_normal(size) * rng.uniform(0, 3) + rng.standard_normal((bins, size))
        eta = 0.0 if rng.random() < 0.5 else rng.uniform(0, 0.3)
        e = rng.standard_normal((bins, size))
        e *= eta * (a * np.linalg.norm(g, axis=1) / np.linalg.norm(e, axis=1))[:, None]
        G, clipped = p @ g, p @ (a[:, None] * g + e)
        bound = fspo.fairness.cosine_bound(p, a, np.linalg.norm(g, axis=1), float(np.linalg.norm(G)), eta)
        if bound.delta < 1:
            cosine = float(G @ clipped / np.linalg.norm(G) / np.linalg.norm(clipped))
            guaranteed += 1
            tightest = min(tightest, cosine - float(bound))
            assert cosine >= float(bound) - 1e-12, (p, a, g, eta)
    assert guaranteed > problems / 4
    assert tightest < 0.05, "a bound that is never near the truth is not tested"


def test_by_hand() -> None:
    bound = fspo.fairness.cosine_bound([0.5, 0.5], [0.9, 0.6], [1.0, 1.0], 1.0)
    assert (bound.lre, bound.kappa, bound.delta) == pytest.approx((0.2, 1.0, 0.2))
    assert float(bound) == pytest.approx(0.96**0.5)
    with_eta = fspo.fairness.cosine_bound([0.5, 0.5], [0.9, 0.6], [1.0, 1.0], 1.0, eta=0.1)
    assert with_eta.delta == pytest.approx(0.2 * 1.1 + 0.1)
    assert float(fspo.fairness.cosine_bound([0.5, 0.5], [1.0, 0.0], [3.0, 3.0], 1.0)) == -1
    assert float(fspo.fairness.cosine_bound([0.5, 0.5], [0.0, 0.0], [3.0, 3.0], 1.0)) == -1


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (([0.5, 0.4], [1, 1], [1, 1], 1.0), "add up to 1, not to 0.9"),
        (([0.5, 0.5], [1, 1.2], [1, 1], 1.0), "acceptances must lie in"),
        (([0.5, 0.5], [1, 1], [1, 1], 0.0), "total_norm = 0.0 must be positive"),
    ],
)
def test_bad_input(arguments: tuple[Any, ...], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        fspo.fairness.cosine_bound(*arguments)


def test_measured_on_a_linear_model_by_hand() -> None:
    """Two bins with orthogonal gradients; clipping half of the first turns the update by a known angle."""
    w = torch.ones(2, requires_grad=True)
    x = torch.tensor([[1.0, 0], [1, 0], [0, 1], [0, 1]])
    true = x @ w
    accepted = torch.tensor([1.0, 0, 1, 1])
    result = fspo.fairness.measure_cosine(true, true * accepted, accepted, torch.tensor([5, 5, 9, 9]), [w])
    assert result.measured == pytest.approx((0.5 + 1) / (2**0.5 * 1.25**0.5))
    assert result.bound.eta == pytest.approx(0, abs=1e-9)
    assert result.measured >= float(result.tight) > 0
    with pytest.raises(ValueError, match="an update is zero"):
        fspo.fairness.measure_cosine(true * 0, true * 0, accepted, torch.tensor([0, 0, 1, 1]), [w])
