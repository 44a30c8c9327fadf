"""A band that a few wild rows cannot move: its centre, its exponent with an interval, and the clip rate it will give.

S, L as everywhere; z = (S - mu L) / L^H. The band clips z > c_high (where A > 0) and z < -c_low (where A < 0).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtrit
from scipy.stats import beta

from fspo import ratios
from fspo.fairness.bins import Interval, cut

Array = NDArray[Any]

FAR = 7.0  # a row is wild beyond so many times the 80 % quantile of its side: about 6 standard deviations of a Gaussian
MOST_WILD = 0.02  # a larger share far out is part of the distribution
TAIL = (0.05, 0.25)  # tails that say enough about the spread: fewer rows are noise, more are near the centre
EXPONENTS = (-0.5, 1.5)  # searched
MOST_ROWS = 1 << 15  # more rows do not make the exponent usefully more precise


@dataclass(frozen=True)
class BandExponent:
    """The H at which what the band clips has no trend over log L."""

    value: float
    interval: Interval

    def clear_of_half(self, margin: float) -> bool:
        """Whether the whole interval is farther from 1/2 than the margin."""
        return self.interval[0] > 0.5 + margin or self.interval[1] < 0.5 - margin


def wild_rows(log_ratio: Array, lengths: Array) -> NDArray[np.bool_]:
    """Rows whose S lies far outside of what rows of like length have; none if these are more than MOST_WILD of all.

    The rows are compared within bins of length by the median and the 20 % and 80 % quantiles of (S - mu L) / sqrt(L),
    which a fifth of wild rows in a bin cannot move far.
    """
    S, L = np.asarray(log_ratio, np.float64), np.asarray(lengths, np.float64)
    z = (S - _median_drift(S, L) * L) / np.sqrt(L)
    bins = cut(L, int(np.clip(len(S) // 20, 1, 16)))
    order = np.argsort(bins.index, kind="stable")
    wild = np.zeros(len(S), bool)
    for rows in np.split(order, np.cumsum(np.bincount(bins.index))[:-1]):
        low, middle, high = np.quantile(z[rows], [0.2, 0.5, 0.8])
        if low < middle < high:  # ties in most rows leave nothing to compare with
            wild[rows] = (z[rows] > middle + FAR * (high - middle)) | (z[rows] < middle - FAR * (middle - low))
    return wild if wild.mean() <= MOST_WILD else np.zeros(len(S), bool)


def robust_drift(log_ratio: Array, lengths: Array) -> float:
    """mu, the mean token log-ratio, of the rows that are not wild: the mean itself where none is."""
    tame = ~wild_rows(log_ratio, lengths)
    return ratios.drift(log_ratio[tame], lengths[tame])


def band_exponent(
    log_ratio: Array, lengths: Array, sign: Array, mu: float, clip_rate: float, confidence: float = 0.95
) -> BandExponent:
    """H from what a band at this rate clips, with an interval that holds for any distribution of z.

    At the right H being clipped does not depend on the length, so that the covariance of the two over rows is 0 up to
    the chance of a random permutation. H is where it is 0, and the interval all H at which it could be by chance. One
    row counts as clipped or not, however far out it lies. Where A is known (sign is not all 0) only the side on which
    clipping acts counts.
    """
    rows = np.flatnonzero(~wild_rows(log_ratio, lengths) & ((sign != 0) | (not sign.any())))
    rows = rows[:: -(-len(rows) // MOST_ROWS)] if len(rows) else rows
    S, L, A = log_ratio[rows], np.asarray(lengths[rows], np.float64), sign[rows]
    z, x = (S - mu * L) / np.sqrt(L), np.log(L)
    sides = []
    for side in (-1, 1):
        here = A == side if sign.any() else np.ones(len(A), bool)
        share = float(np.clip(clip_rate / 2 * len(A) / max(1, int(here.sum())), *TAIL))
        outer = round(share * int(here.sum()))
        if outer >= 2:
            sides.append((side * z[here], x[here] - x[here].mean(), outer))
    spread = sum(k * (1 - k / len(o)) * float(d @ d) / max(1, len(o) - 1) for o, d, k in sides)
    if spread <= 0:
        return BandExponent(0.5, (0.0, 1.0))

    def covariance(H: float) -> float:
        total = 0.0
        for o, d, k in sides:
            out = np.argpartition(o * np.exp((0.5 - H) * d), len(o) - k)[len(o) - k :]
            total += float(d[out].sum())
        return total

    margin = float(-stdtrit(max(1, len(rows) - 1), (1 - confidence) / 2)) * float(np.sqrt(spread))
    low, value, high = (_root(covariance, level) for level in (margin, 0.0, -margin))
    return BandExponent(value, (min(low, value), max(high, value)))


def fresh_rate_interval(clip_rate: float, count: int, confidence: float = 0.95) -> Interval:
    """The clip rate on fresh rows of a band whose ends are order statistics of `count` rows.

    The share of fresh rows beyond the k-th outermost of n rows has the distribution Beta(k, n + 1 - k), whatever that
    of z is; both ends together take k = clip_rate (n + 1).
    """
    k = clip_rate * (count + 1)
    low, high = beta.ppf([(1 - confidence) / 2, (1 + confidence) / 2], k, count + 1 - k)
    return float(low), float(high)


def rows_needed(clip_rate: float, confidence: float = 0.95) -> int:
    """The least number of rows whose band will clip at most twice the wanted share, and leave at least half unclipped.

    With fewer rows the upper end of `fresh_rate_interval` is more than `min(clip_rate, 1 - clip_rate)` above the rate.
    """
    few, enough = 1, 2
    while not _useful(clip_rate, enough, confidence):
        few, enough = enough, 2 * enough
    while enough - few > 1:
        middle = (few + enough) // 2
        few, enough = (few, middle) if _useful(clip_rate, middle, confidence) else (middle, enough)
    return enough


def _useful(clip_rate: float, count: int, confidence: float) -> bool:
    return fresh_rate_interval(clip_rate, count, confidence)[1] <= clip_rate + min(clip_rate, 1 - clip_rate)


def outer_value(values: Array, rank: float) -> float | None:
    """The value that `rank` values of a sample reach, from the largest down; None beyond the sample.

    Between two ranks it is interpolated; above the first, the largest value is the best there is.
    """
    if not len(values) or rank > len(values):
        return None
    first = int(np.clip(np.floor(rank), 1, len(values)))
    second = min(first + 1, len(values))
    top = np.partition(values, [len(values) - second, len(values) - first])
    share = max(0.0, rank - first)
    return float((1 - share) * top[len(values) - first] + share * top[len(values) - second])


def _root(decreasing: Any, level: float) -> float:
    low, high = EXPONENTS
    for _ in range(13):
        middle = (low + high) / 2
        low, high = (middle, high) if decreasing(middle) > level else (low, middle)
    return (low + high) / 2


def _median_drift(S: Array, L: Array) -> float:
    """The median token log-ratio: the mu of least sum |S - mu L| / sqrt(L)."""
    order = np.argsort(S / L)
    weight = np.cumsum(np.sqrt(L[order]))
    return float((S / L)[order[np.searchsorted(weight, weight[-1] / 2)]])
