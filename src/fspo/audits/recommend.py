"""The band for a wanted clip rate, what it clips by length, and the settings that give it to each trainer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from fspo.audits.reading.sample import Array
from fspo.fairness import (
    FAIR,
    FEW,
    BandExponent,
    FairnessReport,
    Interval,
    band_exponent,
    fresh_rate_interval,
    homogeneous,
    middle_law,
    outer_value,
    partition_bands,
)
from fspo.text import percent

if TYPE_CHECKING:
    from fspo.objectives import Responses

NEAR_HALF = 0.02  # an exponent closer to 1/2 than this is left at 1/2
MANY_WILD = 0.25  # wild rows that are more than this share of the wanted rate would set the band alone: left out
PARTS = (2, 50)  # least and most values of a column that may have a band each

Report = Callable[[Array], FairnessReport]


@dataclass(frozen=True)
class BandRates:
    """What a rule clips by length."""

    name: str
    report: FairnessReport


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
    rates: list[BandRates] = field(default_factory=list)  # of this band, then of those it is compared with
    advice: list[str] = field(default_factory=list)  # what is unfair about it, why, and what would be fair

    @property
    def report(self) -> FairnessReport:
        """Clip rates of the recommended band by length."""
        return self.rates[0].report


@dataclass(frozen=True)
class Advisor:
    """The rows a band is chosen from. `responses.mu` is the centre of every band; `wild` rows do not move a band."""

    responses: Responses
    wild: Array
    report: Report  # what is accepted of each row -> the clip rates by length
    parts: tuple[str, Array] | None  # a column of categories, and its name
    confidence: float
    heavy: bool = False  # whether the tails are heavy

    def recommend(self, clip_rate: float, own: BandRates | None) -> Recommendation | None:
        """The band that clips `clip_rate` of the gradients, half of it on each side, by quantiles of z; None if none.

        With advantages, only those that clipping acts on count: A > 0 above, A < 0 below. The exponent is 1/2 unless
        its interval lies clear of it.
        """
        fitted = self._exponent(clip_rate, ~self.wild)
        if self.heavy:  # rows far out, such as jumps, may give the tails another trend than the rest of the rows has
            S, L = (v[~self.wild] for v in (self.responses.log_ratio, self.responses.lengths))
            fitted = fitted.reaching(middle_law(S, L, self.responses.mu, self.confidence)[1].interval)
        H = max(0.0, min(1.0, round(fitted.value, 3))) if fitted.clear_of_half(NEAR_HALF) else 0.5
        widths = self._widths(clip_rate, H)
        if widths is None:
            return None
        (c_low, c_high), mu = widths, self.responses.mu
        z, count = self._z(H), int(self.responses.has_gradient.sum())
        outside = float(np.mean((z < -c_low) | (z > c_high)))
        rates = [
            BandRates(
                f"recommended, H = {H:g}" if H != 0.5 else "recommended, one band of H = 1/2",
                self.report(self._accepted(H, c_low, c_high)),
            )
        ]
        half = self._widths(clip_rate, 0.5)
        if H != 0.5 and half is not None:
            rates.append(BandRates("one band, H = 1/2", self.report(self._accepted(0.5, *half))))
        advice = self._advice(rates, fitted, clip_rate, outside)
        if own is not None:
            rates.append(own)
        return Recommendation(
            clip_rate, fresh_rate_interval(clip_rate, count, self.confidence), count, outside, mu, c_low, c_high, H,
            fitted.interval, snippets(mu, c_low, c_high, H), rates, advice,
        )  # fmt: skip

    def _exponent(self, clip_rate: float, rows: Array) -> BandExponent:
        S, L, sign = (v[rows] for v in (self.responses.log_ratio, self.responses.lengths, self.responses.sign))
        return band_exponent(S, L, sign, clip_rate, self.confidence)

    def _z(self, H: float) -> Array:
        r = self.responses
        width = np.sqrt(r.lengths) if H == 0.5 else r.lengths**H
        return np.asarray((r.log_ratio - r.mu * r.lengths) / width)

    def _widths(self, clip_rate: float, H: float) -> tuple[float, float] | None:
        """c_low and c_high. A side without a row of its sign has the other side's share of all rows outside."""
        rows = ~self.wild if self.wild.mean() > MANY_WILD * clip_rate else np.ones(len(self.wild), bool)
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

    def _accepted(self, H: float, c_low: float, c_high: float) -> Array:
        z = self._z(H)
        return self._inside(z >= -c_low, z <= c_high)

    def _inside(self, above: Array, below: Array) -> Array:
        """Acceptance of rows that lie above the lower and below the upper end of a band."""
        sign = self.responses.sign
        if not sign.any():
            return (above & below).astype(np.float64)
        return np.where(sign > 0, below, np.where(sign < 0, above, True)).astype(np.float64)

    # --- what is unfair, and what would be fair ---------------------------------------------------------------------

    def _advice(self, rates: list[BandRates], fitted: BandExponent, clip_rate: float, outside: float) -> list[str]:
        """Sentences where the LRE of the recommended band, rates[0], is above FAIR. A fairer rule is added to rates."""
        report = rates[0].report
        low, high = report.lre_interval
        if report.lre <= FAIR or len(report.bins) < 2 or any(b.count < FEW for b in report.bins):
            return []
        worst = max(report.bins, key=lambda b: abs(b.reweighting - 1))
        said = (
            f"The LRE of the recommended band is {report.lre:.3f} ({low:.3f} to {high:.3f}), more than {FAIR:g}: "
            f"length {worst.label} is clipped {percent(worst.clip_rate)} against {percent(report.clip_rate)} overall"
        )
        if homogeneous(report):
            return [f"{said}. Chance alone explains this: more rows would tell."]
        found = self._partition(rates, outside) or self._curvature(clip_rate) or self._other_exponent(rates, fitted)
        if found is None:
            named = f"the column {self.parts[0]!r} does not explain it" if self.parts else "no column explains it"
            found = (
                f"no power of L makes it fair, and {named}: the rates by length are what remains. A column with the "
                "kind of prompt (--by COLUMN) may show a mixture"
            )
        return [f"{said}.", f"Why: {found}."]

    def _partition(self, rates: list[BandRates], outside: float) -> str | None:
        """A mixture: bands of each value of the column that are fairer over length."""
        if self.parts is None or not 0 < outside < 1:
            return None
        name, values = self.parts
        labels = values.astype(str)
        if not PARTS[0] <= len(np.unique(labels)) <= PARTS[1]:
            return None
        S, L = self.responses.log_ratio, self.responses.lengths
        tame = ~self.wild
        try:
            bands = partition_bands(S[tame], L[tame], labels[tame], outside)
        except ValueError:
            return None
        low, high = bands.bounds(L, labels)
        report = self.report(self._inside(low <= S, high >= S))
        before = rates[0].report.lre
        if report.lre > max(FAIR, 0.7 * before) or report.lre > 0.9 * before:
            return None
        rates.append(BandRates(f"one band per {name}", report))
        sigma = {key: band.sigma for key, band in bands.bands.items()}
        least, most = min(sigma, key=lambda k: sigma[k]), max(sigma, key=lambda k: sigma[k])
        return (
            f"the rows are a mixture over {name!r}, whose spreads differ (sigma {sigma[least]:.3g} for {least}, "
            f"{sigma[most]:.3g} for {most}). One band per {name}, from "
            f"fspo.fairness.partition_bands(S, L, {name}, clip_rate={outside:.3g}), has an LRE of {report.lre:.3f}"
        )

    def _curvature(self, clip_rate: float) -> str | None:
        """No power law: short and long rows have exponents that differ."""
        L = self.responses.lengths
        middle = float(np.median(L))
        short, long = (self._exponent(clip_rate, ~self.wild & part) for part in (middle >= L, middle < L))
        if short.interval[1] >= long.interval[0] and long.interval[1] >= short.interval[0]:
            return None
        faster = "faster" if long.value > short.value else "slower"
        return (
            f"the spread of S grows as L^{short.value:.2f} up to length {middle:g} and {faster}, as "
            f"L^{long.value:.2f}, above it (tokens that depend on each other over long distances do this), so no "
            "single power of L is fair and the rates by length are what remains"
        )

    def _other_exponent(self, rates: list[BandRates], fitted: BandExponent) -> str | None:
        """An exponent that is fairer, although the data do not exclude 1/2."""
        report = rates[0].report
        H = float(np.clip(round(fitted.value, 3), 0, 1))
        widths = self._widths(report.clip_rate, H) if report.clip_rate else None
        if fitted.clear_of_half(NEAR_HALF) or widths is None:
            return None
        other = self.report(self._accepted(H, *widths))
        if other.lre > FAIR:
            return None
        rates.append(BandRates(f"exponent {H:g}", other))
        low, high = fitted.interval
        return (
            f"the spread may grow as L^{H:g} ({low:.2f} to {high:.2f}), too close to 1/2 to leave it. The exponent "
            f"{H:g} with c_low = {widths[0]:g} and c_high = {widths[1]:g} has an LRE of {other.lre:.3f}"
        )


def snippets(mu: float, c_low: float, c_high: float, exponent: float) -> dict[str, str]:
    """The band as settings of each trainer. The drift is given as a number: c was measured around it."""
    values = {"c_low": c_low, "c_high": c_high, "drift": mu} | ({"exponent": exponent} if exponent != 0.5 else {})
    arguments = ", ".join(f'"{key}": {value:g}' for key, value in values.items())
    loss = "actor_rollout_ref.actor.policy_loss"
    verl = [f"{loss}._target_=fspo.engines.verl.PolicyLoss", f"{loss}.loss_mode=fspo"]
    verl += [f"+{loss}.objective.{key}={value:g}" for key, value in values.items()]
    ours = ["objective.name=fspo", *(f"objective.{key}={value:g}" for key, value in values.items())]
    return {
        "fspo": " ".join(ours),
        "TRL": f'FSPOConfig(objective="fspo", objective_args={{{arguments}}})',
        "verl": " ".join(verl),
    }
