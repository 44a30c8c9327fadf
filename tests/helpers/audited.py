"""The audit of a run of another engine, compared with what the run itself wrote."""

from __future__ import annotations

from pathlib import Path

import pytest

import fspo
from fspo.runs import Metrics, read_lines


def assert_the_audit_agrees(folder: Path) -> float:
    """The overall clip rate and its number of rows are those of the run's metrics; returns the rate."""
    steps = [line for line in read_lines(folder, Metrics) if line.clip_rate is not None]
    counts = [sum(b.count for b in line.clip_by_length) for line in steps]
    result = fspo.audit(folder)
    assert result.own is not None
    assert sum(b.count for b in result.own.bins) == sum(counts)
    rate = sum((line.clip_rate or 0.0) * n for line, n in zip(steps, counts, strict=True)) / sum(counts)
    assert result.own.clip_rate == pytest.approx(rate, abs=1e-6)
    return result.own.clip_rate
