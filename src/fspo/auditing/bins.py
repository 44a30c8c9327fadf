"""Bins of length: the same for the run's own rule, from sums, and for other methods, from sampled rows."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fspo.auditing.sample import Array, Columns
from fspo.fairness.measure import FairnessReport, Interval, report_of_sums

DRAWS = 1000  # of the bootstrap of an LRE


@dataclass(frozen=True)
class Bins:
    """The bin of each row (or length): its place among the bins that occur, their numbers and their ranges."""

    index: Array
    used: Array
    ranges: list[Interval]

    @classmethod
    def cut(cls, edges: Array, lengths: Array) -> Bins:
        raw = np.searchsorted(edges, lengths, side="left")
        used = np.flatnonzero(np.bincount(raw, minlength=1)) if len(raw) else np.zeros(0, np.intp)
        index = np.searchsorted(used, raw)
        ranges = [(float(part.min()), float(part.max())) for part in (lengths[raw == k] for k in used)]
        return cls(index, used, ranges)

    def part(self, inside: Array) -> Bins:
        """Of some of the rows; bins that have none of them are left out."""
        used, index = np.unique(self.index[inside], return_inverse=True)
        return Bins(index, self.used[used], [self.ranges[k] for k in used])

    @property
    def labels(self) -> list[str]:
        return [f"{a:.0f}" if a == b else f"{a:.0f}–{b:.0f}" for a, b in self.ranges]

    def sum(self, values: Array) -> Array:
        return np.bincount(self.index, values, len(self.used))

    def report(self, clipped: Array, confidence: float, count: Array | None = None) -> FairnessReport:
        rows = np.bincount(self.index, count, len(self.used))
        return report_of_sums(self.labels, self.ranges, rows, self.sum(clipped), confidence=confidence, draws=DRAWS)


def quantile_edges(cells: Columns, bins: int) -> Array:
    """Inner edges of quantile bins, as `fairness.measure` cuts the same rows."""
    ends = np.cumsum(cells["count"])
    places = np.maximum(np.ceil(ends[-1] * (np.arange(1, bins) / bins) - 1), 0)
    return np.unique(cells["length"][np.searchsorted(ends, places, side="right")])
