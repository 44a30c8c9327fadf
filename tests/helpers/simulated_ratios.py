"""Sequence log-ratios of independent and of AR(1) Gaussian tokens, and how fairly objectives clip them.

The sum of L Gaussian tokens is Gaussian, so S is drawn directly, with the exact variance of the sum. Objectives that
clip tokens (the PPO family) clip a share of them that does not depend on L, and are left out.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

import fspo
from fspo import objectives

SIGMA = 0.02

Floats = NDArray[np.float64]


def ar1_variance(L: Floats, phi: float) -> Floats:
    """The variance of the sum of L steps of a stationary AR(1) process of unit variance."""
    return L * (1 + phi) / (1 - phi) - 2 * phi * (1 - phi**L) / (1 - phi) ** 2


def simulate(n: int, phi: float, seed: int = 0) -> tuple[Floats, Floats]:
    """S and L of n responses; L is log-uniform from 8 to 32,768, and the drift is that of Gaussian log-ratios."""
    rng = np.random.default_rng(seed)
    L = np.exp(rng.uniform(math.log(8), math.log(32768), n)).round()
    return -(SIGMA**2) / 2 * L + SIGMA * np.sqrt(ar1_variance(L, phi)) * rng.standard_normal(n), L


def reports(S: Floats, L: Floats, clip_rate: float = 0.1) -> dict[str, fspo.fairness.FairnessReport]:
    """Fairness of sequence-level objectives: FSPO's band is calibrated on one half of the data, all are measured on the
    other, and either side of a band counts."""
    half = len(S) // 2
    band = fspo.fairness.calibrate(S[:half], L[:half], clip_rate, drift="kl")
    flat = fspo.fairness.calibrate(S[:half], L[:half], clip_rate, drift="zero")
    S, L = S[half:], L[half:]
    rules = {
        "fspo, kl drift": objectives.get("fspo", c_low=band.c_low, c_high=band.c_high, drift=band.mu),
        "fspo, zero drift": objectives.get("fspo", c_low=flat.c_low, c_high=flat.c_high, drift="zero"),
        "rloo (w in 0.8–1.2)": objectives.get("rloo"),
        "gspo (3e-4, 4e-4)": objectives.get("gspo"),
    }
    return {name: fspo.fairness.measure(L, _inside(rule, S, L)) for name, rule in rules.items()}


def _inside(rule: objectives.Objective, S: Floats, L: Floats) -> Floats:
    """1 where S lies in the band of the rule, 0 elsewhere."""
    band = rule.band(L, objectives.Totals(1, 1, 0.0))
    assert band is not None
    low, high = band.bounds
    return np.where((low <= S) & (high >= S), 1.0, 0.0)
