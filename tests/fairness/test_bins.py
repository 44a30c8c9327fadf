"""Bins of lengths and of attributes, from rows and from sums."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from fspo.fairness.bins import cut, partition, quantile_edges
from fspo.fairness.measure import report_of_bins


@given(st.lists(st.integers(1, 60), min_size=1, max_size=200), st.integers(1, 12))
def test_sums_are_binned_as_their_rows_are(lengths: list[int], bins: int) -> None:
    values = np.array(lengths, np.float64)
    distinct, index, count = np.unique(values, return_inverse=True, return_counts=True)
    edges = quantile_edges(values, bins)
    expected = np.quantile(values, np.arange(1, bins) / bins, method="inverted_cdf")
    assert edges.tolist() == np.unique(expected).tolist()
    assert quantile_edges(distinct, bins, count).tolist() == edges.tolist()
    rows, sums = cut(values, bins), cut(distinct, edges)
    assert (rows.labels, rows.ranges) == (sums.labels, sums.ranges)
    assert rows.index.tolist() == sums.index[index].tolist()
    assert rows.sum().tolist() == sums.sum(count).tolist()
    clipped = (values % 3 == 0).astype(float)
    by_sums = report_of_bins(sums, np.bincount(index, clipped), count=count)
    assert by_sums == report_of_bins(rows, clipped)


def test_empty_bins_are_left_out() -> None:
    bins = cut(np.array([1.0, 2.0, 50.0]), [5, 10, 20])
    assert (bins.labels, bins.index.tolist()) == (["1–2", "50"], [0, 0, 1])
    assert len(cut(np.zeros(0), [5])) == 0


def test_labels() -> None:
    assert cut(np.array([1.5, 2.0]), 1).labels == ["1.5–2"]
    assert cut(np.array([3e6, 76572.6]), 1).labels == ["76573–3000000"]
    assert partition(["b", "a", "b"], 8).labels == ["a", "b"]
