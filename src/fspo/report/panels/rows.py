"""Reading what a run wrote: metrics over steps, intervals, held-out evaluations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fspo.report.charts import Series
from fspo.report.load import Row, Run
from fspo.report.panels.parts import COLOURS, colour_of
from fspo.report.text import number, percent

ON_POLICY = "Every update so far was on-policy: S is 0, so clipping cannot act and there is nothing to compare."
NO_RECORDS = "There are no per-answer records yet."
NO_GRADIENT = "Every advantage of these steps is 0: no answer has a gradient that clipping could remove."


def why_not(run: Run) -> str:
    if run.records is None:
        return NO_RECORDS
    return NO_GRADIENT if run.records.off_policy and run.records.pulling.is_empty() else ON_POLICY


def series_of(rows: Sequence[Row], key: str, **options: Any) -> Series | None:
    """A metric over the steps; None where it was never measured."""
    y = [number(row.get(key)) for row in rows]
    if all(v is None for v in y):
        return None
    return Series(options.pop("label", key), [row["step"] for row in rows], y, **options)


def overlay(
    runs: Sequence[Run], key: str, label: str, *, colour: int = 1, smooth: bool = True, interval: str | None = None
) -> list[Series]:
    """A metric of one run, or of several in the colour of each; the interval only of one, for the eye's sake."""
    if len(runs) == 1:
        extent: dict[str, Any] = {}
        if interval is not None:
            pairs = [interval_of(row, interval) or (None, None) for row in runs[0].metrics]
            extent = {"low": [p[0] for p in pairs], "high": [p[1] for p in pairs]}
        lines = [series_of(runs[0].metrics, key, label=label, smooth=smooth, colour=colour, **extent)]
    else:
        lines = [
            series_of(run.metrics, key, label=run.name, smooth=smooth, colour=colour_of(k), dashed=k >= COLOURS)
            for k, run in enumerate(runs)
        ]
    return [line for line in lines if line is not None]


def known(lines: Sequence[Series]) -> list[float]:
    return [v for line in lines for v in line.y if v is not None]


def interval_of(row: Row, key: str = "interval") -> tuple[float, float] | None:
    pair = row.get(key)
    if not isinstance(pair, list | tuple) or len(pair) != 2:
        return None
    low, high = number(pair[0]), number(pair[1])
    return None if low is None or high is None else (low, high)


def limits(row: Row) -> tuple[float, float]:
    return number(row.get("low")) or 0.0, number(row.get("high")) or 0.0


def range_name(low: float, high: float) -> str:
    return f"{low:g}" if low == high else f"{low:g}–{high:g}"


def listed(row: Row, key: str) -> list[Row]:
    rows = row.get(key)
    return [r for r in rows if isinstance(r, dict)] if isinstance(rows, list) else []


def held_out(run: Run) -> dict[str, list[Row]]:
    """Evaluations with an accuracy, by split."""
    splits: dict[str, list[Row]] = {}
    for row in run.evaluations:
        if number(row.get("accuracy")) is not None:
            splits.setdefault(str(row.get("split") or "held-out"), []).append(row)
    return splits


def main_split(run: Run) -> list[Row]:
    """The split with the most evaluations."""
    return max(held_out(run).values(), key=len, default=[])


def between(steps: tuple[float, float]) -> str:
    return f"step {steps[0]:g}" if steps[0] == steps[1] else f"steps {steps[0]:g} to {steps[1]:g}"


def with_interval(value: float, interval: tuple[float, float] | None) -> str:
    return f"{percent(value)} ({percent(interval[0])} to {percent(interval[1])})" if interval else percent(value)
