"""Rules on audited responses: the run's own, a fixed range and the recommended band at one clip rate, mismatch rules.

A mismatch rule is about sampler and trainer: with d_t = log pi_old - log pi_sampler and D = sum d_t over the L trained
tokens of an answer, it drops an answer whatever its advantage, so every row counts.

    TRL           exp(D) <= 3                          its default, vllm_importance_sampling_mode="sequence_mask"
    verl          1/2 <= exp(D) <= 2                   its preset with rollout_rs="seq_sum_k1"
    geometric     0.999 <= exp(D / L) <= 1.001         its preset with rollout_rs="seq_mean_k1"
    sqrt(L)       |D - mu L| <= c sqrt(L), weight 1    c chosen so that a given share is dropped
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fspo import objectives
from fspo.audits.columns import Array
from fspo.engines.translate import mismatch_blocks, settings_blocks
from fspo.fairness import FairnessReport
from fspo.fairness.bins import Bins, Interval
from fspo.fairness.measure import FAIR, FEW, report_of_bins
from fspo.fairness.robust_band import band_exponent, fresh_rate_interval, middle_law, outer_value, rows_needed
from fspo.files import yaml_value
from fspo.objectives import Objective, Responses
from fspo.text import percent

TRL_HIGH = 3.0
VERL_HIGH = 2.0
GEOMETRIC = 1e-3
RATES = (0.01, 0.1)  # least and most that the sqrt(L) rule is set to drop
NEAR_HALF = 0.02  # an exponent closer to 1/2 than this is left at 1/2
MANY_OUTLIERS = 0.25  # more outliers than this share of the wanted rate would set the band alone: left out
VERL_UPDATES = 4  # optimiser steps per rollout in the settings for verl, to be replaced by the run's own number

Report = Callable[[Array], FairnessReport]
"""Maps the acceptance per response to a fairness report."""


@dataclass(frozen=True)
class Rule:
    """A rule and its clip rates."""

    name: str
    report: FairnessReport


# --- rules of clipping ------------------------------------------------------------------------------------------------


def fixed_range(responses: Responses, clip_rate: float, report: Report) -> FairnessReport | None:
    """Clip rates by length of the fixed range of exp(S) with this overall clip rate; None where no range has it."""
    try:
        with np.errstate(over="ignore"):
            accepted = objectives.get("rloo").at_clip_rate(responses, clip_rate).accepted
    except OverflowError:  # the log-ratios are so large that the range would be infinite
        return None
    return None if accepted is None else report(accepted)


def parse_rule(text: str) -> Objective:
    """The objective of `name` or `name:parameter=value,...`; the name may be `module:Class`."""
    name, _, settings = text.rpartition(":")
    if "=" not in settings and not objectives.known(name):  # no parameters: all of the text is the name
        name, settings = text, ""
    parameters: dict[str, Any] = {}
    for part in filter(None, settings.split(",")):
        key, equals, value = (piece.strip() for piece in part.partition("="))
        if not equals:
            raise ValueError(f"--rule {text!r}: {part!r} is not of the form parameter=value")
        parameters[key] = yaml_value(value)
    objective = objectives.get(name.strip(), **parameters)
    if objective.learns:
        raise ValueError(
            f"--rule {text!r}: {objective.name} learns its range during training: give one to audit, as in "
            f"{objective.name}:clip_rate=null,c_low=0.05,c_high=0.05"
        )
    return objective


# --- the recommended band ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Recommendation:
    """The band mu L - c_low L^H .. mu L + c_high L^H, and the settings to paste."""

    clip_rate: float  # share of the gradients that are clipped away
    fresh_interval: Interval  # of that share on fresh rows of the same distribution
    rows: int  # that have a gradient, from which the band was taken
    outside: float  # share outside the band on either side
    mu: float
    c_low: float
    c_high: float
    exponent: float
    exponent_interval: Interval  # of the H at which what is clipped has no trend over length
    snippets: dict[str, str]
    rates: list[Rule]  # of this band, then of those it is compared with
    advice: str = ""  # what is unfair about it

    @property
    def report(self) -> FairnessReport:
        """Clip rates of the recommended band by length."""
        return self.rates[0].report


@dataclass(frozen=True)
class Advisor:
    """The rows a band is chosen from. `responses.mu` is the centre of every band; outliers do not move a band."""

    responses: Responses
    outliers: Array
    report: Report
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
        band = self._band(clip_rate, 0.5, fitted.interval)
        if low > 0.5 + NEAR_HALF or high < 0.5 - NEAR_HALF:
            other = self._band(clip_rate, max(0.0, min(1.0, round(fitted.value, 3))), fitted.interval)
            if other is not None and (band is None or band.report.lre_interval[0] > other.report.lre):
                other.rates.extend([] if band is None else [Rule("sqrt(L)", band.report)])
                band = other
        return None if band is None else replace(band, advice=_advice(band.report))

    def _band(self, clip_rate: float, exponent: float, interval: Interval) -> Recommendation | None:
        """The band of this exponent that clips this share, and what it clips by length."""
        widths = self._widths(clip_rate, exponent)
        if widths is None:
            return None
        c_low, c_high = widths
        r, z = self.responses, self._z(exponent)
        report = self.report(self._inside(z >= -c_low, z <= c_high))
        count = int(r.has_gradient.sum())
        settings = {"name": "fspo", "c_low": c_low, "c_high": c_high, "drift": r.mu}  # c was measured around this drift
        settings |= {"exponent": exponent} if exponent != 0.5 else {}
        return Recommendation(
            clip_rate=clip_rate,
            fresh_interval=fresh_rate_interval(clip_rate, count),
            rows=count,
            outside=float(np.mean((z < -c_low) | (z > c_high))),
            mu=r.mu,
            c_low=c_low,
            c_high=c_high,
            exponent=exponent,
            exponent_interval=interval,
            snippets=settings_blocks(settings, VERL_UPDATES),
            rates=[Rule("recommended", report)],
        )

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
        """Acceptance, from whether rows lie above the lower end and below the upper end of a band."""
        sign = self.responses.sign
        if not sign.any():
            return (above & below).astype(np.float64)
        return np.where(sign > 0, below, np.where(sign < 0, above, True)).astype(np.float64)


def _advice(report: FairnessReport) -> str:
    """A sentence where the recommended band is unfair."""
    low, high = report.lre_interval
    if low <= FAIR or any(b.count < FEW for b in report.bins):
        return ""
    return (
        f"The LRE of this band is {report.lre:.3f} ({low:.3f} to {high:.3f}), more than {FAIR:g}: no power of L is "
        "fair. The rows may be a mixture: --by shows the clip rates of each kind of prompt, and "
        "fspo.fairness.partition_bands fits one band per kind."
    )


# --- sampler against trainer ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class MismatchAudit:
    """What each rule drops by length. `c` is None where the rows are too few to choose it."""

    rules: list[Rule]
    mu: float
    c: float | None
    weights: list[float]  # by bin of length: the mean of exp(D) that TRL's rule leaves, 1 if nothing were lost
    snippets: dict[str, str]

    @property
    def sentence(self) -> str:
        """The verdict about sampler and trainer."""
        trl = self.rules[0].report
        start = (
            "these are log-probs of sampler and trainer, a mismatch and not policy drift, so no clip band follows from "
            f"them. TRL's rule (mask above {TRL_HIGH:g}) drops {percent(trl.clip_rate)} of the answers"
        )
        if any(b.count < FEW for b in trl.bins) or len(trl.bins) < 2:
            return f"{start}; too few rows to tell by length"
        said = f"{start}: {_ends(trl)}"
        if self.c is None:
            return said
        sqrt = self.rules[-1].report
        return f"{said}. |D - mu L| <= {self.c:g} sqrt(L) drops {percent(sqrt.clip_rate)}: {_ends(sqrt)}"

    @property
    def weight_note(self) -> str:
        """What TRL's weights do to long answers, beside dropping them."""
        bins = self.rules[0].report.bins
        return (
            f"TRL's rule also weights what it keeps by exp(D): its mean weight is {self.weights[0]:.2f} at length "
            f"{bins[0].label} and {self.weights[-1]:.2f} at {bins[-1].label}. The sqrt(L) rule keeps the weight 1."
        )


def _ends(report: FairnessReport) -> str:
    short, long = report.bins[0], report.bins[-1]
    return f"{percent(short.clip_rate)} of length {short.label} and {percent(long.clip_rate)} of {long.label}"


def mismatch_rules(responses: Responses, bins: Bins) -> MismatchAudit:
    """The rules on sampled rows in bins of length; the sqrt(L) rule drops what verl's does, within RATES."""
    D, L, mu = responses.log_ratio, responses.lengths, responses.mu
    high, mean = math.log(TRL_HIGH), D / L
    accepted = {
        "TRL": high >= D,
        "verl": np.abs(D) <= math.log(VERL_HIGH),
        "geometric": (mean >= math.log1p(-GEOMETRIC)) & (mean <= math.log1p(GEOMETRIC)),
    }
    rate = float(np.clip(1 - accepted["verl"].mean(), *RATES))
    z, c = np.abs(D - mu * L) / np.sqrt(L), None
    if len(D) >= rows_needed(rate):
        width = outer_value(z, rate * (len(D) + 1))
        c = float(f"{width:.4g}") if width else None
    if c is not None:
        accepted["sqrt(L)"] = z <= c
    rules = [Rule(name, report_of_bins(bins, 1.0 - kept)) for name, kept in accepted.items()]
    weights = bins.sum(np.where(accepted["TRL"], np.exp(np.minimum(D, high)), 0.0)) / bins.sum()
    return MismatchAudit(rules, mu, c, weights.tolist(), {} if c is None else mismatch_blocks(mu, c))
