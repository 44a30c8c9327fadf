"""Padding in lists of tokens: a run of one value at an end of the lists that no trainer computed."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import polars as pl

from fspo.audits.reading.sample import Array

LONG = 16  # tokens: a run of zeros of this length is padding, even in a single row
COMMON = 0.2  # share of rows with a run from which runs are padding
SHORT = 4  # tokens: the first few of an answer may be certain


def position(sizes: Array) -> Array:
    """0, 1, ... within each list of these sizes, in one flat array."""
    ends = np.cumsum(sizes)
    return np.asarray(np.arange(int(ends[-1])) - np.repeat(ends - sizes, sizes))


def found(lists: Sequence[pl.Series], sizes: Array) -> tuple[Array, str] | None:
    """The rows with padding, and a sentence about it; `lists` are one column, or two of the same sizes.

    At the end: a run of zeros where all lists have one size, where many rows have one or where it is long, or a run of
    another value that most of these rows share. At the start: where all lists have one size and the runs differ. A
    single token of probability 1, where both log-probs are 0, is common and no padding, and neither are lists of a
    single value, such as on-policy log-ratios.
    """
    same = len(sizes) > 1 and bool(sizes.min() == sizes.max())
    runs, values = _runs(lists, sizes)
    rows = runs > 1
    if rows.any():
        zero = rows & (values == 0).all(1)
        if zero.any() and (same or zero.mean() >= COMMON or runs[zero].max() >= LONG):
            return zero, "ends in zeros, which look like padding: give --mask COLUMN or --length COLUMN"
        pad = rows & (values == _commonest(values[rows])).all(1)
        if pad.sum() >= 2 and pad.mean() >= COMMON and pad.sum() >= 0.8 * rows.sum():
            value = values[int(np.argmax(pad))][0]
            return pad, f"ends in a run of {value:g} in many rows, which looks like padding: give --mask COLUMN"
    if same:
        runs, values = _runs([column.list.reverse() for column in lists], sizes)
        pad = runs > 1
        if pad.mean() >= COMMON and runs.max() >= SHORT and len(np.unique(runs[pad])) > 1:
            value = values[int(np.argmax(pad))][0]
            return pad, f"starts with a run of {value:g}, which looks like padding: give --mask COLUMN"
    return None


def _runs(lists: Sequence[pl.Series], sizes: Array) -> tuple[Array, Array]:
    """How many values at the end of each row are equal (0: all of them, or none), and the last values (rows, lists)."""
    last = np.stack([column.list.get(-1).cast(pl.Float64).fill_null(np.nan).to_numpy() for column in lists], axis=1)
    before = np.stack(
        [column.list.get(-2, null_on_oob=True).cast(pl.Float64).fill_null(np.nan).to_numpy() for column in lists],
        axis=1,
    )
    runs = np.zeros(len(sizes), np.intp)
    rows = np.flatnonzero((last == before).all(1))
    if len(rows):
        n = sizes[rows]
        other = np.zeros(int(n.sum()), bool)
        for k, column in enumerate(lists):
            flat = column.gather(rows).explode().cast(pl.Float64).fill_null(np.nan).to_numpy()
            other |= flat != np.repeat(last[rows, k], n)
        end = np.maximum.reduceat(np.where(other, position(n), -1), np.cumsum(n) - n)
        runs[rows] = np.where(end < 0, 0, n - 1 - end)
    return runs, last


def _commonest(values: Array) -> Array:
    unique, counts = np.unique(values, axis=0, return_counts=True)
    return np.asarray(unique[int(np.argmax(counts))])
