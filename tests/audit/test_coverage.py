"""Intervals hold what they promise: over simulated files, mu, sigma and H lie inside at the nominal rate."""

from __future__ import annotations

import pytest

import fspo
from helpers.simulated_answers import answers

SIMULATIONS = 200
# A binomial count of 200 at 95 % lies in 180..199 but for about one time in 1,000.
LEAST, MOST = 180, 199


@pytest.mark.parametrize("H", [0.5, 0.62])
def test_mu_sigma_and_h_are_recovered_at_the_nominal_rate(H: float) -> None:
    inside = {"mu": 0, "sigma": 0, "H": 0}
    for seed in range(SIMULATIONS):
        law = fspo.audit(answers(1500, mu=-2e-4, sigma=0.02, H=H, seed=seed)).law
        assert law is not None
        inside["mu"] += law.mu_interval[0] <= -2e-4 <= law.mu_interval[1]
        inside["sigma"] += law.scale_interval[0] <= 0.02 <= law.scale_interval[1]
        inside["H"] += law.interval[0] <= H <= law.interval[1]
    assert all(LEAST <= count <= MOST for count in inside.values()), inside
