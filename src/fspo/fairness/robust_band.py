"""A band that a few outliers cannot move: its centre, its exponent with an interval, and the clip rate it will give.

S, L as everywhere; z = (S - mu L) / L^H. The band clips z > c_high (where A > 0) and z < -c_low (where A < 0).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from fspo import ratios
from fspo.fairness.bins import CONFIDENCE, Array, Interval, Z, quantile_edges
from fspo.fairness.scaling import ScalingLaw, scaling_law

FAR = 7.0  # an outlier is beyond this multiple of the 80 % quantile of its side: about 6 deviations of a Gaussian
MOST_OUTLIERS = 0.02  # a larger share far out is part of the distribution, unless it is a single row or two
TAIL = (0.05, 0.25)  # share of the rows in a tail that H is fitted to: fewer rows are noise, more are near the centre
EXPONENTS = (-0.5, 1.5)  # searched
HEAVY = 1.0  # excess kurtosis above which tails are called heavy
QUARTILES = 1.349  # distance of the quartiles of a standard Gaussian
USUAL_RATE = 0.1  # the clip rate at which a band's exponent enters the law
MOST_ROWS = 1 << 14  # more rows make neither quantiles nor the exponent usefully more precise


@dataclass(frozen=True)
class BandExponent:
    """The H at which what the band clips has no trend over log L."""

    value: float
    interval: Interval

    def reaching(self, other: Interval) -> BandExponent:
        """This exponent with an interval that holds another one too."""
        return replace(self, interval=(min(self.interval[0], other[0]), max(self.interval[1], other[1])))


def outlier_rows(log_ratio: Array, lengths: Array) -> NDArray[np.bool_]:
    """Outliers among rows of similar length, by quantiles of (S - mu L) / sqrt(L) within bins of length, which a fifth
    of outliers cannot move far; all False if more than MOST_OUTLIERS."""
    S, L = np.asarray(log_ratio, np.float64), np.asarray(lengths, np.float64)
    some = slice(None, None, -(-len(S) // MOST_ROWS))  # quantiles need no more rows
    z = (S - _median_drift(S[some], L[some]) * L) / np.sqrt(L)
    edges = quantile_edges(L[some], int(np.clip(len(S) // 40, 1, 8)))
    index, bounds = np.searchsorted(edges, L), np.full((2, len(edges) + 1), np.inf)
    for k in range(len(edges) + 1):
        values = z[some][index[some] == k]
        if not len(values):
            continue
        low, middle, high = np.quantile(values, [0.2, 0.5, 0.8])
        far = FAR * (1 + 5 / np.sqrt(len(values)))  # quantiles of few rows are uncertain
        if low < middle < high:  # ties in most rows leave nothing to compare with
            bounds[:, k] = far * (middle - low) - middle, far * (high - middle) + middle
    outliers = (-z > bounds[0, index]) | (z > bounds[1, index])
    return outliers if outliers.sum() <= max(2, MOST_OUTLIERS * len(S)) else np.zeros(len(S), bool)


def band_exponent(log_ratio: Array, lengths: Array, sign: Array, clip_rate: float) -> BandExponent:
    """H from what a band at this rate clips, with an interval that holds for any distribution of z.

    The rows are without outliers. At the right H being clipped does not depend on the length: H is where the covariance
    of the two over rows is 0, and the interval all H at which it could be by the chance of a random permutation and the
    error of mu. Where A is known (sign is not all 0) only the side on which clipping acts counts.
    """
    from scipy.special import stdtrit

    rows = np.flatnonzero((sign != 0) | (not sign.any()))
    rows = rows[:: max(1, -(-len(rows) // MOST_ROWS))]
    S, L, A = log_ratio[rows], np.asarray(lengths[rows], np.float64), sign[rows]
    x, root = np.log(L), np.sqrt(L)
    z = (S - ratios.drift(log_ratio, lengths) * L) / root
    error = float(np.sqrt(np.sum((z * root) ** 2))) / float(L.sum()) * (len(rows) / len(sign)) ** 0.5
    sides = []
    for side in (-1, 1):
        here = np.flatnonzero(side == A) if sign.any() else np.arange(len(A))
        share = float(np.clip(clip_rate / 2 * len(A) / max(1, len(here)), *TAIL))
        outer = round(share * len(here))
        if outer >= 2:
            sides.append((side * z[here], side * root[here], x[here] - x[here].mean(), outer))
    chance = sum(k * (1 - k / len(o)) * float((d * d).sum()) / max(1, len(o) - 1) for o, _, d, k in sides)
    if chance <= 0:
        return BandExponent(0.5, (0.0, 1.0))

    def covariance(H: float, moved: float = 0.0) -> float:
        total = 0.0
        for o, r, d, k in sides:
            values = (o if not moved else o - moved * r) * np.exp((0.5 - H) * d)
            total += float(d[values > np.partition(values, len(o) - k - 1)[len(o) - k - 1]].sum())
        return total

    value = _root(covariance, 0.0)
    drift = (covariance(value, error) - covariance(value, -error)) / 2
    margin = float(-stdtrit(max(1, len(rows) - 1), (1 - CONFIDENCE) / 2)) * float(np.hypot(np.sqrt(chance), drift))
    low, high = _root(covariance, margin), _root(covariance, -margin)
    return BandExponent(value, (min(low, value), max(high, value)))


def heavy_tails(log_ratio: Array, lengths: Array, law: ScalingLaw) -> bool:
    """Whether u = (S - mu L) / L^H has an excess kurtosis above HEAVY that chance does not explain."""
    u = (log_ratio - law.mu * lengths) / lengths**law.exponent
    u = u - u.mean()
    u = u / np.abs(u).max()  # powers could overflow
    chance = 3 * np.sqrt(24 / len(u))
    return bool((u**4).mean() / (u**2).mean() ** 2 - 3 > max(HEAVY, chance))


def middle_law(log_ratio: Array, lengths: Array, mu: float) -> tuple[Interval, BandExponent]:
    """sigma and H of the middle half of the rows, which rows far out do not move.

    H is that of the quartiles, and sigma that of a Gaussian with these quartiles.
    """
    fitted = band_exponent(log_ratio, lengths, np.zeros(len(log_ratio)), 0.5)

    def log_scale(H: float) -> float:
        low, high = np.quantile((log_ratio - mu * lengths) / lengths**H, [0.25, 0.75])
        return float(np.log(max((high - low) / QUARTILES, 1e-300)))

    middle = log_scale(fitted.value)
    error = 1.17 * Z / float(np.sqrt(len(log_ratio)))  # of a Gaussian
    low, high = (float(np.hypot(error, log_scale(H) - middle)) for H in reversed(fitted.interval))
    return (float(np.exp(middle - low)), float(np.exp(middle + high))), fitted


def robust_law(law: ScalingLaw, log_ratio: Array, lengths: Array, outliers: Array) -> ScalingLaw:
    """Scaling law of the inliers; with heavy tails, intervals cover the fits to all rows and to the middle half.

    `law` is that of all rows. Rows far out may be errors, jumps or a heavy tail, and the data do not say which.
    """
    if not outliers.any() and not heavy_tails(log_ratio, lengths, law):
        return law
    S, L = log_ratio[~outliers], lengths[~outliers]
    inlier_law = scaling_law(S, L) if outliers.any() else law
    scale, middle = middle_law(S, L, inlier_law.mu)
    clipped = band_exponent(S, L, np.zeros(len(S)), USUAL_RATE)
    for exponent in (middle.interval, clipped.interval, law.interval):
        inlier_law = inlier_law.reaching(law.mu_interval, law.scale_interval, exponent)
    return inlier_law.reaching(law.mu_interval, scale, law.interval)


def fresh_rate_interval(clip_rate: float, count: int) -> Interval:
    """The clip rate on fresh rows of a band whose ends are order statistics of `count` rows: the share beyond the k-th
    outermost of n is Beta(k, n + 1 - k). Both ends take k = clip_rate (n + 1), at least the outermost row each."""
    k = min(max(2.0, clip_rate * (count + 1)), count + 0.5)
    from scipy.special import betaincinv

    low, high = (float(betaincinv(k, count + 1 - k, (1 + side * CONFIDENCE) / 2)) for side in (-1, 1))
    return low, high


def rows_needed(clip_rate: float) -> int:
    """The least number of rows whose `fresh_rate_interval` ends at or below twice the wanted rate."""

    def useful(count: int) -> bool:
        return fresh_rate_interval(clip_rate, count)[1] <= clip_rate + min(clip_rate, 1 - clip_rate)

    counts = range(2, 1 << 30)
    return counts[bisect_left(counts, True, key=useful)]


def outer_value(values: Array, rank: float) -> float | None:
    """The `rank`-th largest value, interpolated; None beyond the sample. A rank below 1 gives the largest."""
    if rank > len(values):
        return None
    return float(np.interp(rank, np.arange(1, len(values) + 1), np.sort(values)[::-1]))


def _root(decreasing: Callable[[float], float], level: float) -> float:
    """Where a decreasing function passes the level; an end of EXPONENTS if it does so outside."""
    from scipy.optimize import brentq

    ends = [decreasing(end) - level for end in EXPONENTS]
    if ends[0] <= 0 or ends[1] >= 0:
        return EXPONENTS[0] if ends[0] <= 0 else EXPONENTS[1]
    return float(brentq(lambda H: decreasing(H) - level, *EXPONENTS, xtol=2e-4))


def _median_drift(S: Array, L: Array) -> float:
    """The median token log-ratio: the mu of least sum |S - mu L| / sqrt(L)."""
    order = np.argsort(S / L)
    weight = np.cumsum(np.sqrt(L[order]))
    return float((S / L)[order[np.searchsorted(weight, weight[-1] / 2)]])
