"""Checked input columns, and bins: how responses are divided by length or by another attribute.

Columns may be lists, arrays or tensors on any device. Quantile bins hold equal shares of the responses; values may be
one per response, or distinct lengths with the number of responses of each.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Integral
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[Any]
Column = NDArray[np.float64]
Interval = tuple[float, float]

CONFIDENCE = 0.95
"""Of every interval in this package."""

Z = NormalDist().inv_cdf(0.5 + CONFIDENCE / 2)

FEW_VALUES = 20
"""A numeric attribute with at most this many distinct values is a category, not a scale."""


def column(values: Any, name: str, n: int | None = None) -> Column:
    """A finite (N,) float64 array."""
    numbers = _array(values).astype(np.float64)
    if numbers.ndim != 1 or not len(numbers):
        raise ValueError(f"{name} must be a non-empty column of numbers, not of shape {numbers.shape}")
    if n is not None and len(numbers) != n:
        raise ValueError(f"{name} has {len(numbers)} rows where {n} are needed")
    finite = np.isfinite(numbers)
    if not finite.all():
        raise ValueError(f"{name} holds NaN or inf in row {int(finite.argmin())}")
    return numbers


def positive(values: Any, name: str, n: int | None = None) -> Column:
    """A column of positive numbers."""
    numbers = column(values, name, n)
    if numbers.min() <= 0:
        raise ValueError(f"{name} must be positive, and row {int(numbers.argmin())} is {numbers.min():g}")
    return numbers


def require_rate(clip_rate: float) -> None:
    if not 0 < clip_rate < 1:
        raise ValueError(f"clip_rate = {clip_rate} must lie between 0 and 1")


def log_ratio_and_length(log_ratio: Any, lengths: Any) -> tuple[Column, Column]:
    """S and L of the same responses."""
    S = column(log_ratio, "log_ratio")
    return S, positive(lengths, "lengths", len(S))


@dataclass(frozen=True)
class Bins:
    """The bin of each value. Only bins that hold a value are kept."""

    index: NDArray[np.intp]  # (N,) from 0 to the number of bins - 1
    labels: list[str]
    ranges: list[Interval]  # smallest and largest value of each bin; NaN for a category

    def __len__(self) -> int:
        return len(self.labels)

    def sum(self, values: Array | None = None) -> Array:
        """The sum of the values of each bin; the number of rows if no values are given."""
        return np.bincount(self.index, values, len(self))


def quantile_edges(values: ArrayLike, bins: int, count: ArrayLike | None = None, least: float = 0.5) -> Array:
    """The inner edges of `bins` bins of equal shares, each an observed value.

    Where many responses have one value there are fewer bins: none has less than `least` of its share, since one of a
    few responses would decide the LRE. With `count`, the values are distinct and in order, and `count` is the number of
    responses of each.
    """
    if bins < 1:
        raise ValueError(f"bins = {bins} must be at least 1")
    distinct = np.asarray(values)
    if count is None:
        distinct, count = np.unique(distinct, return_counts=True)
    ends = np.cumsum(count)
    ranks = np.maximum(np.ceil(ends[-1] * (np.arange(1, bins) / bins) - 1), 0)
    fewest, kept = least * ends[-1] / bins, [-1]
    for k in np.unique(np.searchsorted(ends, ranks, side="right")):
        if ends[k] - (ends[kept[-1]] if kept[-1] >= 0 else 0) >= fewest and ends[-1] - ends[k] >= fewest:
            kept.append(int(k))
    return np.asarray(distinct[kept[1:]])


def cut(values: Array, bins: int | ArrayLike) -> Bins:
    """Bins of a numeric column: a number of quantile bins, or bins between given inner edges (upper edge included).

    There may be fewer bins than asked for: edges that coincide are one, and an empty bin is left out.
    """
    if isinstance(bins, Integral):
        edges = quantile_edges(values, int(bins))
    else:
        edges = np.unique(np.asarray(bins, np.float64))
        if np.ndim(bins) != 1 or np.isnan(edges).any():
            raise ValueError(f"bins = {bins} must be a whole number, or a list of inner edges")
    number = np.searchsorted(edges, values, side="left")
    numbers = np.flatnonzero(np.bincount(number))
    index = np.searchsorted(numbers, number)
    ranges = [(float(part.min()), float(part.max())) for part in (values[number == k] for k in numbers)]
    return Bins(index, [_label(a) if a == b else f"{_label(a)}–{_label(b)}" for a, b in ranges], ranges)


def partition(values: Any, bins: int | Sequence[float], n: int | None = None) -> Bins:
    """Bins of any attribute of (n) responses: words, and numbers of at most FEW_VALUES values, are categories.

    Other numbers are cut, and so are all numbers where edges are given.
    """
    values = _array(values)
    if values.shape != (len(values) if n is None else n,):
        raise ValueError(f"by has the shape {values.shape} where one value per response is needed")
    names, index = np.unique(values, return_inverse=True)
    if np.issubdtype(values.dtype, np.number) and (len(names) > FEW_VALUES or not isinstance(bins, Integral)):
        return cut(column(values, "by"), bins)
    return Bins(index, [str(name) for name in names], [(math.nan, math.nan)] * len(names))


def _array(values: Any) -> Array:
    """Of a list, an array, or a tensor of any precision."""
    if hasattr(values, "detach"):
        values = values.detach().cpu()
        values = values.double() if values.is_floating_point() else values
    return np.asarray(values)


def _label(value: float) -> str:
    return f"{value:.0f}" if abs(value) >= 1e4 else f"{value:g}"
