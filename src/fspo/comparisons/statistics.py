"""Statistics over the runs of a comparison, with intervals: gains, leads, clipping over length, and what was learnt.

Runs from one warm start are correlated, so intervals are over warm starts, with all seeds of a start taken together;
where all runs have one start, they are over seeds and hold for that start alone. Methods are compared by pairs of the
same task and seed. Means get Student's interval over these units, with Welch's degrees of freedom across tasks; LRE,
flatness and clip rate a bootstrap over units: the expanded percentile interval of Hesterberg (arXiv 1411.5279).
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr, stdtrit

from fspo.comparisons.plan import Row
from fspo.comparisons.suite import Suite
from fspo.fairness.bins import CONFIDENCE, cut, quantile_edges
from fspo.fairness.measure import FairnessReport, report_of_bins

Floats = NDArray[np.float64]
DRAWS = 2000
BINS = 6  # of length


class Estimate(NamedTuple):
    """A number and its interval; no interval (None) from a single start, or a single seed of one."""

    value: float
    low: float | None = None
    high: float | None = None


class Sample(NamedTuple):
    """One number per run of a group, and the unit of resampling that each belongs to."""

    values: Floats
    units: tuple[int, ...]


@dataclass(frozen=True)
class RunGroup:
    """The test runs of one method on one task in one setting: one row per seed."""

    task: str
    setting: str
    method: str
    rows: list[Row]

    @property
    def units(self) -> tuple[int, ...]:
        """What is resampled: the warm start of each run or, where there is only one, its seed."""
        starts = tuple(row.get("warm_start") or 0 for row in self.rows)
        return starts if len(set(starts)) > 1 else tuple(row["seed"] for row in self.rows)

    def sample(self, value: str | Callable[[Row], float | None]) -> Sample:
        """A column, or another number per run, of the runs where it is known."""
        numbers = [row[value] if isinstance(value, str) else value(row) for row in self.rows]
        known = [(x, u) for x, u in zip(numbers, self.units, strict=True) if x is not None and math.isfinite(x)]
        return Sample(np.array([x for x, _ in known], np.float64), tuple(u for _, u in known))

    def mean(self, value: str | Callable[[Row], float | None]) -> Estimate | None:
        return mean_of(self.sample(value))

    @cached_property
    def clipping(self) -> Clipping | None:
        """None where no update was off-policy, so that nothing could be clipped."""
        return _clipping(self)


# --- intervals --------------------------------------------------------------------------------------------------------


@lru_cache(maxsize=256)
def weights(units: tuple[int, ...]) -> Floats:
    """(DRAWS, runs): how often each draw takes each run."""
    distinct, index = np.unique(units, return_inverse=True)
    n = len(distinct)
    draws = np.random.default_rng([20250911, n]).integers(n, size=(DRAWS, n))
    counts = np.stack([(draws == k).sum(1) for k in range(n)], 1).astype(np.float64)
    return np.asarray(counts[:, index])


def tail(sizes: Sequence[int]) -> float | None:
    """Tail probability cut off on each side, for tasks with these numbers of units; None where a task has only one."""
    if not sizes or min(sizes) < 2:
        return None
    free = sum(sizes) - len(sizes)
    return float(ndtr(math.sqrt(sum(sizes) / free) * stdtrit(free, (1 - CONFIDENCE) / 2)))


def estimate(value: float, draws: Floats, sizes: Sequence[int]) -> Estimate:
    """The value with the interval of its draws."""
    cut_off = tail(sizes)
    if cut_off is None:
        return Estimate(value)
    low, high = np.quantile(draws, [cut_off, 1 - cut_off])
    return Estimate(value, float(low), float(high))


def mean_of(*samples: Sample) -> Estimate | None:
    """The mean over tasks, each of equal weight, of the mean over its units; None where no run has a value."""
    tasks = []
    for values, units in samples:
        distinct = np.unique(units)
        if len(distinct):
            tasks.append(np.array([values[np.array(units) == unit].mean() for unit in distinct]))
    if not tasks:
        return None
    value = float(np.mean([means.mean() for means in tasks]))
    if min(len(means) for means in tasks) < 2:
        return Estimate(value)
    variances = [float(means.var(ddof=1)) / len(means) for means in tasks]
    total = sum(variances)
    if not total:
        return Estimate(value, value, value)
    free = total**2 / sum(v**2 / (len(means) - 1) for v, means in zip(variances, tasks, strict=True))
    half = -float(stdtrit(free, (1 - CONFIDENCE) / 2)) * math.sqrt(total) / len(tasks)
    return Estimate(value, value - half, value + half)


# --- gains and leads --------------------------------------------------------------------------------------------------


def gain(row: Row) -> float | None:
    """The normalised gain (final - start) / (1 - start): the share of what was left to learn that was learnt."""
    return _share(row["start"], row["final"])


def weaker_end(row: Row) -> float | None:
    """The smaller of the normalised gains of the easiest and the hardest quarter of the prompts."""
    bins = row["gains"] or []
    ends = [_share(b["start"], b["final"]) for b in (bins[0], bins[-1])] if len(bins) > 1 else []
    known = [end for end in ends if end is not None]
    return min(known) if len(known) == 2 else None


def end(at: int, row: Row) -> float | None:
    """The gain in accuracy of the easiest (0) or the hardest (-1) quarter of the prompts."""
    bins = row["gains"] or []
    return float(bins[at]["final"] - bins[at]["start"]) if len(bins) > 1 else None


ENDPOINTS: dict[str, Callable[[Row], float | None]] = {
    "gain": gain,
    "weaker end": weaker_end,
    "easiest quarter": partial(end, 0),
    "hardest quarter": partial(end, -1),
}


def _share(start: float, final: float) -> float | None:
    return (final - start) / (1 - start) if start < 1 else None


def mean_gain(groups: Sequence[RunGroup], endpoint: str = "gain") -> Estimate | None:
    """The endpoint of a method, the mean over tasks with equal weight; one group per task."""
    return mean_of(*(group.sample(ENDPOINTS[endpoint]) for group in groups))


class Lead(NamedTuple):
    """How far a method is ahead of another, over the tasks and seeds that both have."""

    difference: Estimate  # mean over tasks of the mean difference by seed
    won: float  # pairs of the same task and seed in which it is better, ties by half
    pairs: int


def lead(ours: Sequence[RunGroup], theirs: Sequence[RunGroup], endpoint: str = "gain") -> Lead | None:
    """Groups of one setting; None where no seed of any task is common to both."""
    of = ENDPOINTS[endpoint]
    others = {(group.task, row["seed"]): of(row) for group in theirs for row in group.rows}

    def gap(task: str, row: Row) -> float | None:
        mine, its = of(row), others.get((task, row["seed"]))
        return None if mine is None or its is None else mine - its

    samples = [group.sample(partial(gap, group.task)) for group in ours]
    difference = mean_of(*samples)
    if difference is None:
        return None
    every = np.concatenate([sample.values for sample in samples])
    return Lead(difference, float((every > 0).sum() + 0.5 * (every == 0).sum()), len(every))


# --- one method on one task in one setting ----------------------------------------------------------------------------


def accuracy_curve(group: RunGroup) -> tuple[list[float], list[Estimate | None]]:
    """Held-out accuracy over the steps, mean over runs; a run that failed keeps its last value to the end."""

    def until(row: Row, step: int) -> float:
        return float(row["eval_accuracy"][sum(at <= step for at in row["eval_steps"]) - 1])

    steps = sorted({step for row in group.rows for step in row["eval_steps"]})
    return list(steps), [group.mean(partial(until, step=step)) for step in steps]


def gains(group: RunGroup) -> list[tuple[float, float, Estimate]]:
    """Accuracy at the end minus that at the start by bin of difficulty; empty where the runs' bins are not the same."""
    tables = [row["gains"] or [] for row in group.rows]
    limits = [(b["low"], b["high"]) for b in tables[0]]
    if any([(b["low"], b["high"]) for b in table] != limits for table in tables):
        return []

    def gained(row: Row, k: int) -> float:
        return float(row["gains"][k]["final"] - row["gains"][k]["start"])

    means = [group.mean(partial(gained, k=k)) for k in range(len(limits))]
    return [(*ends, mean) for ends, mean in zip(limits, means, strict=True) if mean is not None]


def features(groups: Sequence[RunGroup]) -> list[str]:
    """The names of what tasks measure in held-out answers, in any of the runs."""
    return sorted({name for group in groups for row in group.rows for name in json.loads(row["features"] or "{}")})


def feature(group: RunGroup, name: str, at: int) -> Estimate | None:
    """A feature of the held-out answers at the first (0) or the last (-1) evaluation; None where no run has it."""

    def value(row: Row) -> float | None:
        values = json.loads(row["features"] or "{}").get(name, {}).get("values")
        return values[at] if values else None

    return group.mean(value)


# --- clipping over length ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Clipping:
    """Clipping of one group by bin of length.

    Intervals of LRE and flatness are ± q as in `fairness.measure`, with q the quantile over draws of the largest move
    of any bin (for flatness, of the gap between any two bins).
    """

    report: FairnessReport  # bins with Wilson's intervals
    middles: list[float]  # mean length of each bin
    size: int  # units of resampling
    clip_rate: Estimate
    reweighting_moves: Floats  # (draws,) largest move of any r_k
    rate_moves: Floats  # (draws,) largest move of the gap between any two bins' rates

    @property
    def lre(self) -> Estimate:
        return mean_lre([self])

    @property
    def flatness(self) -> Estimate:
        return mean_flatness([self])


def _clipping(group: RunGroup) -> Clipping | None:
    lengths, (count, accepted) = _sums(group, "count", "accepted")
    if not count.sum():
        return None
    live = count.sum(0) > 0
    lengths, count, clipped = lengths[live], count[:, live], np.maximum(count - accepted, 0)[:, live]
    rows = count.sum(0)
    bins = cut(lengths, quantile_edges(lengths, BINS, rows))
    inside = (bins.index[:, None] == np.arange(len(bins))).astype(np.float64)
    report = report_of_bins(bins, clipped.sum(0), count=rows)

    W, size = weights(group.units), len(set(group.units))
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
        size=size,
        clip_rate=estimate(report.clip_rate, 1 - overall, [size]),
        reweighting_moves=np.abs(drawn / np.where(overall > 0, overall, 1.0)[:, None] - r).max(1),
        rate_moves=off.max(1) - off.min(1),
    )


def mean_lre(clippings: Sequence[Clipping]) -> Estimate:
    """Mean over tasks."""
    return _moved(clippings, [c.report.lre for c in clippings], [c.reweighting_moves for c in clippings])


def mean_flatness(clippings: Sequence[Clipping]) -> Estimate:
    """Mean over tasks."""
    return _moved(clippings, [c.report.flatness for c in clippings], [c.rate_moves for c in clippings])


def _moved(clippings: Sequence[Clipping], values: list[float], moves: list[Floats]) -> Estimate:
    """Mean ± a quantile of its bootstrap deviations."""
    value, share = float(np.mean(values)), tail([c.size for c in clippings])
    if share is None:
        return Estimate(value)
    q = float(np.quantile(np.mean(moves, 0), 1 - 2 * share))
    return Estimate(value, max(0.0, value - q), value + q)


def _sums(group: RunGroup, *keys: str) -> tuple[Floats, list[Floats]]:
    """The lengths of all runs, and (runs, lengths) of each column."""
    lengths = np.unique(np.concatenate([np.asarray(row["lengths"] or [], np.float64) for row in group.rows]))
    columns = [np.zeros((len(group.rows), len(lengths))) for _ in keys]
    for k, row in enumerate(group.rows):
        at = np.searchsorted(lengths, np.asarray(row["lengths"] or [], np.float64))
        for column, key in zip(columns, keys, strict=True):
            column[k, at] = np.asarray(row[key] or [], np.float64)
    return lengths, columns


# --- a whole suite ----------------------------------------------------------------------------------------------------


class SuiteResults:
    """Groups of runs by task, setting and method."""

    def __init__(self, rows: Iterable[Row], suite: Suite) -> None:
        """Of the runs of phase test, by seed; rows of other tasks, settings or methods are left out."""
        by_group: dict[tuple[str, str, str], dict[int, Row]] = {}
        for row in rows:
            if row["phase"] == "test":
                by_group.setdefault((row["task"], row["setting"], row["method"]), {})[row["seed"]] = row
        keys = itertools.product(suite.all_tasks, suite.settings, suite.methods)
        self.suite = suite
        self.groups = [
            RunGroup(*key, [by_group[key][seed] for seed in sorted(by_group[key])]) for key in keys if key in by_group
        ]
        self.methods = [m for m in suite.methods if any(g.method == m for g in self.groups)]
        self.tasks = [task for task in suite.all_tasks if any(g.task == task for g in self.groups)]
        self.settings = [s for s in suite.settings if any(g.setting == s for g in self.groups)]
        self.rows = [row for group in self.groups for row in group.rows]

    @cached_property
    def task_settings(self) -> dict[tuple[str, str], str]:
        """The name of each task in a setting."""
        one = len(self.suite.settings) == 1
        return {(g.task, g.setting): g.task if one else f"{g.task}, {g.setting}" for g in self.groups}

    @cached_property
    def parts(self) -> dict[str, list[str]]:
        """The tasks that have runs, by the word that describes them: choosing, confirming, and crossed apart."""
        if not self.suite.confirm and not self.suite.crossed:
            return {"": self.tasks}
        suite = self.suite
        kinds = {"choosing ": suite.tasks, "confirming ": suite.confirm, "crossed ": suite.crossed}
        parts = {kind: [task for task in self.tasks if task in known] for kind, known in kinds.items()}
        return {kind: tasks for kind, tasks in parts.items() if tasks}

    def at(self, task_setting: tuple[str, str]) -> list[RunGroup]:
        return [g for g in self.groups if (g.task, g.setting) == task_setting]

    def of(self, method: str, setting: str, tasks: Collection[str] | None = None) -> list[RunGroup]:
        """The groups of a method in a setting, one per task; of all tasks or of these."""
        return [
            g for g in self.groups if g.method == method and g.setting == setting and (tasks is None or g.task in tasks)
        ]
