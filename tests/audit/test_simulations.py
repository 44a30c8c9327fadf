"""Simulated files with known truth, some with outliers: intervals cover, and the band stays flat on clean rows."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

import fspo
from helpers.simulated_answers import answers


@pytest.fixture(scope="module")
def simulate() -> ModuleType:
    path = Path(__file__).parents[2] / "benchmarks" / "simulate.py"
    spec = importlib.util.spec_from_file_location("simulate", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["simulate"] = module
    spec.loader.exec_module(module)
    return module


def check(simulate: ModuleType, name: str, n: int, files: int) -> None:
    process = simulate.Process(**simulate.PROCESSES[name])
    fresh = process.fresh(0)
    judged = [simulate.judge(process, n, seed, fresh) for seed in range(files)]
    for key in judged[0].covers:
        known = [j.covers[key] for j in judged if j.covers[key] is not None]
        # 93 %, less three standard errors of the count: there are 200 of them.
        assert sum(known) >= 0.93 * len(known) - 3 * np.sqrt(0.93 * 0.07 * len(known)), (name, n, key)
    worse = [j.flatness - j.clean for j in judged if j.flatness is not None and j.clean is not None]
    if n >= 300:
        assert np.mean(np.array(worse) <= 0.02) >= 0.95, (name, n)


@pytest.mark.parametrize("name", ["Gaussian", "1 % shifted by -10"])
def test_a_few_files(simulate: ModuleType, name: str) -> None:
    for n in (30, 60, 300):
        check(simulate, name, n, 15)


@pytest.mark.slow
@pytest.mark.parametrize("n", [30, 60, 300, 3000])
def test_all_processes(simulate: ModuleType, n: int) -> None:
    for name in simulate.PROCESSES:
        check(simulate, name, n, 60)


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
