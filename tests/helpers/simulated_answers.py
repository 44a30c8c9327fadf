"""Simulated answers with known mu, sigma and H: S = mu L + sigma L^H Z; and what an audit must have or agree with."""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

import numpy as np
import polars as pl
import pytest

import fspo
from fspo.ratios import ROUNDING
from fspo.runs import Metrics, RunWriter, read_lines, rows

Value = TypeVar("Value")


def known(value: Value | None) -> Value:
    """A part of an audit, which this one must have."""
    assert value is not None
    return value


def answers(
    n: int, *, mu: float = -3e-4, sigma: float = 0.02, H: float = 0.5, seed: int = 0, longest: int = 4000
) -> pl.DataFrame:
    """Lengths from 8 up, advantages of either sign; `accepted` is GSPO's rule. No row looks on-policy by chance."""
    rng = np.random.default_rng(seed)
    L = np.exp(rng.uniform(np.log(8), np.log(longest), n)).astype(int)
    S = mu * L + sigma * L**H * rng.standard_normal(n)
    S = np.where(np.abs(S) <= ROUNDING * np.sqrt(L), 2 * ROUNDING * np.sqrt(L), S)
    A = rng.standard_normal(n)
    clipped = ((A > 0) & (S > 4e-4 * L)) | ((A < 0) & (S < -3e-4 * L))
    return pl.DataFrame({
        "length": L, "log_ratio": S, "advantage": A, "accepted": 1.0 - clipped, "reward": (A > 0).astype(float),
        "truncated": 0.9 * longest < L, "task": rng.choice(["sort", "add", "count"], n),
    })  # fmt: skip


def token_answers(n: int, seed: int = 0) -> pl.DataFrame:
    """The same as lists of log-probs, one number per token."""
    rng = np.random.default_rng(seed)
    L = rng.integers(3, 60, n)
    old = [rng.normal(-1, 0.3, k) for k in L]
    new = [o + rng.normal(-0.002, 0.06, len(o)) for o in old]
    for o, v in zip(old, new, strict=True):
        v[0] += 1e-3 if abs(v.sum() - o.sum()) <= ROUNDING * np.sqrt(len(o)) else 0.0
    return pl.DataFrame({"logprobs": new, "old_logprobs": old, "advantage": rng.standard_normal(n)})


def run_folder(folder: Path, steps: int = 6, n: int = 200, seed: int = 0) -> pl.DataFrame:
    """The rows of a run as every engine writes them; the first update of each step is on-policy."""
    writer = RunWriter(folder)
    for step in range(1, steps + 1):
        update = pl.Series("update", np.arange(n) % 4)
        frame = answers(n, seed=seed + step, longest=300).with_columns(
            update, update.alias("staleness"), step=pl.lit(step), off_policy=update > 0, index=pl.lit(0),
            attributes=pl.lit("{}"),
            log_ratio=pl.when(update > 0).then("log_ratio").otherwise(0.0),
            accepted=pl.when(update > 0).then("accepted").otherwise(1.0),
        )  # fmt: skip
        writer.rows(step, frame.to_dict(as_series=False))
    return rows.read(folder, list(rows.COLUMNS))


def assert_the_audit_agrees(folder: Path) -> float:
    """The overall clip rate and its number of rows are those of the run's metrics; returns the rate."""
    steps = [line for line in read_lines(folder, Metrics) if line.clip_rate is not None]
    counts = [sum(b.count for b in line.clip_by_length) for line in steps]
    own = known(fspo.audit(folder).own)
    assert sum(b.count for b in own.bins) == sum(counts)
    rate = sum((line.clip_rate or 0.0) * n for line, n in zip(steps, counts, strict=True)) / sum(counts)
    assert own.clip_rate == pytest.approx(rate, abs=1e-6)
    return own.clip_rate
