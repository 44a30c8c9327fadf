"""Does the spread of S grow as sqrt(L)? The fit of Var(S | L) = sigma^2 L^(2H), with an interval for H.

Independent token log-ratios give H = 1/2; correlated ones give more (persistent) or less (cancelling).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import ArrayLike

from fspo.fairness.columns import log_ratio_and_length
from fspo.fairness.measure import Interval


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


def scaling_law(log_ratio: ArrayLike, lengths: ArrayLike, *, confidence: float = 0.95) -> ScalingLaw:
    """Fit of mu, sigma and H by Gaussian pseudo-likelihood.

    Its estimating equations, sum u^2 - 1 = 0 and sum (u^2 - 1) log L = 0 with u = (S - mu L) / (sigma L^H), hold for
    any distribution with these two moments, and the intervals are the sandwich ones: they do not need S to be
    Gaussian.
    """
    S, L = log_ratio_and_length(log_ratio, lengths)
    if len(S) < 10:
        raise ValueError(f"a scaling law needs at least 10 responses, not {len(S)}")
    x = np.log(L)
    centre = x.mean()
    x = x - centre  # so that sigma and H are nearly independent
    if x.max() - x.min() < 1e-9:
        raise ValueError(f"all responses have the length {L[0]:g}: an exponent needs different lengths")
    H, mu, square = 0.5, float(S.sum() / L.sum()), 0.0
    for _ in range(100):
        spread = np.exp(-2 * H * x)
        mu = float((S * L * spread).sum() / (L * L * spread).sum())
        u2 = (S - mu * L) ** 2 * spread
        square = float(u2.mean())
        if not square:
            raise ValueError("S is exactly mu L everywhere (the data is on-policy): there is no spread to fit")
        u2 = u2 / square
        # Newton's step of the profiled equation in H, held short of overshooting.
        weighted = float((u2 * x).mean())
        step = weighted / (2 * max(float((u2 * x * x).mean()) - weighted**2, 1e-12))
        H += max(-0.25, min(0.25, step))
        if abs(step) < 1e-10:
            break
    z = NormalDist().inv_cdf(0.5 + confidence / 2)
    n, score, variance = len(S), u2 - 1, float((x * x).mean())
    h_error = math.sqrt(float((score**2 * x**2).sum())) / (2 * n * variance)
    # log sigma at log L = 0 is log sigma at the centre minus H times the centre: the errors combine by influence.
    influence = score / 2 - centre * score * x / (2 * variance)
    scale = math.sqrt(square) * math.exp(-H * centre)
    scale_error = math.sqrt(float((influence**2).sum())) / n
    precision = L * np.exp(-2 * H * x)
    mu_error = math.sqrt(float(((S - mu * L) ** 2 * precision**2).sum())) / float((L * precision).sum())
    return ScalingLaw(
        exponent=H,
        interval=(H - z * h_error, H + z * h_error),
        scale=scale,
        mu=mu,
        mu_interval=(mu - z * mu_error, mu + z * mu_error),
        scale_interval=(scale * math.exp(-z * scale_error), scale * math.exp(z * scale_error)),
        count=n,
    )
