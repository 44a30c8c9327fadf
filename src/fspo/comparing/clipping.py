"""How fairly each method clipped over length, from sums pooled over seeds, and what a Gaussian S predicts."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import ndtr

from fspo.auditing.bins import Bins, quantile_edges
from fspo.comparing.outcome import BINS
from fspo.comparing.statistics import CONFIDENCE, Estimate, Floats, Group, estimate, tail, weights
from fspo.fairness.measure import FairnessReport
from fspo.fairness.scaling import fit_of_sums
from fspo.report.panels.statistics import PER_TOKEN, RunBand, exponent, fixed_range, log_bounds
from fspo.report.text import number


@dataclass(frozen=True)
class Clipping:
    """Clipping of one group by bin of length.

    LRE and flatness are maxima over bins, which noise only raises: their intervals are the value ± q, q the quantile of
    the largest amount by which any bin (or, for flatness, any two bins) moved in a draw. The true value differs from
    the measured one by no more than that, also where it is 0.
    """

    report: FairnessReport  # bins with Wilson's intervals
    middles: list[float]  # mean length of each bin
    seeds: int
    clip_rate: Estimate
    reweighting_moves: Floats  # (draws,) largest move of any r_k
    rate_moves: Floats  # (draws,) largest move of the gap between any two bins' rates

    @property
    def lre(self) -> Estimate:
        return moved(self.report.lre, self.reweighting_moves, [self.seeds])

    @property
    def flatness(self) -> Estimate:
        return moved(self.report.flatness, self.rate_moves, [self.seeds])


def moved(value: float, moves: Floats, sizes: Sequence[int], confidence: float = CONFIDENCE) -> Estimate:
    """A value that is not negative, ± the quantile of how far it may have moved."""
    cut = tail(sizes, confidence)
    if cut is None:
        return Estimate(value)
    q = float(np.quantile(moves, 1 - 2 * cut))
    return Estimate(value, max(0.0, value - q), value + q)


def clipping(group: Group) -> Clipping | None:
    """None where no update was off-policy: nothing could be clipped."""
    lengths, (count, accepted) = _sums(group, "count", "accepted")
    if not count.sum():
        return None
    live = count.sum(0) > 0
    lengths, count, clipped = lengths[live], count[:, live], np.maximum(count - accepted, 0)[:, live]
    rows = count.sum(0)
    bins = Bins.cut(quantile_edges({"length": lengths, "count": rows}, BINS), lengths)
    inside = (bins.index[:, None] == np.arange(len(bins.used))).astype(np.float64)
    report = bins.report(clipped.sum(0), CONFIDENCE, rows)

    W = weights(len(group.rows))
    counts, losses = W @ (count @ inside), W @ (clipped @ inside)
    rate = np.array([b.acceptance for b in report.bins])
    # A bin that a draw has no answer of says nothing new: it keeps its rate.
    drawn = np.where(counts > 0, 1 - losses / np.maximum(counts, 1e-300), rate)
    total = np.maximum(counts.sum(1), 1e-300)
    overall = 1 - losses.sum(1) / total
    r = np.array([b.reweighting for b in report.bins])
    off = drawn - rate
    return Clipping(
        report=report,
        middles=list((rows * lengths) @ inside / (rows @ inside)),
        seeds=len(group.rows),
        clip_rate=estimate(report.clip_rate, 1 - overall, [len(group.rows)]),
        reweighting_moves=np.abs(drawn / np.where(overall > 0, overall, 1.0)[:, None] - r).max(1),
        rate_moves=off.max(1) - off.min(1),
    )


def mean_lre(found: Sequence[Clipping]) -> Estimate:
    """Mean over tasks."""
    moves = np.mean([c.reweighting_moves for c in found], 0)
    return moved(float(np.mean([c.report.lre for c in found])), moves, [c.seeds for c in found])


def mean_flatness(found: Sequence[Clipping], confidence: float = CONFIDENCE) -> Estimate:
    """Mean over tasks."""
    moves = np.mean([c.rate_moves for c in found], 0)
    return moved(float(np.mean([c.report.flatness for c in found])), moves, [c.seeds for c in found], confidence)


def flatness_ratio(found: Sequence[Clipping], reference: Sequence[Clipping]) -> Estimate | None:
    """Mean flatness over that of the reference; None where the reference's is 0.

    The interval is the range of the ratio over two intervals that hold together: each at half the error. Its upper end
    is infinite where the reference may be perfectly flat.
    """
    half = 1 - (1 - CONFIDENCE) / 2
    ours, theirs = mean_flatness(found, half), mean_flatness(reference, half)
    if not theirs.value:
        return None
    if ours.low is None or ours.high is None or theirs.low is None or theirs.high is None:
        return Estimate(ours.value / theirs.value)
    return Estimate(
        ours.value / theirs.value, ours.low / theirs.high, ours.high / theirs.low if theirs.low else float("inf")
    )


@dataclass(frozen=True)
class Law:
    """S = mu L + sigma L^H Z, fitted to the sums of all seeds."""

    mu: Estimate
    sigma: Estimate
    exponent: Estimate


def law(group: Group) -> Law | None:
    """None where it cannot be fitted: too few answers, one length, or nothing off-policy."""
    lengths, (count, total, square) = _sums(group, "all_count", "total", "square")
    if not count.sum():
        return None
    n = len(group.rows)
    W = np.concatenate([np.ones((1, n)), weights(n)])  # the first row is all seeds as they are
    try:
        H, mu, variance, centre = fit_of_sums(lengths, W @ count, W @ total, W @ square)
    except ValueError:
        return None
    sigma = np.sqrt(variance) * np.exp(-H * centre)
    return Law(*(estimate(float(v[0]), v[1:], [n]) for v in (mu, sigma, H)))


def _sums(group: Group, *keys: str) -> tuple[Floats, list[Floats]]:
    """The lengths of all seeds, and (seeds, lengths) of each column."""
    lengths = np.unique(np.concatenate([np.asarray(row["lengths"] or [], np.float64) for row in group.rows]))
    columns = [np.zeros((len(group.rows), len(lengths))) for _ in keys]
    for k, row in enumerate(group.rows):
        at = np.searchsorted(lengths, np.asarray(row["lengths"] or [], np.float64))
        for column, key in zip(columns, keys, strict=True):
            column[k, at] = np.asarray(row[key] or [], np.float64)
    return lengths, columns


# --- the Gaussian prediction ------------------------------------------------------------------------------------------


def predicted(group: Group, lengths: Sequence[float] | Floats) -> Floats | None:
    """The clip rate by length if S ~ Normal(mu L, sigma^2 L) at each stage of a step; None where no rule is on S.

    Half of what lies outside the band: a pessimistic clip acts on one side, chosen by the sign of the advantage.
    """
    L = np.asarray(lengths, np.float64)
    outside, count = np.zeros(len(L)), 0.0
    for row in group.rows:
        objective = json.loads(row["objective"])
        for stage in row["stages"] or []:
            band = _bounds(objective, stage, L)
            if band is None:
                return None
            mean, spread = stage["mu"] * L, stage["sigma"] * np.sqrt(L) + 1e-300
            outside += stage["count"] * (ndtr((band[0] - mean) / spread) + ndtr((mean - band[1]) / spread))
            count += stage["count"]
    return outside / (2 * count) if count else None


def _bounds(objective: dict[str, Any], stage: dict[str, Any], L: Floats) -> tuple[Floats, Floats] | None:
    """The bounds of S that the objective has at a stage."""
    name = str(objective["name"])
    if name == "rloo":
        return log_bounds(*fixed_range(objective), np.ones_like(L))
    if name in PER_TOKEN:
        return log_bounds(*fixed_range(objective), L)
    if not name.startswith("fspo"):
        return None
    # Where each answer sets its own width (studentised), c counts standard deviations.
    unit = stage["sigma"] if name == "fspo_studentized" else 1.0
    c_low, c_high = (_first(stage.get(key), objective.get(key)) for key in ("c_low", "c_high"))
    if c_low is None or c_high is None:
        return None
    drift = objective.get("drift", "bounded")  # as the adaptive form has it
    centre = number(drift)
    if centre is None:
        lowest = -c_low * c_low / 2 if drift == "bounded" else -np.inf
        centre = 0.0 if drift == "zero" else max(stage["mu"], lowest)
    return RunBand(centre, unit * c_low, unit * c_high, exponent(objective)).bounds(L)


def _first(*values: Any) -> float | None:
    return next((v for v in map(number, values) if v is not None), None)
