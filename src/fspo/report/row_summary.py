"""The rows of a run, summarised for its page.

Memory is bounded: rows are aggregated per step and bin of length, and single rows are kept for the last steps only.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from fspo.fairness import quantile_edges
from fspo.runs import rows

__all__ = ["LENGTH_BINS", "RowSummary", "summarise"]

LENGTH_BINS = 8
HEAT_COLUMNS = 48  # spans of steps across the heat map
LAST_STEPS = 50  # at most this many steps are pooled as "the last steps"
LAST_ROWS = 200_000  # and at most this many rows
QUANTILES = (5, 25, 50, 75, 95)  # of length, in percent


@dataclass(frozen=True)
class RowSummary:
    """What the page shows of the rows."""

    steps: int
    rows: int
    off_policy: bool  # whether any update was off-policy, so that clipping could act
    edges: list[float]  # of the bins of length, from the shortest to the longest response
    clip: pl.DataFrame  # column, first, last (steps), bin, count, clip_rate: off-policy rows that have a gradient
    lengths: pl.DataFrame  # step, q05, q25, q50, q75, q95: each response once
    last: pl.DataFrame  # rows of the last steps: the off-policy ones, or all where there are none
    last_steps: tuple[int, int]

    @property
    def last_with_gradient(self) -> pl.DataFrame:
        """The rows of the last steps from which clipping may remove a gradient."""
        return self.last.filter(rows.HAS_GRADIENT)


def summarise(run: Path) -> tuple[RowSummary | None, list[str]]:
    """The summary of a run's rows, None if there are none, and notes on what could not be read."""
    notes: list[str] = []
    paths, broken = rows.readable(run)
    try:
        summary = _summary(paths) if paths else None
    except pl.exceptions.PolarsError:
        paths, damaged = rows.intact(paths)
        broken += damaged
        summary = _summary(paths) if paths else None
    if broken:
        more = f" (and {len(broken) - 1} more)" if len(broken) > 1 else ""
        notes.append(f"records/: {broken[0]}{more}; left out.")
    if summary is None:
        notes.append("records/ has no rows: no panels by response.")
    return summary, notes


def _summary(paths: Sequence[Path]) -> RowSummary | None:
    table = rows.scan(paths)
    c = (
        table.select(
            rows=pl.len(),
            first=pl.col("step").min(),
            last=pl.col("step").max(),
            steps=pl.col("step").n_unique(),
            off_policy=pl.col("off_policy").any(),
        )
        .collect()
        .row(0, named=True)
    )
    if not c["rows"]:
        return None
    lengths, count = table.group_by("length").len().sort("length").collect().get_columns()
    shortest, longest = lengths[0], lengths[-1]
    edges = quantile_edges(lengths.to_numpy(), LENGTH_BINS, count.to_numpy())
    inner = [edge for edge in edges.tolist() if edge < longest]
    last = _last(paths, c["off_policy"], min(LAST_STEPS, max(5, len(paths) // 5)))
    return RowSummary(
        steps=c["steps"],
        rows=c["rows"],
        off_policy=c["off_policy"],
        edges=[shortest, *inner, longest],
        clip=_clip_rates(_shown(table, c["off_policy"]), inner, c["first"], c["last"]),
        lengths=_length_quantiles(rows.scan(paths, left_out=True)),
        last=last,
        last_steps=(last["step"].min(), last["step"].max()),  # type: ignore[arg-type]
    )


def _shown(table: pl.LazyFrame, off_policy: bool) -> pl.LazyFrame:
    """The off-policy rows; on-policy ones, whose S is 0, would only dilute their clip rates."""
    return table.filter("off_policy") if off_policy else table


def _clip_rates(table: pl.LazyFrame, inner: Sequence[float], first: int, last: int) -> pl.DataFrame:
    """Clip rates per span of steps and bin of length."""
    span = max(1, math.ceil((last - first + 1) / HEAT_COLUMNS))
    return (
        table.filter(rows.HAS_GRADIENT)
        .with_columns(
            bin=pl.sum_horizontal(pl.lit(0), *(pl.col("length") > edge for edge in inner)),
            column=(pl.col("step") - first) // span,
        )
        .group_by("column", "bin")
        .agg(
            first=pl.col("step").min(),
            last=pl.col("step").max(),
            count=pl.len(),
            clip_rate=1 - pl.col("accepted").mean(),
        )
        .sort("column", "bin")
        .collect()
    )


def _length_quantiles(table: pl.LazyFrame) -> pl.DataFrame:
    """Quantiles of length per step, from the first update on its responses."""
    return (
        table.group_by("step", "update")
        .agg(**{f"q{q:02d}": pl.col("length").quantile(q / 100) for q in QUANTILES})
        .sort("step", "update")
        .unique("step", keep="first", maintain_order=True)
        .collect()
    )


def _last(paths: Sequence[Path], off_policy: bool, steps: int) -> pl.DataFrame:
    """The rows of the last steps, read from the end until there are enough."""
    parts: list[pl.DataFrame] = []
    for path in reversed(paths):
        part = _shown(rows.scan([path]), off_policy).collect()
        if len(part):
            parts.append(part)
        if len(parts) >= steps or sum(len(p) for p in parts) >= LAST_ROWS:
            break
    return pl.concat(parts[::-1]).tail(LAST_ROWS)
