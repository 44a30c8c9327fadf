"""What training gained: by difficulty, speed, shares of the gradient by length, and features of the answers."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fspo.comparisons.plan import Row
from fspo.comparisons.seed_statistics import Estimate, Floats, RunGroup, estimate, mean_of, weights

__all__ = [
    "REACHED", "BinGain", "Feature", "Gains", "GradientBin", "best", "feature", "feature_names", "gains", "gradient",
    "rollouts_until",
]  # fmt: skip

REACHED = 0.8  # of the best accuracy, or of the way to the optimum


@dataclass(frozen=True)
class BinGain:
    """Accuracy at the end minus accuracy at the start, in a bin of difficulty."""

    low: float
    high: float
    gain: Estimate


@dataclass(frozen=True)
class Gains:
    """The gain of a group of runs in each bin of difficulty."""

    bins: list[BinGain]
    mean: Estimate
    worst_over_mean: Estimate | None  # 1 is even; None where the mean gain may be 0


def gains(group: RunGroup) -> Gains | None:
    """None where a run has no bins, or the runs have different ones."""
    tables = [row["gains"] or [] for row in group.rows]
    ranges = [(b["low"], b["high"]) for b in tables[0]]
    if not ranges or any([(b["low"], b["high"]) for b in table] != ranges for table in tables):
        return None
    x = np.array([[b["final"] - b["start"] for b in table] for table in tables])  # (seeds, bins)
    count = np.array([[b["count"] for b in table] for table in tables], np.float64)
    n, W = len(x), weights(len(x)) / len(x)
    by_bin, overall = W @ x, W @ ((x * count).sum(1) / count.sum(1))
    mean = estimate(float(np.mean((x * count).sum(1) / count.sum(1))), overall, [n])
    ratio = None
    if mean.value > 1e-9 and (mean.low is None or mean.low > 0):  # not a rounding error
        draws = by_bin.min(1) / np.where(overall > 0, overall, np.inf)
        ratio = estimate(float(x.mean(0).min() / mean.value), draws, [n])
    bins = [BinGain(*limits, estimate(float(x[:, k].mean()), by_bin[:, k], [n])) for k, limits in enumerate(ranges)]
    return Gains(bins, mean, ratio)


def best(groups: Sequence[RunGroup]) -> float:
    """The best mean accuracy of any method at any evaluation."""
    return max(float(np.mean([row["peak"] for row in group.rows])) for group in groups)


def rollouts_until(group: RunGroup, level: float) -> tuple[Estimate | None, int]:
    """The mean number of rollouts until the accuracy of a run reaches a level, and how many runs reach it.

    Between two evaluations the accuracy is taken as a line. A run that never reaches it counts with its last step.
    """
    found, reached = [], 0
    for row in group.rows:
        at = _crossing(row["eval_steps"], np.asarray(row["eval_accuracy"], np.float64) - level)
        reached += at is not None
        found.append(float(row["eval_steps"][-1]) if at is None else at)
    return mean_of(found), reached


def _crossing(steps: Sequence[float], above: Floats) -> float | None:
    """Where a line through the points is first at or above 0."""
    for k, value in enumerate(above):
        if value >= 0:
            if k == 0:
                return float(steps[0])
            before = above[k - 1]
            return float(steps[k - 1] + (steps[k] - steps[k - 1]) * -before / (value - before))
    return None


@dataclass(frozen=True)
class GradientBin:
    """The share of a bin of lengths in the gradient: its mean over measurements, then over seeds."""

    length: float
    true: Estimate
    clipped: Estimate


def gradient(group: RunGroup) -> list[GradientBin]:
    """The bins from short to long; a measurement has quantile bins of its own, so that bins are matched by rank.

    Measurements with fewer bins than the most (few responses, or few lengths) are left out.
    """
    runs = [_measurements(row) for row in group.rows]
    most = max((len(each) for run in runs for each in run), default=0)
    runs = [full for run in runs if (full := [each for each in run if len(each) == most])]
    if not runs or most < 2:
        return []
    means = np.array([
        [[float(np.mean([each[k][key] for each in run])) for key in ("low", "high", "true", "clipped")]
         for k in range(most)]
        for run in runs
    ])  # fmt: skip
    found = []
    for k in range(most):
        true, clipped = mean_of(means[:, k, 2]), mean_of(means[:, k, 3])
        assert true is not None
        assert clipped is not None
        found.append(GradientBin(float(means[:, k, :2].mean()), true, clipped))
    return found


def _measurements(row: Row) -> list[list[Row]]:
    found: dict[int, list[Row]] = {}
    for share in row["gradient"] or []:
        found.setdefault(share["step"], []).append(share)
    return list(found.values())


@dataclass(frozen=True)
class Feature:
    """A feature of the held-out answers over the run."""

    steps: list[float]
    values: list[Estimate]
    optimum: float | None
    rollouts: Estimate | None  # until REACHED of the way from the start to the optimum
    reached: int  # runs that come so far


def feature_names(groups: Sequence[RunGroup]) -> list[str]:
    """The features that any of the runs has."""
    return sorted({name for group in groups for row in group.rows for name in _features(row)})


def feature(group: RunGroup, name: str) -> Feature | None:
    """None where no run has it."""
    runs = [curve for row in group.rows if (curve := _features(row).get(name))]
    if not runs:
        return None
    optimum = json.loads(group.rows[0]["optimum"] or "{}").get(name)
    steps = sorted({step for run in runs for step in run["steps"]})
    values = []
    for step in steps:
        at = mean_of([run["values"][run["steps"].index(step)] for run in runs if step in run["steps"]])
        assert at
        values.append(at)
    until, reached = [], 0
    for run in runs if optimum is not None else []:
        off = np.abs(np.asarray(run["values"], np.float64) - optimum)
        at_step = _crossing(run["steps"], (1 - REACHED) * off[0] - off)
        reached += at_step is not None
        until.append(float(run["steps"][-1]) if at_step is None else at_step)
    return Feature([float(step) for step in steps], values, optimum, mean_of(until), reached)


def _features(row: Row) -> dict[str, Row]:
    found: dict[str, Row] = json.loads(row["features"] or "{}")
    return found
