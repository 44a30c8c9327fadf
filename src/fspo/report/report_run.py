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

from fspo import ratios, runs
from fspo.fairness import FairnessReport, measure
from fspo.fairness.bins import quantile_edges
from fspo.objectives import Responses
from fspo.runs import Run, rows

__all__ = ["LENGTH_BINS", "ReportRun", "RowSummary", "load", "load_all"]

LENGTH_BINS = 8
TRAINING_BINS = 3  # bins of length whose clip rates are followed through training
TRAINING_SPANS = 24  # of steps, there
LAST_STEPS = 50  # at most this many steps are pooled as "the last steps"
LAST_ROWS = 200_000  # and at most this many rows
LOWEST_RATE = 0.002  # a run that clips less is compared with other methods at USUAL_RATE
USUAL_RATE = 0.1


@dataclass(frozen=True)
class RowSummary:
    """What the page shows of the rows."""

    off_policy: bool  # whether any update was off-policy, so that clipping could act
    clip: pl.DataFrame  # see _clip_rates
    last: pl.DataFrame  # rows of the last steps: the off-policy ones, or all where there are none
    last_steps: tuple[int, int]

    @property
    def named_steps(self) -> str:
        first, last = self.last_steps
        return f"step {first}" if first == last else f"steps {first} to {last}"

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
    suffix: str = ""  # of the titles of its plots, on a page of several runs

    def fairness(self, bins: int = LENGTH_BINS) -> FairnessReport | None:
        """Clip rate by length over the last steps; None where no update was off-policy, or nothing has a gradient."""
        if self.rows is None or not self.rows.off_policy or self.rows.last_with_gradient.is_empty():
            return None
        table = self.rows.last_with_gradient
        return measure(table["length"].to_numpy(), table["accepted"].to_numpy(), bins)


def load(folder: str | Path) -> ReportRun:
    """Read a run folder."""
    return load_all([folder])[0]


def load_all(folders: Sequence[str | Path]) -> list[ReportRun]:
    """Read several run folders; each run gets a name of its own."""
    loaded = []
    for run in runs.load_all(folders):
        summary, notes = _summarise(run.folder)
        known = {field.name: getattr(run, field.name) for field in fields(Run)} | {"notes": [*run.notes, *notes]}
        loaded.append(ReportRun(**known, rows=summary, suffix=f" – {run.name}" if len(folders) > 1 else ""))
    return loaded


def _summarise(run: Path) -> tuple[RowSummary | None, list[str]]:
    """The summary of a run's rows, None if there are none, and notes on what could not be read."""
    paths = rows.files(run)
    try:
        summary = _summary(paths) if paths else None
    except (pl.exceptions.PolarsError, OSError) as error:
        return None, [f"records/ cannot be read: {' '.join(str(error).split())}; no panels by response."]
    return summary, [] if summary else ["records/ has no rows: no panels by response."]


def _summary(paths: Sequence[Path]) -> RowSummary | None:
    table = rows.scan(paths)
    extent = table.select(first=pl.col("step").min(), final=pl.col("step").max(), off_policy=pl.col("off_policy").any())
    first, final, off_policy = extent.collect().row(0)
    if first is None:
        return None
    last = _last(paths, off_policy, min(LAST_STEPS, max(5, len(paths) // 5)))
    return RowSummary(
        off_policy=off_policy,
        clip=_clip_rates(_shown(table, off_policy), first, final),
        last=last,
        last_steps=(last["step"].min(), last["step"].max()),  # type: ignore[arg-type]
    )


def _shown(table: pl.LazyFrame, off_policy: bool) -> pl.LazyFrame:
    """The off-policy rows; on-policy ones, whose S is 0, would only dilute their clip rates."""
    return table.filter("off_policy") if off_policy else table


def _clip_rates(table: pl.LazyFrame, first: int, last: int) -> pl.DataFrame:
    """Clip rates per bin of length and span of steps, of rows that have a gradient."""
    table = table.filter(rows.HAS_GRADIENT)
    lengths, count = table.group_by("length").len().sort("length").collect().get_columns()
    edges = quantile_edges(lengths.to_numpy(), TRAINING_BINS, count.to_numpy()).tolist() if len(lengths) else []
    span = max(1, math.ceil((last - first + 1) / TRAINING_SPANS))
    return (
        table.with_columns(
            bin=pl.sum_horizontal(pl.lit(0), *(pl.col("length") > edge for edge in edges)),
            span=(pl.col("step") - first) // span,
        )
        .group_by("bin", "span")
        .agg(
            first=pl.col("step").min(),
            last=pl.col("step").max(),
            shortest=pl.col("length").min(),
            longest=pl.col("length").max(),
            count=pl.len(),
            clip_rate=1 - pl.col("accepted").mean(),
        )
        .sort("bin", "span")
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
