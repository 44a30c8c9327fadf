"""Statistics over the seeds of a comparison: means, interquartile means, probabilities of improvement, with intervals.

Every interval is a bootstrap over seeds (`DRAWS` resamplings with a fixed seed), resampled within a task and the same
for all methods, so that comparisons are paired. The percentile interval of n values is too narrow by sqrt((n - 1) / n)
and uses the normal quantile where Student's is right: with 8 seeds it covers about 90 % instead of 95 %. Its levels are
therefore moved outwards until a mean of normal values gets Student's interval (the expanded percentile interval of
Hesterberg, arXiv 1411.5279). The measures follow Agarwal et al. 2021, arXiv 2108.13264.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr, stdtrit
from scipy.stats import trim_mean

from fspo.comparisons.plan import Row
from fspo.fairness import wilson

__all__ = [
    "CONFIDENCE", "DRAWS", "Estimate", "Improvement", "RunGroup", "Summary", "curve", "estimate", "improvement", "iqm",
    "mean_of", "resampled", "summary", "tail", "weights",
]  # fmt: skip

Floats = NDArray[np.float64]
DRAWS = 2000
CONFIDENCE = 0.95


class Estimate(NamedTuple):
    """A number and its interval; no interval (None) from a single seed."""

    value: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class RunGroup:
    """The test runs of one method, or of one of its trials, on one task in one setting: one row per seed."""

    task: str
    setting: str
    method: str
    rows: list[Row]
    trial: int | None = None  # where every trial is run; None for the chosen one

    @property
    def label(self) -> str:
        x = self.rows[0]["x"]
        return self.method if self.trial is None or x is None else f"{self.method} {x:g}"

    def values(self, key: str) -> dict[int, float]:
        """A column of the runs where it is known, by seed."""
        found = {row["seed"]: row[key] for row in self.rows if row[key] is not None}
        return {seed: float(value) for seed, value in found.items() if math.isfinite(value)}


# --- the bootstrap ----------------------------------------------------------------------------------------------------


@lru_cache(maxsize=256)
def resampled(n: int, stratum: int = 0) -> NDArray[np.intp]:
    """(DRAWS, n): which of n seeds each draw takes. Equal arguments give equal draws: methods are resampled alike."""
    return np.random.default_rng([20250911, stratum, n]).integers(n, size=(DRAWS, n))


@lru_cache(maxsize=256)
def weights(n: int, stratum: int = 0) -> Floats:
    """(DRAWS, n): how often each draw takes each of n seeds."""
    return np.stack([(resampled(n, stratum) == k).sum(1) for k in range(n)], 1).astype(np.float64)


def tail(sizes: Sequence[int], confidence: float = CONFIDENCE) -> float | None:
    """The share of draws to cut off on each side, for strata of these sizes; None where a stratum has one seed."""
    if not sizes or min(sizes) < 2:
        return None
    free = sum(sizes) - len(sizes)
    return float(ndtr(math.sqrt(sum(sizes) / free) * stdtrit(free, (1 - confidence) / 2)))


def estimate(value: float, draws: Floats, sizes: Sequence[int]) -> Estimate:
    """The value with the interval of its draws."""
    cut = tail(sizes)
    if cut is None:
        return Estimate(value)
    low, high = np.quantile(draws, [cut, 1 - cut])
    return Estimate(value, float(low), float(high))


def mean_of(values: Sequence[float] | Floats, stratum: int = 0) -> Estimate | None:
    """The mean of one number per seed; None where there is none."""
    x = np.asarray(values, np.float64)
    return None if not len(x) else estimate(float(x.mean()), weights(len(x), stratum) @ x / len(x), [len(x)])


# --- one method at one place ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Summary:
    """The figures of a group of runs."""

    seeds: int
    final: Estimate | None
    score: Estimate | None
    auc: Estimate | None
    worst: Estimate | None
    collapsed: int
    failed: int
    spikes: float
    length_drift: Estimate | None  # mean length of the last tenth of steps over that of the first


def summary(group: RunGroup) -> Summary:
    """The figures of a group, each a mean over its seeds."""
    rows = group.rows
    drifts = [r["length_last"] / r["length_first"] for r in rows if r["length_last"] and r["length_first"]]
    means = {key: mean_of(list(group.values(key).values())) for key in ("final", "score", "auc", "worst")}
    return Summary(
        seeds=len(rows),
        collapsed=sum(bool(row["collapsed"]) for row in rows),
        failed=sum(row["status"] == "failed" for row in rows),
        spikes=sum(row["spikes"] or 0 for row in rows) / len(rows),
        length_drift=mean_of(drifts),
        **means,
    )


def curve(group: RunGroup, steps: str, key: str, *, hold: bool = False) -> tuple[list[float], list[Estimate]]:
    """A column over the steps, mean over seeds.

    With `hold`, a run that failed keeps its last value to the end, so that a mean is never over the survivors alone.
    """
    runs = [
        {x: float(y) for x, y in zip(row[steps] or [], row[key] or [], strict=True) if y is not None and y == y}
        for row in group.rows
    ]
    places = sorted({x for run in runs for x in run})
    found: list[tuple[float, Estimate]] = []
    for x in places:
        here = [run.get(x, _last(run, x) if hold else None) for run in runs]
        at = mean_of([y for y in here if y is not None])
        if at is not None:
            found.append((float(x), at))
    return [x for x, _ in found], [y for _, y in found]


def _last(run: dict[Any, float], x: float) -> float | None:
    before = [step for step in run if step < x]
    return run[max(before)] if before else None


# --- across tasks -----------------------------------------------------------------------------------------------------


def iqm(found: Sequence[RunGroup], key: str = "final") -> Estimate | None:
    """The interquartile mean over all runs of a method, one group per task: the mean without the extreme quarters."""
    by_task = [np.array(list(group.values(key).values())) for group in found]
    by_task = [x for x in by_task if len(x)]
    if not by_task:
        return None
    draws = np.concatenate([x[resampled(len(x), k)] for k, x in enumerate(by_task)], 1)
    value = float(trim_mean(np.concatenate(by_task), 0.25))
    return estimate(value, trim_mean(draws, 0.25, axis=1), [len(x) for x in by_task])


@dataclass(frozen=True)
class Improvement:
    """How a reference compares with another method, over the tasks and seeds that both have."""

    probability: Estimate  # that a run of the reference beats a run of the other
    difference: Estimate  # mean over tasks of the mean difference by seed
    share: float  # of the pairs of the same task and seed in which the reference is better, ties by half
    pairs: int


def improvement(reference: Sequence[RunGroup], other: Sequence[RunGroup], key: str = "final") -> Improvement | None:
    """Groups of one setting; None where no seed of any task is common to both.

    The probability is the mean over tasks of P(X > Y) + P(X = Y) / 2 over all pairs of seeds. Where every draw agrees
    (one method always wins) a bootstrap gives no interval; Wilson's for as many trials as there are seeds takes its
    place, because the variance is at most p (1 - p) / seeds.
    """
    others = {group.task: group.values(key) for group in other}
    pairs = []
    for group in reference:
        ours, theirs = group.values(key), others.get(group.task, {})
        seeds = [seed for seed in ours if seed in theirs]
        if seeds:
            pairs.append((np.array([ours[s] for s in seeds]), np.array([theirs[s] for s in seeds])))
    if not pairs:
        return None
    sizes = [len(x) for x, _ in pairs]
    beats, betters, gaps, gap_draws = [], [], [], []
    for k, (x, y) in enumerate(pairs):
        won = _beats(x[:, None], y[None, :])
        w = weights(len(x), k)
        beats.append(float(won.mean()))
        betters.append(((w @ won) * w).sum(1) / len(x) ** 2)
        gaps.append(float((x - y).mean()))
        gap_draws.append(w @ (x - y) / len(x))
    probability = estimate(float(np.mean(beats)), np.mean(betters, 0), sizes)
    if probability.low is not None and probability.low == probability.high:
        n = sum(sizes)
        probability = Estimate(probability.value, *wilson(probability.value * n, n, CONFIDENCE))
    return Improvement(
        probability,
        estimate(float(np.mean(gaps)), np.mean(gap_draws, 0), sizes),
        float(np.concatenate([_beats(x, y) for x, y in pairs]).mean()),
        sum(sizes),
    )


def _beats(x: Floats, y: Floats) -> Floats:
    return np.asarray((x > y) + 0.5 * (x == y))
