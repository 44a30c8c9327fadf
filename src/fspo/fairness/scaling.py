"""Does the spread of S grow as sqrt(L)? The fit of Var(S | L) = sigma^2 L^(2H), with an interval for H.

Independent token log-ratios give H = 1/2; correlated ones give more (persistent) or less (cancelling).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import ArrayLike

from fspo.fairness.bins import Interval
from fspo.fairness.columns import Column, log_ratio_and_length


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
    return scaling_law_of_sums(L, np.ones_like(S), S, S * S, sample=(S, L), confidence=confidence)


def scaling_law_of_sums(
    lengths: Column,
    count: Column,
    total: Column,
    square: Column,
    *,
    sample: tuple[Column, Column],
    confidence: float = 0.95,
) -> ScalingLaw:
    """The same fit from the number of responses, the sum of S and the sum of S^2 at each length.

    The equations need no more than these sums. The intervals need fourth moments as well, which come from `sample`:
    S and L of some or all of the responses.
    """
    found = fit_of_sums(lengths, count, total, square)
    H, mu, variance, centre = (float(v) for v in found)
    n = float(count.sum())
    h_error, scale_error, mu_error = _errors(*sample, centre, mu, H, variance) / math.sqrt(n)
    z = NormalDist().inv_cdf(0.5 + confidence / 2)
    scale = math.sqrt(variance) * math.exp(-H * centre)
    return ScalingLaw(
        exponent=H,
        interval=(H - z * h_error, H + z * h_error),
        scale=scale,
        mu=mu,
        mu_interval=(mu - z * mu_error, mu + z * mu_error),
        scale_interval=(scale * math.exp(-z * scale_error), scale * math.exp(z * scale_error)),
        count=int(n),
    )


def fit_of_sums(lengths: Column, count: Column, total: Column, square: Column) -> tuple[Column, Column, Column, Column]:
    """H, mu, the variance at the centre and the centre of log L: the fit alone, without intervals.

    The sums may have leading axes, such as (draws, lengths): each draw is fitted on its own, all in one computation.
    """
    n = count.sum(-1)
    if n.min() < 10:
        raise ValueError(f"a scaling law needs at least 10 responses, not {n.min():g}")
    x = np.log(lengths)
    centre = count @ x / n
    x = x - centre[..., None]  # so that sigma and H are nearly independent
    if lengths.max() - lengths.min() < 1e-9:
        raise ValueError(f"all responses have the length {lengths[0]:g}: an exponent needs different lengths")
    H, mu, variance = np.full(n.shape, 0.5), np.zeros(n.shape), np.zeros(n.shape)
    for _ in range(100):
        spread = np.exp(-2 * H[..., None] * x)
        mu = (total * spread @ lengths) / (count * spread @ lengths**2)
        drift = mu[..., None] * lengths
        u2 = np.maximum(square - 2 * drift * total + count * drift**2, 0.0) * spread
        variance = u2.sum(-1) / n
        if not np.all(variance):
            raise ValueError("S is exactly mu L everywhere (the data is on-policy): there is no spread to fit")
        u2 = u2 / variance[..., None]
        # Newton's step of the profiled equation in H, held short of overshooting.
        weighted = (u2 * x).sum(-1) / n
        step = weighted / (2 * np.maximum((u2 * x * x).sum(-1) / n - weighted**2, 1e-12))
        H = H + np.clip(step, -0.25, 0.25)
        if np.abs(step).max() < 1e-10:
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
