"""Bins: how responses are divided by length or by another attribute before anything is counted.

Quantile bins hold equal shares of the responses. The same bins serve rows (`cut` of the lengths of responses) and sums
(`cut` of distinct lengths, with the number of responses of each given to `quantile_edges`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fspo.fairness.columns import column

Array = NDArray[Any]
Interval = tuple[float, float]

FEW_VALUES = 20
"""A numeric attribute with at most this many distinct values is a category, not a scale."""


@dataclass(frozen=True)
class Bins:
    """The bin of each value. Only bins that hold a value are kept."""

    index: NDArray[np.intp]  # (N,) from 0 to the number of bins - 1
    labels: list[str]
    ranges: list[Interval]  # smallest and largest value of each bin; NaN for a category
    numbers: NDArray[np.intp]  # of each bin among all that the edges make, empty ones counted

    def __len__(self) -> int:
        return len(self.labels)

    def select(self, rows: Array) -> Bins:
        """The bins of some of the rows; labels and ranges stay those of all rows."""
        used, index = np.unique(self.index[rows], return_inverse=True)
        return Bins(index, [self.labels[k] for k in used], [self.ranges[k] for k in used], self.numbers[used])

    def sum(self, values: Array | None = None) -> Array:
        """The sum of the values of each bin; the number of rows if no values are given."""
        return np.bincount(self.index, values, len(self))


def quantile_edges(values: ArrayLike, bins: int, count: ArrayLike | None = None) -> Array:
    """The inner edges of `bins` bins of equal shares, each an observed value; edges that coincide are one.

    With `count`, the values are distinct and in order, and each stands for so many responses.
    """
    if bins < 1:
        raise ValueError(f"bins = {bins} must be at least 1")
    distinct = np.asarray(values)
    if count is None:
        distinct, count = np.unique(distinct, return_counts=True)
    ends = np.cumsum(count)
    places = np.maximum(np.ceil(ends[-1] * (np.arange(1, bins) / bins) - 1), 0)
    return np.unique(distinct[np.searchsorted(ends, places, side="right")])


def cut(values: Array, bins: int | ArrayLike) -> Bins:
    """Bins of a numeric column: a number of quantile bins, or bins between given inner edges (upper edge included).

    There may be fewer bins than asked for: edges that coincide are one, and an empty bin is left out.
    """
    edges = quantile_edges(values, bins) if isinstance(bins, int) else np.unique(np.asarray(bins, np.float64))
    number = np.searchsorted(edges, values, side="left")
    numbers = np.flatnonzero(np.bincount(number))
    index = np.searchsorted(numbers, number)
    ranges = [(float(part.min()), float(part.max())) for part in (values[number == k] for k in numbers)]
    return Bins(index, [_label(a) if a == b else f"{_label(a)}–{_label(b)}" for a, b in ranges], ranges, numbers)


def partition(values: Any, bins: int | Sequence[float], n: int | None = None) -> Bins:
    """Bins of any attribute of (n) responses: words, and numbers of at most FEW_VALUES values, are categories.

    Other numbers are cut, and so are all numbers where edges are given.
    """
    values = np.asarray(values.detach().cpu() if hasattr(values, "detach") else values)
    if values.shape != (len(values) if n is None else n,):
        raise ValueError(f"by has the shape {values.shape} where one value per response is needed")
    names, index = np.unique(values, return_inverse=True)
    if np.issubdtype(values.dtype, np.number) and (len(names) > FEW_VALUES or not isinstance(bins, int)):
        return cut(column(values, "by"), bins)
    return Bins(index, [str(name) for name in names], [(math.nan, math.nan)] * len(names), np.arange(len(names)))


def _label(value: float) -> str:
    return f"{value:.0f}" if abs(value) >= 1e4 else f"{value:g}"
