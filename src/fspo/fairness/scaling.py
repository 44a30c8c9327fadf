"""Does the spread of S grow as sqrt(L)? The fit of Var(S | L) = sigma^2 L^(2H), with an interval for H.

Independent token log-ratios give H = 1/2; correlated ones give more (persistent) or less (cancelling).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike

from fspo.fairness.bins import CONFIDENCE, Column, Interval, Z, log_ratio_and_length

DRAWS = 999  # of a bootstrap of few rows
WIDER = 1.15  # such a bootstrap of skewed rows falls short by this factor, measured with benchmarks/simulate.py
SMALL = 1000  # responses up to which intervals are those of few rows
ROUNDING = 1e-13  # a variance of this share of the mean square is that of rounding
FARTHEST = 2.0  # an interval of H reaches at most so far from the estimate


@dataclass(frozen=True)
class ScalingLaw:
    """Var(S | L) = scale^2 L^(2 exponent) around the mean mu L."""

    exponent: float  # H
    interval: Interval
    scale: float
    mu: float
    mu_interval: Interval
    scale_interval: Interval
    count: int

    def reaching(self, mu: Interval, scale: Interval, exponent: Interval) -> ScalingLaw:
        """This law with intervals that hold those of other estimates too."""
        pairs = (self.mu_interval, mu), (self.scale_interval, scale), (self.interval, exponent)
        mu, scale, exponent = ((min(a[0], b[0]), max(a[1], b[1])) for a, b in pairs)
        return replace(self, mu_interval=mu, scale_interval=scale, interval=exponent)


def scaling_law(log_ratio: ArrayLike, lengths: ArrayLike) -> ScalingLaw:
    """Fit of mu, sigma and H by Gaussian pseudo-likelihood.

    Its estimating equations, sum u^2 - 1 = 0 and sum (u^2 - 1) log L = 0 with u = (S - mu L) / (sigma L^H), hold for
    any distribution with these two moments, and so do the (sandwich) intervals: S need not be Gaussian.
    """
    S, L = log_ratio_and_length(log_ratio, lengths)
    n = len(S)
    H, mu, variance, centre = _fit(L, np.ones_like(S), S, S * S)
    scale = math.sqrt(variance) * math.exp(-H * centre)
    if n <= SMALL:
        return _small(S, L, H, mu, scale)
    h_error, scale_error, mu_error = _errors(S, L, centre, mu, H, variance) / math.sqrt(n)
    return ScalingLaw(
        exponent=H,
        interval=(H - Z * h_error, H + Z * h_error),
        scale=scale,
        mu=mu,
        mu_interval=(mu - Z * mu_error, mu + Z * mu_error),
        scale_interval=(scale * math.exp(-Z * scale_error), scale * math.exp(Z * scale_error)),
        count=n,
    )


def _small(S: Column, L: Column, H: float, mu: float, scale: float) -> ScalingLaw:
    """Intervals of few rows, which sandwich errors make too short.

    H: all values at which u^2 has no more covariance with log L than a random permutation gives. mu: residuals enlarged
    by their leverage (HC3) and Student's t, or the bootstrap of the studentised estimate where that reaches further.
    sigma: the errors of the spread at the centre of log L and of H, nearly independent, combined for each end.
    """
    from scipy.special import stdtrit

    n, x = len(S), np.log(L) - np.log(L).mean()
    t = float(-stdtrit(n - 2, (1 - CONFIDENCE) / 2))

    def squares(h: float) -> Column:
        """u^2 at this H, with mu fitted to it and the leverage of each row corrected, relative to their mean."""
        weight = L * np.exp(-2 * h * x)
        lever = np.minimum(weight * L / (weight @ L), 0.9)
        u2 = (S - (weight @ S) / (weight @ L) * L) ** 2 * np.exp(-2 * h * x) / (1 - lever)
        return np.asarray(u2 / u2.mean())

    def excess(h: float) -> float:
        u2 = squares(h)
        return float(u2 @ x) / math.sqrt(float(((u2 - 1) ** 2).sum() * (x @ x)) / (n - 1) + 1e-300)

    ends = [_end(excess, H, side, t) for side in (-1, 1)]
    weight = L * np.exp(-2 * H * x)
    lever = np.minimum(weight * L / (weight @ L), 0.9)
    mu_error = math.sqrt(float(((weight * (S - mu * L) / (1 - lever)) ** 2).sum())) / float(weight @ L)
    rows = 1 / float(lever @ lever)  # mu rests on the longest rows: as many as this count
    mu_error *= float(-stdtrit(max(1.0, rows - 1), (1 - CONFIDENCE) / 2))
    low, high = _resampled_drift(S, L, weight)
    u2, centre = squares(H), float(np.log(L).mean())
    spread = float(np.sqrt(((u2 - 1) ** 2).sum() / (n - 1) / n)) / 2 * t
    spread = max(spread, t / math.sqrt(2 * n))  # a sample with light tails by chance is no proof of light tails
    down, up = (math.hypot(spread, centre * (H - end)) for end in (ends[1], ends[0]))
    return ScalingLaw(
        exponent=H,
        interval=(ends[0], ends[1]),
        scale=scale,
        mu=mu,
        mu_interval=(min(mu - mu_error, low), max(mu + mu_error, high)),
        scale_interval=(scale * math.exp(-down), scale * math.exp(up)),
        count=n,
    )


def _resampled_drift(S: Column, L: Column, weight: Column) -> Interval:
    """Bootstrap-t interval of mu = sum w S / sum w L over rows."""
    n = len(S)
    draws = np.random.default_rng(0).multinomial(n, np.full(n, 1 / n), DRAWS).astype(np.float64)
    draws = np.concatenate([np.ones((1, n)), draws])  # the first is the sample itself
    columns = np.stack([weight * S, weight * L, (weight * S) ** 2, weight**2 * S * L, (weight * L) ** 2], axis=1)
    total, length, ss, sl, ll = (draws @ columns).T
    mu = total / length
    error = np.sqrt(np.maximum(ss - 2 * mu * sl + mu * mu * ll, 1e-300)) / length
    t = (mu[1:] - mu[0]) / error[1:]
    low, high = np.quantile(t, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return float(mu[0] - WIDER * high * error[0]), float(mu[0] - WIDER * low * error[0])


def _end(excess: Callable[[float], float], H: float, side: int, t: float) -> float:
    """The end of the interval of H on this side: where the excess, which falls with H, reaches -side t."""
    from scipy.optimize import brentq

    if -side * excess(H) >= t:
        return H
    inner, outer = H, H + side * 0.05
    while -side * excess(outer) < t:
        inner, outer = outer, outer + 2 * (outer - inner)
        if abs(outer - H) > FARTHEST:
            return H + side * FARTHEST
    return float(brentq(lambda h: -side * excess(h) - t, *sorted((inner, outer)), xtol=1e-5))


def _fit(lengths: Column, count: Column, total: Column, square: Column) -> tuple[float, float, float, float]:
    """H, mu, the variance at the centre and the centre of log L: the fit alone, without intervals."""
    n = float(count.sum())
    if n < 10:
        raise ValueError(f"a scaling law needs at least 10 responses, not {n:g}")
    if lengths.max() - lengths.min() < 1e-9:
        raise ValueError(f"all responses have the length {lengths[0]:g}: an exponent needs different lengths")
    x = np.log(lengths)
    centre = float(count @ x) / n
    x = x - centre  # so that sigma and H are nearly independent
    H, mu, variance = 0.5, 0.0, 0.0
    for _ in range(100):
        spread = np.exp(-2 * H * x)
        mu = float((total * spread @ lengths) / (count * spread @ lengths**2))
        drift = mu * lengths
        u2 = np.maximum(square - 2 * drift * total + count * drift**2, 0.0) * spread
        variance = float(u2.sum()) / n
        if variance <= ROUNDING * float((square * spread).sum()) / n:
            raise ValueError("S is exactly mu L everywhere (the data is on-policy): there is no spread to fit")
        u2 = u2 / variance
        # Newton's step of the profiled equation in H, held short of overshooting.
        weighted = float((u2 * x).sum()) / n
        step = weighted / (2 * max(float((u2 * x * x).sum()) / n - weighted**2, 1e-12))
        H += max(-0.25, min(0.25, step))
        if abs(step) < 1e-10:
            break
    return H, mu, variance, centre


def _errors(S: Column, L: Column, centre: float, mu: float, H: float, variance: float) -> Column:
    """Sandwich errors of H, log sigma and mu, times the root of the number of responses."""
    x = np.log(L) - centre
    spread = np.exp(-2 * H * x)
    residual = S - mu * L
    score, width = residual**2 * spread / variance - 1, float((x * x).mean())
    h_error = math.sqrt(float((score**2 * x**2).mean())) / (2 * width)
    # log sigma at log L = 0 is log sigma at the centre minus H times the centre: the errors combine by influence.
    influence = score / 2 - centre * score * x / (2 * width)
    mu_error = math.sqrt(float(((residual * L * spread) ** 2).mean())) / float((L * L * spread).mean())
    return np.array([h_error, math.sqrt(float((influence**2).mean())), mu_error])
