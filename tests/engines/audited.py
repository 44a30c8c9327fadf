"""What an audit says of a run of another engine, against what the run itself wrote."""

from __future__ import annotations

from pathlib import Path

import pytest

import fspo
from fspo.local.records import read_lines


def assert_the_audit_agrees(folder: Path) -> float:
    """The overall clip rate, and the rows behind it, are those of the run's metrics; returns the rate."""
    steps = [row for row in read_lines(folder / "metrics.jsonl") if "clip_by_length" in row]
    counts = [sum(b["count"] for b in row["clip_by_length"]) for row in steps]
    found = fspo.audit(folder)
    assert found.own is not None
    assert sum(b.count for b in found.own.bins) == sum(counts)
    rate = sum(row["clip_rate"] * n for row, n in zip(steps, counts, strict=True)) / sum(counts)
    assert found.own.clip_rate == pytest.approx(rate, abs=1e-6)
    return found.own.clip_rate
