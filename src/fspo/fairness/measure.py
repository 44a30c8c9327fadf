"""How evenly clipping falls: acceptance by bin of length (or of anything), and the Length Reweighting Error.

With p_k the share of bin k, a_k its acceptance rate, a = sum p_k a_k and r_k = a_k / a:

    LRE = max_k |r_k - 1|,    LRE_mean = sum_k p_k |r_k - 1|,    flatness = max_k a_k - min_k a_k
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fspo.fairness.columns import column, positive

Interval = tuple[float, float]
FEW_VALUES = 20  # a numeric attribute with at most this many values is a category, not a scale


@dataclass(frozen=True)
class Bin:
    """One row of the table."""

    label: str
    low: float  # smallest and largest value of the attribute in the bin; nan for a category
    high: float
    count: int
    share: float  # p_k, by weight
    acceptance: float  # a_k
    interval: Interval  # Wilson, for the acceptance
    reweighting: float  # r_k

    @property
    def clip_rate(self) -> float:
        return 1 - self.acceptance


@dataclass(frozen=True)
class FairnessReport:
    """The table of bins and its summaries; print it to see the table."""

    attribute: str
    bins: list[Bin]
    lre: float
    lre_interval: Interval
    lre_mean: float
    flatness: float
    clip_rate: float
    confidence: float

    def __str__(self) -> str:
        width = max(len(self.attribute), *(len(b.label) for b in self.bins))
        percent = round(100 * self.confidence)
        lines = [f"{self.attribute:>{width}}  {'count':>9}  {'clip rate':>9}  {f'{percent} % interval':>15}  {'r':>6}"]
        for b in self.bins:
            interval = f"{1 - b.interval[1]:.4f}–{1 - b.interval[0]:.4f}"
            lines.append(
                f"{b.label:>{width}}  {b.count:>9,}  {b.clip_rate:>9.4f}  {interval:>15}  {b.reweighting:>6.3f}"
            )
        low, high = self.lre_interval
        lines.append(
            f"LRE {self.lre:.4f} ({low:.4f}–{high:.4f}), mean {self.lre_mean:.4f}, flatness {self.flatness:.4f}, "
            f"overall clip rate {self.clip_rate:.4f}"
        )
        return "\n".join(lines)


def wilson(accepted: float, n: float, confidence: float = 0.95) -> Interval:
    """Wilson's interval for a rate of `accepted` out of `n`."""
    z = NormalDist().inv_cdf(0.5 + confidence / 2)
    rate = accepted / n
    centre, spread = rate + z * z / (2 * n), z * math.sqrt(rate * (1 - rate) / n + z * z / (4 * n * n))
    scale = 1 + z * z / n
    return max(0.0, float((centre - spread) / scale)), min(1.0, float((centre + spread) / scale))


def measure(
    lengths: ArrayLike,
    accepted: ArrayLike,
    bins: int | Sequence[float] = 8,
    *,
    by: ArrayLike | None = None,
    weights: ArrayLike | None = None,
    confidence: float = 0.95,
    attribute: str | None = None,
    seed: int = 0,
) -> FairnessReport:
    """Acceptance by bin, with intervals.

    `bins` is a number of quantile bins, or their inner edges. `by` is another attribute in the place of length:
    words or few distinct numbers are categories. `weights` = exp(S) gives acceptance under the current policy in
    the place of the behaviour policy; a bin's count in the intervals is then its effective sample size.

    The interval of the LRE is LRE ± q, cut off at 0, where q is the quantile of max_k |r*_k - r_k| over draws of the
    bins' rates (a bootstrap with Jeffreys' prior, so that a bin of a few answers, all accepted, stays uncertain). The
    true LRE differs from the measured one by at most that maximum, so the interval covers it, also at LRE = 0.
    """
    accepted_values = column(accepted, "accepted")
    if accepted_values.min() < 0 or accepted_values.max() > 1:
        raise ValueError("accepted must lie in [0, 1]: the share of each response's gradient that survived")
    weight_values = (
        np.ones_like(accepted_values) if weights is None else column(weights, "weights", len(accepted_values))
    )
    if weight_values.min() < 0 or not weight_values.sum():
        raise ValueError("weights must not be negative, nor all zero")
    if by is None:
        index, labels, ranges = cut(positive(lengths, "lengths", len(accepted_values)), bins)
    else:
        index, labels, ranges = _partition(by, bins, len(accepted_values))

    k = len(labels)
    count = np.bincount(index, minlength=k)
    weight = np.bincount(index, weight_values, k)
    # By what is clipped: where nothing is, rates are 1 and the LRE is 0 exactly.
    clipped = np.bincount(index, weight_values * (1 - accepted_values), k)
    return report_of_sums(
        labels, ranges, count, clipped, weight=weight, squares=np.bincount(index, weight_values**2, k),
        confidence=confidence, attribute=attribute or ("length" if by is None else "attribute"), seed=seed,
    )  # fmt: skip


def report_of_sums(
    labels: Sequence[str],
    ranges: Sequence[Interval],
    count: NDArray[Any],
    clipped: NDArray[Any],
    *,
    weight: NDArray[Any] | None = None,
    squares: NDArray[Any] | None = None,
    confidence: float = 0.95,
    attribute: str = "length",
    seed: int = 0,
    draws: int = 4000,
) -> FairnessReport:
    """The report from what each bin adds up to: its rows, what clipping took of them, weights and their squares."""
    weight = count.astype(np.float64) if weight is None else weight
    squares = weight if squares is None else squares
    if not weight.all():
        raise ValueError(f"bin {labels[int(np.argmin(weight))]} has no weight: use fewer bins")
    k = len(labels)
    rate = 1 - clipped / weight
    effective = weight**2 / squares
    share = weight / weight.sum()
    overall = 1 - float(clipped.sum() / weight.sum())
    r = rate / overall if overall else np.ones(k)

    drawn = np.random.default_rng(seed).beta(rate * effective + 0.5, (1 - rate) * effective + 0.5, (draws, k))
    moved = np.abs(drawn / (drawn @ share)[:, None] - r).max(1)
    lre, q = float(np.abs(r - 1).max()), float(np.quantile(moved, confidence))
    table = [
        Bin(labels[i], *ranges[i], int(count[i]), float(share[i]), float(rate[i]),
            wilson(rate[i] * effective[i], effective[i], confidence), float(r[i]))
        for i in range(k)
    ]  # fmt: skip
    return FairnessReport(
        attribute=attribute,
        bins=table,
        lre=lre,
        lre_interval=(max(0.0, lre - q), lre + q),
        lre_mean=float(share @ np.abs(r - 1)),
        flatness=float(rate.max() - rate.min()),
        clip_rate=1 - overall,
        confidence=confidence,
    )


def cut(values: NDArray[np.float64], bins: int | Sequence[float]) -> tuple[NDArray[np.intp], list[str], list[Interval]]:
    """Bins of a numeric column. Quantile edges that coincide are one edge, so there may be fewer bins than asked."""
    if isinstance(bins, int):
        if bins < 1:
            raise ValueError(f"bins = {bins} must be at least 1")
        edges = np.quantile(values, np.arange(1, bins) / bins, method="inverted_cdf")
    else:
        edges = np.asarray(bins, dtype=np.float64)
    raw = np.searchsorted(np.unique(edges), values, side="left")
    index = np.unique(raw, return_inverse=True)[1]
    k = int(index.max()) + 1
    low, high = np.full(k, np.inf), np.full(k, -np.inf)
    np.minimum.at(low, index, values)
    np.maximum.at(high, index, values)
    ranges = [(float(a), float(b)) for a, b in zip(low, high, strict=True)]
    return index, [f"{a:g}" if a == b else f"{a:g}–{b:g}" for a, b in ranges], ranges


def _partition(by: Any, bins: int | Sequence[float], n: int) -> tuple[NDArray[np.intp], list[str], list[Interval]]:
    values = np.asarray(by.detach().cpu() if hasattr(by, "detach") else by)
    if values.shape != (n,):
        raise ValueError(f"by has the shape {values.shape} where ({n},) is needed")
    names, index = np.unique(values, return_inverse=True)
    if np.issubdtype(values.dtype, np.number) and (len(names) > FEW_VALUES or not isinstance(bins, int)):
        return cut(column(values, "by"), bins)
    return index, [str(name) for name in names], [(math.nan, math.nan)] * len(names)
