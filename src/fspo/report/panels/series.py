"""Lines of a run's files as series of a chart."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from fspo.pages.charts import Series
from fspo.pages.plots import COLOURS, colour_of
from fspo.report.report_run import ReportRun
from fspo.runs import Evaluated, Metrics
from fspo.runs.schema import Interval, Line

L = TypeVar("L", bound=Line)


def metrics_of(runs: Sequence[ReportRun]) -> list[tuple[str, list[Metrics]]]:
    """The metrics of each run under its name."""
    return [(run.name, run.metrics) for run in runs]


def series_of(lines: Sequence[L], value: Callable[[L], float | None], label: str, **options: Any) -> Series | None:
    """A value over the steps; None where it was never measured."""
    y = [value(line) for line in lines]
    return None if all(v is None for v in y) else Series(label, [line.step for line in lines], y, **options)


def overlay(
    runs: Sequence[tuple[str, Sequence[L]]],
    value: Callable[[L], float | None],
    label: str,
    *,
    colour: int = 1,
    smooth: bool = True,
    interval: Callable[[L], Interval | None] | None = None,
) -> list[Series]:
    """A value of one run, with its interval, or of several runs in a colour for each."""
    if len(runs) == 1:
        lines = runs[0][1]
        low, high = (None, None) if interval is None else ends_of([interval(line) for line in lines])
        found = [series_of(lines, value, label, low=low, high=high, smooth=smooth, colour=colour)]
    else:
        found = [
            series_of(lines, value, name, smooth=smooth, colour=colour_of(k), dashed=k >= COLOURS)
            for k, (name, lines) in enumerate(runs)
        ]
    return [line for line in found if line is not None]


def ends_of(intervals: Sequence[Interval | None]) -> tuple[list[float | None], list[float | None]]:
    """The lower and the upper ends, None where there is no interval."""
    low = [None if pair is None else pair[0] for pair in intervals]
    high = [None if pair is None else pair[1] for pair in intervals]
    return low, high


def values_of(lines: Sequence[Series]) -> list[float]:
    """The values of all series together."""
    return [v for line in lines for v in line.y if v is not None]


def smooth_note(lines: Sequence[Series]) -> str:
    return "Faint: each step. Strong: running mean." if max(len(line.x) for line in lines) >= 20 else ""


def held_out(run: ReportRun) -> dict[str, list[Evaluated]]:
    """Evaluations with an accuracy, by split."""
    splits: dict[str, list[Evaluated]] = {}
    for line in run.evaluations:
        if line.accuracy is not None:
            splits.setdefault(line.split, []).append(line)
    return splits


def main_split(run: ReportRun) -> list[Evaluated]:
    """The split with the most evaluations."""
    return max(held_out(run).values(), key=len, default=[])
