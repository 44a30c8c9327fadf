"""How evenly clipping falls: acceptance by bin of length (or of anything), and the Length Reweighting Error.

With p_k the share of bin k, a_k its acceptance rate, a = sum p_k a_k and r_k = a_k / a:

    LRE = max_k |r_k - 1|,    LRE_mean = sum_k p_k |r_k - 1|,    flatness = max_k a_k - min_k a_k
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from fspo.fairness.bins import CONFIDENCE, Array, Bins, Interval, Z, column, cut, partition, positive

FEW = 30  # a bin with fewer responses gets no rate
FAIR = 0.05  # an LRE of at most this is called fair


@dataclass(frozen=True)
class Bin:
    """One row of the table."""

    label: str
    low: float  # smallest and largest value of the attribute in the bin; NaN for a category
    high: float
    count: int
    share: float  # p_k
    acceptance: float  # a_k
    interval: Interval  # Wilson's, of the acceptance
    reweighting: float  # r_k

    @property
    def clip_rate(self) -> float:
        return 1 - self.acceptance

    @property
    def clip_interval(self) -> Interval:
        """Wilson's interval of the clip rate."""
        return 1 - self.interval[1], 1 - self.interval[0]


@dataclass(frozen=True)
class FairnessReport:
    """The table of bins and its summaries; print it to see the table."""

    attribute: str
    bins: list[Bin]
    lre: float
    lre_interval: Interval
    lre_mean: float
    flatness: float
    clip_rate: float  # overall
    clip_interval: Interval  # Wilson's, of the overall clip rate

    def __str__(self) -> str:
        width = max(len(self.attribute), *(len(b.label) for b in self.bins))
        lines = [f"{self.attribute:>{width}}  {'count':>9}  {'clip rate':>9}  {'95 % interval':>15}  {'r':>6}"]
        for b in self.bins:
            low, high = b.clip_interval
            interval = f"{low:.4f}–{high:.4f}"
            lines.append(
                f"{b.label:>{width}}  {b.count:>9,}  {b.clip_rate:>9.4f}  {interval:>15}  {b.reweighting:>6.3f}"
            )
        low, high = self.lre_interval
        lines.append(
            f"LRE {self.lre:.4f} ({low:.4f}–{high:.4f}), mean {self.lre_mean:.4f}, flatness {self.flatness:.4f}, "
            f"overall clip rate {self.clip_rate:.4f}"
        )
        return "\n".join(lines)


def wilson(accepted: float, n: float) -> Interval:
    """Wilson's interval for a rate of `accepted` out of `n`."""
    rate = accepted / n
    centre, spread = rate + Z * Z / (2 * n), Z * math.sqrt(rate * (1 - rate) / n + Z * Z / (4 * n * n))
    scale = 1 + Z * Z / n
    return max(0.0, float((centre - spread) / scale)), min(1.0, float((centre + spread) / scale))


def measure(
    lengths: ArrayLike,
    accepted: ArrayLike,
    bins: int | Sequence[float] = 8,
    *,
    by: ArrayLike | None = None,
    attribute: str | None = None,
) -> FairnessReport:
    """Acceptance by bin, with intervals.

    `bins` is a number of quantile bins, or their inner edges. `by` is another attribute in the place of length:
    words or few distinct numbers are categories.

    The interval of the LRE is LRE ± q, cut off at 0, where q is the quantile of max_k |r*_k - r_k| over draws of the
    bins' rates (a bootstrap with Jeffreys' prior, so that a bin of a few responses, all accepted, stays uncertain). The
    true LRE differs from the measured one by at most that maximum, so the interval covers it, also at LRE = 0.
    """
    a = column(accepted, "accepted")
    if a.min() < 0 or a.max() > 1:
        raise ValueError("accepted must lie in [0, 1]: the share of each response's gradient that survived")
    cells = cut(positive(lengths, "lengths", len(a)), bins) if by is None else partition(by, bins, len(a))
    name = attribute or ("length" if by is None else "attribute")
    return report_of_bins(cells, 1 - a, attribute=name, draws=4000)


def report_of_bins(
    bins: Bins, clipped: Array, *, count: Array | None = None, attribute: str = "length", draws: int = 1000
) -> FairnessReport:
    """The report of responses that are already in bins.

    `clipped` is the share of each response's gradient that clipping removed; where a value stands for several ones,
    `count` is their number and `clipped` the sum. With 0 `draws` of its bootstrap the LRE's interval is NaN.
    """
    rows = bins.sum(count)
    # From what is clipped, not from what is accepted: where nothing is, rates are 1 and the LRE is 0 exactly.
    lost, n = bins.sum(clipped), rows.astype(np.float64)
    rate = 1 - lost / n
    share = n / n.sum()
    overall = 1 - float(lost.sum() / n.sum())
    r = rate / overall if overall else np.ones(len(bins))

    lre, q = float(np.abs(r - 1).max()), math.nan
    if draws:
        drawn = np.random.default_rng(0).beta(rate * n + 0.5, (1 - rate) * n + 0.5, (draws, len(bins)))
        moved = np.abs(drawn / (drawn @ share)[:, None] - r).max(1)
        q = float(np.quantile(moved, CONFIDENCE))
    table = [
        Bin(bins.labels[k], *bins.ranges[k], int(rows[k]), float(share[k]), float(rate[k]),
            wilson(rate[k] * n[k], n[k]), float(r[k]))
        for k in range(len(bins))
    ]  # fmt: skip
    low, high = wilson(overall * n.sum(), n.sum())
    return FairnessReport(
        attribute=attribute,
        bins=table,
        lre=lre,
        lre_interval=(max(0.0, lre - q), lre + q),
        lre_mean=float(share @ np.abs(r - 1)),
        flatness=float(rate.max() - rate.min()),
        clip_rate=1 - overall,
        clip_interval=(1 - high, 1 - low),
    )
