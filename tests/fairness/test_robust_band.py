"""A few outliers do not move a band, few rows do not make one look certain, and intervals hold what they promise."""

from __future__ import annotations

import numpy as np
import pytest

from fspo.fairness.bins import Column
from fspo.fairness.robust_band import band_exponent, fresh_rate_interval, outer_value, outlier_rows, rows_needed
from fspo.fairness.scaling import scaling_law

MU, SIGMA = -3e-4, 0.02


def rows(n: int, H: float = 0.5, seed: int = 0) -> tuple[Column, Column, Column]:
    rng = np.random.default_rng(seed)
    L = np.exp(rng.uniform(np.log(8), np.log(4000), n)).round()
    return MU * L + SIGMA * L**H * rng.standard_normal(n), L, rng.choice([-1.0, 1.0], n)


@pytest.mark.parametrize("shift", [-10.0, 10.0, -800.0])
@pytest.mark.parametrize("count", [1, 10, 30])
def test_outliers_are_found_and_do_not_move_the_exponent(shift: float, count: int) -> None:
    S, L, sign = rows(3000)
    chosen = np.random.default_rng(1).choice(3000, count, replace=False)
    moved = S.copy()
    moved[chosen] += shift
    outliers = outlier_rows(moved, L)
    assert set(np.flatnonzero(outliers)) <= set(chosen)
    assert outliers.sum() >= 0.9 * count
    exponent = band_exponent(moved[~outliers], L[~outliers], sign[~outliers], 0.1)
    assert exponent.value == pytest.approx(band_exponent(S, L, sign, 0.1).value, abs=0.01)
    assert exponent.interval[0] < 0.52


def test_clean_rows_have_no_outliers() -> None:
    for seed in range(20):
        for n in (30, 60, 300, 3000):
            S, L, _ = rows(n, seed=seed)
            assert not outlier_rows(S, L).any()
    assert not outlier_rows(np.where(np.arange(len(S)) % 10, 0.0, S), L).any()  # ties
    S[:300] -= 10
    assert not outlier_rows(S, L).any()  # a large share far out is part of the distribution


@pytest.mark.parametrize("H", [0.35, 0.5, 0.62, 0.8])
@pytest.mark.parametrize("known", [True, False], ids=["advantages", "no advantages"])
def test_the_exponent_is_found(H: float, known: bool) -> None:
    S, L, sign = rows(40_000, H)
    low, high = band_exponent(S, L, sign if known else np.zeros_like(sign), 0.1).interval
    assert low <= H <= high < low + 0.03


@pytest.mark.parametrize(
    ("n", "H"), [(30, 0.5), (60, 0.5), pytest.param(300, 0.5, marks=pytest.mark.slow), (1500, 0.5), (1500, 0.7)]
)
@pytest.mark.parametrize("heavy", [False, True], ids=["Gaussian", "Student t"])
def test_the_law_covers_the_truth(n: int, H: float, heavy: bool) -> None:
    hits = np.zeros(3)
    for seed in range(300):
        rng = np.random.default_rng(seed)
        L = np.exp(rng.normal(5, 0.8, n)).round() + 1
        noise = rng.standard_t(6, n) / np.sqrt(1.5) if heavy else rng.standard_normal(n)
        law = scaling_law(MU * L + SIGMA * L**H * noise, L)
        pairs = (law.interval, H), (law.mu_interval, MU), (law.scale_interval, SIGMA)
        hits += [low <= truth <= high for (low, high), truth in pairs]
    assert (hits >= 0.93 * 300 - 4).all(), hits  # 4: one standard error of a count of 300 at 95 %
    assert n < 1500 or law.interval[1] - law.interval[0] < 0.2


@pytest.mark.parametrize("n", [46, 60, 300])
def test_the_clip_rate_on_fresh_rows_is_covered(n: int) -> None:
    """For any distribution of z: here a skewed one, whose true share beyond the two ends is known."""
    hits, mean = 0, 0.0
    for seed in range(500):
        z = np.random.default_rng(seed).exponential(1.0, n)
        low, high = outer_value(-z, 0.05 * (n + 1)), outer_value(z, 0.05 * (n + 1))
        assert low is not None
        assert high is not None
        rate = 1 - np.exp(low) + np.exp(-high)
        interval = fresh_rate_interval(0.1, n)
        hits += interval[0] <= rate <= interval[1]
        mean += rate / 500
    assert hits >= 0.93 * 500
    assert mean == pytest.approx(0.1, abs=0.01)


def test_rows_needed() -> None:
    for rate in (1e-4, 0.01, 0.05, 0.1, 0.3, 0.6, 0.9):
        n = rows_needed(rate)
        most = rate + min(rate, 1 - rate)
        assert fresh_rate_interval(rate, n)[1] <= most
        assert n <= 3 or fresh_rate_interval(rate, n - 1)[1] > most
    assert 30 < rows_needed(0.1) <= 60
    assert rows_needed(1e-4) > 10_000
