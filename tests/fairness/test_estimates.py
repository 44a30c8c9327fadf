"""Calibration, the scaling law and partition bands recover what data was made with."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

import fspo

N = 2_000_000
SIGMA = 0.02
Floats = NDArray[np.float64]


def ar1_variance(L: Floats, phi: float) -> Floats:
    """The variance of the sum of L steps of a stationary AR(1) process of unit variance."""
    return L * (1 + phi) / (1 - phi) - 2 * phi * (1 - phi**L) / (1 - phi) ** 2


def simulate(n: int, phi: float, seed: int = 0) -> tuple[Floats, Floats]:
    """S and L of n responses; L is log-uniform from 8 to 32,768, and the drift is that of Gaussian log-ratios."""
    rng = np.random.default_rng(seed)
    L = np.exp(rng.uniform(np.log(8), np.log(32768), n)).round()
    return -(SIGMA**2) / 2 * L + SIGMA * np.sqrt(ar1_variance(L, phi)) * rng.standard_normal(n), L


def reports(S: Floats, L: Floats, clip_rate: float = 0.1) -> dict[str, fspo.fairness.FairnessReport]:
    """Fairness of sequence-level objectives: FSPO's band is calibrated on one half of the data, all are measured on the
    other, and either side of a band counts."""
    half = len(S) // 2
    band = fspo.fairness.calibrate(S[:half], L[:half], clip_rate, drift="kl")
    flat = fspo.fairness.calibrate(S[:half], L[:half], clip_rate, drift="zero")
    S, L = S[half:], L[half:]
    rules = {
        "fspo, kl drift": fspo.objectives.get("fspo", c_low=band.c_low, c_high=band.c_high, drift=band.mu),
        "fspo, zero drift": fspo.objectives.get("fspo", c_low=flat.c_low, c_high=flat.c_high, drift="zero"),
        "rloo (w in 0.8–1.2)": fspo.objectives.get("rloo"),
        "gspo (3e-4, 4e-4)": fspo.objectives.get("gspo"),
    }
    return {name: fspo.fairness.measure(L, _inside(rule, S, L)) for name, rule in rules.items()}


def _inside(rule: fspo.objectives.Objective, S: Floats, L: Floats) -> Floats:
    """1 where S lies in the band of the rule, 0 elsewhere."""
    band = rule.band(L, fspo.objectives.Totals(1, 1, 0.0))
    assert band is not None
    low, high = band.bounds
    return np.where((low <= S) & (high >= S), 1.0, 0.0)


def test_the_exact_variance_of_ar1_sums() -> None:
    phi, L, lags = 0.5, 40, np.arange(1, 40)
    assert ar1_variance(np.array([L]), phi) == pytest.approx([L + 2 * np.sum((L - lags) * phi**lags)])


@pytest.mark.parametrize("phi", [0.0, 0.2], ids=["independent", "AR(1)"])
def test_fspo_is_flat_over_length_and_the_others_are_not(phi: float) -> None:
    S, L = simulate(N, phi)
    by_rule = reports(S, L)
    fair = by_rule["fspo, kl drift"]
    assert len(fair.bins) == 8
    assert fair.flatness < 0.01
    assert fair.lre < 0.02
    assert fair.clip_rate == pytest.approx(0.1, abs=0.002)
    for name in ("rloo (w in 0.8–1.2)", "gspo (3e-4, 4e-4)", "fspo, zero drift"):
        assert by_rule[name].flatness > 5 * fair.flatness, name
    long, short = by_rule["rloo (w in 0.8–1.2)"].bins[-1], by_rule["gspo (3e-4, 4e-4)"].bins[0]
    assert long.clip_rate > 0.9
    assert short.clip_rate > 0.8


def test_strongly_correlated_tokens_clip_the_shortest_responses_less() -> None:
    """A sum of few correlated tokens has not reached its asymptotic variance."""
    S, L = simulate(N, 0.5)
    by_rule = reports(S, L)
    rates = [b.clip_rate for b in by_rule["fspo, kl drift"].bins]
    assert rates[0] == min(rates)
    assert max(rates) - rates[0] < 0.03
    assert by_rule["fspo, kl drift"].lre < 0.02


def test_calibrate() -> None:
    S, L = simulate(400_000, 0.0)
    band = fspo.fairness.calibrate(S, L, clip_rate=0.1)
    assert band.mu == pytest.approx(-(SIGMA**2) / 2, rel=0.02)
    assert band.sigma == pytest.approx(SIGMA, rel=0.01)
    assert (band.c_low, band.c_high) == pytest.approx((1.645 * SIGMA,) * 2, rel=0.01)


def test_calibrate_meets_the_rate_for_any_shape() -> None:
    rng = np.random.default_rng(0)
    L = rng.integers(5, 500, 50_000)
    S = np.sqrt(L) * (rng.exponential(0.02, len(L)) - 0.02)
    band = fspo.fairness.calibrate(S, L, clip_rate=0.2)
    z = (S - band.mu * L) / np.sqrt(L)
    assert ((z < -band.c_low) | (z > band.c_high)).mean() == pytest.approx(0.2, abs=0.001)
    assert band.c_high > 1.3 * band.c_low
    assert fspo.fairness.calibrate(S, L, drift="zero").mu == 0
    assert fspo.fairness.calibrate(S, L, drift=-0.1).mu == -0.1


def test_scaling_law_sees_correlated_tokens() -> None:
    S, L = simulate(100_000, 0.5)
    assert fspo.fairness.scaling_law(S, L).interval[0] > 0.5


def test_partition_bands_shrink_small_partitions_and_keep_large_ones() -> None:
    rng = np.random.default_rng(0)
    sizes, scales = {"a": 4000, "b": 4000, "c": 4000, "tiny": 4}, {"a": 0.01, "b": 0.02, "c": 0.04, "tiny": 0.02}
    partition = np.repeat(list(sizes), list(sizes.values()))
    L = rng.integers(20, 400, len(partition)).astype(float)
    sigma = np.array([scales[p] for p in partition])
    S = -(sigma**2) / 2 * L + sigma * np.sqrt(L) * rng.standard_normal(len(L))
    bands = fspo.fairness.partition_bands(S, L, partition, clip_rate=0.1)
    for name in "abc":
        assert bands.bands[name].sigma == pytest.approx(scales[name], rel=0.05)
        assert bands.shrinkage[name] < 0.05
    assert bands.shrinkage["tiny"] > 0.2
    low, high = bands.bounds(L, partition)
    large, pooled = partition != "tiny", bands.pooled
    own = (low <= S) & (high >= S)
    plain = np.abs(S - pooled.mu * L) <= pooled.c_low * np.sqrt(L)
    assert fspo.fairness.measure(L[large], own[large], by=partition[large]).flatness < 0.02
    assert fspo.fairness.measure(L[large], plain[large], by=partition[large]).flatness > 0.2
    numbered = fspo.fairness.partition_bands(S, L, np.unique(partition, return_inverse=True)[1])
    assert np.array_equal(numbered.bounds([9.0], [2]), numbered.bounds([9.0], [2.0]))
    unknown = bands.bounds([100.0], ["new"])
    assert unknown[1][0] == pytest.approx(pooled.mu * 100 + pooled.c_high * 10)


def test_bad_input() -> None:
    with pytest.raises(ValueError, match="at least 10 responses, not 3"):
        fspo.fairness.scaling_law([1, 2, 3], [1, 2, 3])
    with pytest.raises(ValueError, match="all responses have the length 7"):
        fspo.fairness.scaling_law(np.arange(20.0), np.full(20, 7))
    with pytest.raises(ValueError, match="on-policy"):
        fspo.fairness.scaling_law(np.zeros(20), np.arange(1, 21))
    with pytest.raises(ValueError, match=r"clip_rate = 1\.5 must lie between 0 and 1"):
        fspo.fairness.calibrate([1, 2], [1, 2], clip_rate=1.5)
    with pytest.raises(ValueError, match="the policy has not moved"):
        fspo.fairness.calibrate(np.zeros(20), np.arange(1, 21))
    with pytest.raises(ValueError, match="drift = 'bounded' must be 'kl', 'zero', or a number"):
        fspo.fairness.calibrate([1, 2], [1, 2], drift="bounded")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="partition has the shape"):
        fspo.fairness.partition_bands([1, 2], [1, 2], ["a"])
    with pytest.raises(ValueError, match="nothing to estimate a band from"):
        fspo.fairness.partition_bands([1, 2], [1, 2], ["a", "b"])
