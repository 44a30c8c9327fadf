"""The band for a wanted clip rate, what it clips by length, and the settings that give it to each trainer."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from fspo.audits.columns import Array
from fspo.audits.methods import Report, Rule
from fspo.engines.translate import settings_blocks
from fspo.fairness import FairnessReport, partition_bands
from fspo.fairness.bins import Interval
from fspo.fairness.measure import FAIR, FEW
from fspo.fairness.robust_band import band_exponent, fresh_rate_interval, middle_law, outer_value
from fspo.objectives import Responses

NEAR_HALF = 0.02  # an exponent closer to 1/2 than this is left at 1/2
MANY_OUTLIERS = 0.25  # outliers that are more than this share of the wanted rate would set the band alone: left out
PARTS = (2, 50)  # least and most values of a column that may have a band each
VERL_UPDATES = 4  # optimiser steps per rollout in the settings for verl, to be replaced by the run's own number


@dataclass(frozen=True)
class Recommendation:
    """The band mu L - c_low L^H .. mu L + c_high L^H, and the settings to paste."""

    clip_rate: float  # share of the gradients that are clipped away
    fresh_interval: Interval  # of that share on fresh rows of the same distribution
    rows: int  # that have a gradient, from which the band was taken
    outside: float  # share outside the band on either side: what the setting clip_rate of fspo counts
    mu: float
    c_low: float
    c_high: float
    exponent: float
    exponent_interval: Interval  # of the H at which what is clipped has no trend over length
    snippets: dict[str, str]
    rates: list[Rule] = field(default_factory=list)  # of this band, then of those it is compared with
    advice: str = ""  # what is unfair about it, and what would be fair

    @property
    def report(self) -> FairnessReport:
        """Clip rates of the recommended band by length."""
        return self.rates[0].report


class _Band(NamedTuple):
    """A band around mu L on the rows it was chosen from."""

    exponent: float
    c_low: float
    c_high: float
    outside: float
    report: FairnessReport


@dataclass(frozen=True)
class Advisor:
    """The rows a band is chosen from. `responses.mu` is the centre of every band; outliers do not move a band."""

    responses: Responses
    outliers: Array
    report: Report
    parts: tuple[str, Array] | None  # a column of categories, and its name
    heavy: bool = False  # whether the tails are heavy

    def recommend(self, clip_rate: float) -> Recommendation | None:
        """The band that clips `clip_rate` of the gradients, half of it on each side, by quantiles of z; None if none.

        With advantages, only those that clipping acts on count: A > 0 above, A < 0 below. The exponent is 1/2 unless
        its interval lies clear of it and the band with 1/2 is clearly less fair.
        """
        r, inliers = self.responses, ~self.outliers
        S, L = r.log_ratio[inliers], r.lengths[inliers]
        fitted = band_exponent(S, L, r.sign[inliers], clip_rate)
        if self.heavy:  # rows far out, such as jumps, may give the tails another trend than the rest of the rows has
            fitted = fitted.reaching(middle_law(S, L, r.mu)[1].interval)
        low, high = fitted.interval
        band, rates = self._band(clip_rate, 0.5), []
        if low > 0.5 + NEAR_HALF or high < 0.5 - NEAR_HALF:
            other = self._band(clip_rate, max(0.0, min(1.0, round(fitted.value, 3))))
            if other is not None and (band is None or band.report.lre_interval[0] > other.report.lre):
                rates = [] if band is None else [Rule("sqrt(L)", band.report)]
                band = other
        if band is None:
            return None
        rates.insert(0, Rule("recommended", band.report))
        count = int(r.has_gradient.sum())
        return Recommendation(
            clip_rate, fresh_rate_interval(clip_rate, count), count, band.outside, r.mu, band.c_low, band.c_high,
            band.exponent, fitted.interval, snippets(r.mu, band.c_low, band.c_high, band.exponent),
            advice=self._advice(rates, band.outside), rates=rates,
        )  # fmt: skip

    def _band(self, clip_rate: float, exponent: float) -> _Band | None:
        """The band of this exponent that clips this share, and what it clips by length."""
        widths = self._widths(clip_rate, exponent)
        if widths is None:
            return None
        c_low, c_high = widths
        z = self._z(exponent)
        outside = float(np.mean((z < -c_low) | (z > c_high)))
        return _Band(exponent, c_low, c_high, outside, self.report(self._inside(z >= -c_low, z <= c_high)))

    def _z(self, H: float) -> Array:
        r = self.responses
        width = np.sqrt(r.lengths) if H == 0.5 else r.lengths**H
        return np.asarray((r.log_ratio - r.mu * r.lengths) / width)

    def _widths(self, clip_rate: float, H: float) -> tuple[float, float] | None:
        """c_low and c_high. If no row has this advantage sign, use the quantile over all rows."""
        many = self.outliers.mean() > MANY_OUTLIERS * clip_rate
        rows = ~self.outliers if many else np.ones(len(self.outliers), bool)
        z, sign, count = self._z(H)[rows], self.responses.sign[rows], int(self.responses.has_gradient[rows].sum())
        seen = {side: sign == side for side in (-1, 1) if (sign == side).any()}
        widths = []
        for side in (-1, 1):
            tail = side * (z[seen[side]] if side in seen else z)
            share = clip_rate / (2 if len(seen) != 1 else 1)
            width = outer_value(tail, share * ((count if side in seen or not seen else len(z)) + 1))
            if width is None or width <= 0:
                return None
            widths.append(float(f"{width:.4g}"))
        return widths[0], widths[1]

    def _inside(self, above: Array, below: Array) -> Array:
        """Acceptance of rows that lie above the lower and below the upper end of a band."""
        sign = self.responses.sign
        if not sign.any():
            return (above & below).astype(np.float64)
        return np.where(sign > 0, below, np.where(sign < 0, above, True)).astype(np.float64)

    # --- what is unfair, and what would be fair ---------------------------------------------------------------------

    def _advice(self, rates: list[Rule], outside: float) -> str:
        """A sentence where the recommended band, rates[0], is unfair. A fairer rule is added to rates."""
        report = rates[0].report
        low, high = report.lre_interval
        if low <= FAIR or any(b.count < FEW for b in report.bins):
            return ""
        problem = f"The LRE of this band is {report.lre:.3f} ({low:.3f} to {high:.3f}), more than {FAIR:g}"
        parts = self._per_part(outside)
        if self.parts is None or parts is None or parts.lre > min(0.9 * report.lre, max(FAIR, 0.7 * report.lre)):
            return f"{problem}: no power of L is fair. A column with the kind of prompt (--by) may show a mixture."
        name = self.parts[0]
        rates.append(Rule(f"per {name}", parts))
        return (
            f"{problem}: the rows are a mixture over {name!r}. One band per {name}, from fspo.fairness.partition_bands"
            f"(S, L, {name}, clip_rate={outside:.3g}), has an LRE of {parts.lre:.3f}."
        )

    def _per_part(self, outside: float) -> FairnessReport | None:
        """The report of one band per value of the column of categories."""
        if self.parts is None or not 0 < outside < 1:
            return None
        labels = self.parts[1].astype(str)
        if not PARTS[0] <= len(np.unique(labels)) <= PARTS[1]:
            return None
        S, L, inliers = self.responses.log_ratio, self.responses.lengths, ~self.outliers
        try:
            bands = partition_bands(S[inliers], L[inliers], labels[inliers], outside)
        except ValueError:
            return None
        low, high = bands.bounds(L, labels)
        return self.report(self._inside(low <= S, high >= S))


def snippets(mu: float, c_low: float, c_high: float, exponent: float) -> dict[str, str]:
    """The band as settings of each trainer. The drift is given as a number: c was measured around it."""
    values = {"c_low": c_low, "c_high": c_high, "drift": mu} | ({"exponent": exponent} if exponent != 0.5 else {})
    return settings_blocks({"name": "fspo", **values}, VERL_UPDATES)
