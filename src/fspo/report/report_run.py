"""A run as its page shows it: what `fspo.runs` reads from the folder, and a summary of its rows.

Memory is bounded: rows are aggregated per step and bin of length, and single rows are kept for the last steps only.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np
import polars as pl

from fspo import objectives, ratios, runs
from fspo.fairness import FairnessReport, measure
from fspo.fairness.bins import quantile_edges
from fspo.objectives import AtRate, Responses
from fspo.runs import Metrics, Run, rows

__all__ = ["LENGTH_BINS", "ReportRun", "RowSummary", "load", "load_all"]

LENGTH_BINS = 8
HEAT_COLUMNS = 48  # spans of steps across the heat map
LAST_STEPS = 50  # at most this many steps are pooled as "the last steps"
LAST_ROWS = 200_000  # and at most this many rows
QUANTILES = (5, 25, 50, 75, 95)  # of length, in percent
LOWEST_RATE = 0.002  # a run that clips less is compared with other methods at USUAL_RATE
USUAL_RATE = 0.1


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

    @property
    def clip_rate(self) -> float | None:
        """The share of the last steps' gradients that clipping removed; None where there is no gradient."""
        accepted = self.last_with_gradient["accepted"].to_numpy()
        return float(1 - accepted.mean()) if len(accepted) else None

    @property
    def comparison_rate(self) -> float:
        """The clip rate at which methods are compared: the run's own, unless it clipped next to nothing."""
        rate = self.clip_rate
        return USUAL_RATE if rate is None or rate < LOWEST_RATE else rate

    def at_clip_rate(self, name: str, rate: float) -> AtRate:
        """A method's range that clips this share of the last rows, and what it accepts; or why it cannot."""
        try:
            return objectives.get(name).at_clip_rate(self.last_responses, rate)
        except (ArithmeticError, ValueError):  # log-ratios of thousands, whose exponential is no number
            return AtRate(note="has no finite range for such log-ratios")

    @property
    def last_responses(self) -> Responses:
        """The rows of the last steps, as objectives take them."""
        S, L = self.last["log_ratio"].to_numpy(), self.last["length"].to_numpy()
        sign = np.sign(np.nan_to_num(self.last["advantage"].to_numpy()))
        return Responses(S, L, sign, mu=ratios.drift(S, L))


@dataclass(frozen=True)
class ReportRun(Run):
    """A run and its rows."""

    rows: RowSummary | None = None

    @property
    def last_metrics(self) -> list[Metrics]:
        """The metrics of the steps in `rows.last`."""
        if self.rows is None:
            return []
        first, last = self.rows.last_steps
        return [line for line in self.metrics if first <= line.step <= last]

    def fairness(self, bins: int = LENGTH_BINS) -> FairnessReport | None:
        """Clip rate by length over the last steps; None where no update was off-policy, or nothing has a gradient."""
        if self.rows is None or not self.rows.off_policy or self.rows.last_with_gradient.is_empty():
            return None
        table = self.rows.last_with_gradient
        return measure(table["length"].to_numpy(), table["accepted"].to_numpy(), bins)


def load(folder: str | Path, *, trust: bool = False) -> ReportRun:
    """Read a run folder; `trust` allows its configuration to import the objective that it names as `module:Class`."""
    return load_all([folder], trust=trust)[0]


def load_all(folders: Sequence[str | Path], *, trust: bool = False) -> list[ReportRun]:
    """Read several run folders; each run gets a name of its own."""
    return [_with_rows(run, trust) for run in runs.load_all(folders)]


def _with_rows(run: Run, trust: bool) -> ReportRun:
    summary, notes = _summarise(run.folder)
    if trust and ":" in (name := str(run.objective.get("name", ""))):
        try:
            objectives.get_class(name)
        except ValueError as error:
            notes = [*notes, f"{error}."]
    known = {field.name: getattr(run, field.name) for field in fields(Run)}
    return ReportRun(**known | {"notes": [*run.notes, *notes]}, rows=summary)


def _summarise(run: Path) -> tuple[RowSummary | None, list[str]]:
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
