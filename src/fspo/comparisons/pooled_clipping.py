"""How fairly each method clipped over length, from sums pooled over seeds, and what a Gaussian S predicts."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fspo import objectives
from fspo.comparisons.outcome import BINS
from fspo.comparisons.plan import Row
from fspo.comparisons.seed_statistics import CONFIDENCE, Estimate, Floats, RunGroup, estimate, tail, weights
from fspo.fairness.bins import cut, quantile_edges
from fspo.fairness.measure import FairnessReport, report_of_bins
from fspo.fairness.scaling import fit_of_sums

__all__ = ["Clipping", "FittedLaw", "clipping", "flatness_ratio", "law", "mean_flatness", "mean_lre", "predicted"]


@dataclass(frozen=True)
class Clipping:
    """Clipping of one group by bin of length.

    LRE and flatness are maxima over bins, which noise only raises. Their intervals are the value ± q, where q is the
    quantile of the largest move of any bin (for flatness, of the gap between any two bins) in a draw: the true value
    differs from the measured one by at most that, also where it is 0.
    """

    report: FairnessReport  # bins with Wilson's intervals
    middles: list[float]  # mean length of each bin
    seeds: int
    clip_rate: Estimate
    reweighting_moves: Floats  # (draws,) largest move of any r_k
    rate_moves: Floats  # (draws,) largest move of the gap between any two bins' rates

    @property
    def lre(self) -> Estimate:
        return _moved(self.report.lre, self.reweighting_moves, [self.seeds])

    @property
    def flatness(self) -> Estimate:
        return _moved(self.report.flatness, self.rate_moves, [self.seeds])


def _moved(value: float, moves: Floats, sizes: Sequence[int], confidence: float = CONFIDENCE) -> Estimate:
    """A non-negative value ± the quantile of its moves."""
    share = tail(sizes, confidence)
    if share is None:
        return Estimate(value)
    q = float(np.quantile(moves, 1 - 2 * share))
    return Estimate(value, max(0.0, value - q), value + q)


def clipping(group: RunGroup) -> Clipping | None:
    """The clipping of a group; None where no update was off-policy, so that nothing could be clipped."""
    lengths, (count, accepted) = _sums(group, "count", "accepted")
    if not count.sum():
        return None
    live = count.sum(0) > 0
    lengths, count, clipped = lengths[live], count[:, live], np.maximum(count - accepted, 0)[:, live]
    rows = count.sum(0)
    bins = cut(lengths, quantile_edges(lengths, BINS, rows))
    inside = (bins.index[:, None] == np.arange(len(bins))).astype(np.float64)
    report = report_of_bins(bins, clipped.sum(0), count=rows, confidence=CONFIDENCE)

    W = weights(len(group.rows))
    counts, losses = W @ (count @ inside), W @ (clipped @ inside)
    rate = np.array([b.acceptance for b in report.bins])
    # A bin without a response in a draw keeps its rate.
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
    return _moved(float(np.mean([c.report.lre for c in found])), moves, [c.seeds for c in found])


def mean_flatness(found: Sequence[Clipping], confidence: float = CONFIDENCE) -> Estimate:
    """Mean over tasks."""
    moves = np.mean([c.rate_moves for c in found], 0)
    return _moved(float(np.mean([c.report.flatness for c in found])), moves, [c.seeds for c in found], confidence)


def flatness_ratio(found: Sequence[Clipping], reference: Sequence[Clipping]) -> Estimate | None:
    """Mean flatness divided by that of the reference; None where the reference's is 0.

    The interval is the range of the ratio over both intervals, each at half the error, so that they hold together. Its
    upper end is infinite where the reference may be perfectly flat.
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
class FittedLaw:
    """S = mu L + sigma L^H Z, fitted to the sums of all seeds."""

    mu: Estimate
    sigma: Estimate
    exponent: Estimate


def law(group: RunGroup) -> FittedLaw | None:
    """The law of a group; None where it cannot be fitted: too few responses, one length, or nothing off-policy."""
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
    return FittedLaw(*(estimate(float(v[0]), v[1:], [n]) for v in (mu, sigma, H)))


def _sums(group: RunGroup, *keys: str) -> tuple[Floats, list[Floats]]:
    """The lengths of all seeds, and (seeds, lengths) of each column."""
    lengths = np.unique(np.concatenate([np.asarray(row["lengths"] or [], np.float64) for row in group.rows]))
    columns = [np.zeros((len(group.rows), len(lengths))) for _ in keys]
    for k, row in enumerate(group.rows):
        at = np.searchsorted(lengths, np.asarray(row["lengths"] or [], np.float64))
        for column, key in zip(columns, keys, strict=True):
            column[k, at] = np.asarray(row[key] or [], np.float64)
    return lengths, columns


# --- the Gaussian prediction ------------------------------------------------------------------------------------------


def predicted(group: RunGroup, lengths: Sequence[float] | Floats) -> Floats | None:
    """The clip rate by length if S ~ Normal(mu L, sigma^2 L) at each update of a step.

    None where the objective has no band on S, or nothing was off-policy.
    """
    L = np.asarray(lengths, np.float64)
    clipped, count = np.zeros(len(L)), 0.0
    for row in group.rows:
        objective = _objective(row)
        for stage in row["stages"] or []:
            band = objective.recorded(stage)
            rate = objectives.gaussian_rate(band, L, stage["mu"], stage["sigma"], stage["staleness"])
            if rate is None:
                return None
            clipped += stage["count"] * rate
            count += stage["count"]
    return clipped / count if count else None


def _objective(row: Row) -> objectives.Objective:
    """The objective of a run, with every parameter as it was.

    A row holds all parameters, checked when the run was made. They are not checked again: the stored defaults of a band
    beside a `clip_rate` would be refused as two bands.
    """
    values = json.loads(row["objective"])
    return objective_class(values.pop("name")).model_construct(**values)


def objective_class(name: str) -> type[objectives.Objective]:
    """The class of an objective that a results file names. The file is data: `module:Class` is not imported for it."""
    if not objectives.known(name):
        raise ValueError(f"the results name the objective {name!r}, which this suite does not have: remove these rows")
    return objectives.get_class(name)
