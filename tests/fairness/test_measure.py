"""Bins of lengths and of attributes, from rows and from sums; rates by bin, the LRE and their intervals."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import fspo
from fspo.fairness.bins import cut, partition, quantile_edges
from fspo.fairness.measure import report_of_bins

measure, wilson = fspo.fairness.measure, fspo.fairness.wilson


def test_by_hand() -> None:
    lengths = torch.tensor([1, 2, 3, 4, 10, 20, 30, 40])
    report = measure(lengths, [1, 1, 1, 0, 1, 0, 0, 0], bins=2)
    assert [(b.low, b.high, b.count, b.share, b.acceptance) for b in report.bins] == [
        (1, 4, 4, 0.5, 0.75),
        (10, 40, 4, 0.5, 0.25),
    ]
    assert (report.lre, report.lre_mean, report.flatness, report.clip_rate) == pytest.approx((0.5, 0.5, 0.5, 0.5))
    assert [b.reweighting for b in report.bins] == pytest.approx([1.5, 0.5])
    assert "1–4" in str(report)
    assert "LRE 0.5000" in str(report)


def test_any_attribute() -> None:
    accepted = [1, 0, 1, 1]
    words = measure([1, 1, 1, 1], accepted, by=["de", "de", "en", "en"], attribute="language")
    assert [(b.label, b.acceptance) for b in words.bins] == [("de", 0.5), ("en", 1.0)]
    assert words.attribute == "language"
    few = measure([1, 1, 1, 1], accepted, by=[3, 3, 1, 1])
    assert [b.label for b in few.bins] == ["1", "3"]
    many = measure(np.ones(400), np.ones(400), bins=4, by=np.arange(400) / 7)
    assert [b.count for b in many.bins] == [100] * 4


def test_wilson_is_the_textbook_interval() -> None:
    assert wilson(8, 10) == pytest.approx((0.4902, 0.9433), abs=1e-4)
    low, high = wilson(0, 20)
    assert low == pytest.approx(0, abs=1e-12)
    assert high == pytest.approx(0.1611, abs=1e-4)


def test_the_interval_of_a_clip_rate_is_that_of_its_acceptance_turned_round() -> None:
    rng = np.random.default_rng(0)
    lengths, accepted = rng.integers(1, 500, 2000), rng.random(2000) < 0.9
    report = measure(lengths, accepted)
    for b in report.bins:
        assert b.clip_interval == pytest.approx(wilson(b.clip_rate * b.count, b.count), abs=1e-12)
    assert report.clip_interval == pytest.approx(wilson(float((~accepted).sum()), 2000), abs=1e-12)


@pytest.mark.parametrize("slope", [0.0, 0.1], ids=["fair", "unfair"])
def test_intervals_cover_the_truth(slope: float) -> None:
    """At least at the nominal rate, also where the true LRE is 0 and the measured one never is."""
    rng = np.random.default_rng(1)
    lengths = np.repeat(np.arange(1, 9), 60)
    rate = 0.9 - slope * (np.arange(1, 9) - 4.5) / 4
    truth = float(np.abs(rate / rate.mean() - 1).max())
    hits = bin_hits = 0
    for _ in range(300):
        accepted = rng.random(len(lengths)) < rate[lengths - 1]
        report = measure(lengths, accepted)
        hits += report.lre_interval[0] <= truth <= report.lre_interval[1]
        bin_hits += report.bins[0].interval[0] <= rate[0] <= report.bins[0].interval[1]
        assert report.lre > 0
    assert hits >= 0.93 * 300
    assert bin_hits >= 0.92 * 300


def test_a_small_bin_stays_uncertain() -> None:
    report = measure([1] * 1000 + [9] * 3, [1] * 1003, bins=[5])
    assert report.lre == 0
    assert report.lre_interval[1] > 0.2


@pytest.mark.parametrize(
    ("lengths", "accepted", "options", "sentence"),
    [
        ([], [], {}, "accepted must be a non-empty column"),
        ([1, 2], [1], {}, "lengths has 2 rows where 1 are needed"),
        ([1, 0], [1, 1], {}, "lengths must be positive, and row 1 is 0"),
        ([1, 2], [1, 1.5], {}, r"accepted must lie in \[0, 1\]"),
        ([1, math.nan], [1, 1], {}, "lengths holds NaN or inf in row 1"),
        ([1, 2], [1, 1], {"bins": 0}, "bins = 0 must be at least 1"),
        ([1, 2], [1, 1], {"bins": 2.5}, r"bins = 2\.5 must be a whole number, or a list of inner edges"),
        ([1, 2], [1, 1], {"by": ["a"]}, "by has the shape"),
    ],
)
def test_bad_input(lengths: list[float], accepted: list[float], options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        measure(lengths, accepted, **options)


def test_everything_or_nothing_clipped_is_evenly_clipped() -> None:
    assert measure([1, 2], [0, 0], bins=2).lre == 0
    nothing = measure(np.arange(1, 100), np.ones(99))
    assert (nothing.lre, nothing.clip_rate, nothing.flatness) == (0, 0, 0)


@given(st.lists(st.integers(1, 60), min_size=1, max_size=200), st.integers(1, 12))
def test_sums_are_binned_as_their_rows_are(lengths: list[int], bins: int) -> None:
    values = np.array(lengths, np.float64)
    distinct, index, count = np.unique(values, return_inverse=True, return_counts=True)
    edges = quantile_edges(values, bins)
    expected = np.quantile(values, np.arange(1, bins) / bins, method="inverted_cdf")
    assert set(edges) <= set(expected)
    least = len(values) / bins / 2  # one of a few responses would decide the LRE
    assert min(cut(values, edges).sum()) >= least
    if bins > 1 and expected[-1] < values.max() and min(cut(values, expected).sum()) >= least:
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


def test_numbers_of_other_libraries() -> None:
    lengths = torch.arange(1, 101)
    report = measure(lengths, torch.ones(100, dtype=torch.bfloat16), bins=np.int64(4))  # type: ignore[arg-type]
    assert [row.count for row in report.bins] == [25] * 4
    assert [row.label for row in measure(lengths, torch.ones(100), by=lengths % 2).bins] == ["0", "1"]


def test_labels() -> None:
    assert cut(np.array([1.5, 2.0]), 1).labels == ["1.5–2"]
    assert cut(np.array([3e6, 76572.6]), 1).labels == ["76573–3000000"]
    assert partition(["b", "a", "b"], 8).labels == ["a", "b"]
