"""What the panels share: lines of a run's files as series of a chart, a metric as a panel, and phrases."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from fspo.pages import charts
from fspo.pages.charts import Series
from fspo.pages.document import COLOURS, Missing, Panel, Plot, colour_of
from fspo.report.report_run import ReportRun
from fspo.runs import Evaluated, Metrics
from fspo.runs.schema import Interval, Line
from fspo.text import percent, short

TOKENS = "answer length (tokens)"
ON_POLICY = "Every update so far was on-policy: S is 0, so clipping cannot act and there is nothing to compare."
NO_ROWS = "There are no rows of single answers yet."
NO_GRADIENT = "Every advantage of these steps is 0: no answer has a gradient that clipping could remove."

L = TypeVar("L", bound=Line)


def overlay(
    runs: Sequence[tuple[str, Sequence[L]]],
    value: Callable[[L], float | None],
    label: str,
    *,
    smooth: bool = True,
    interval: Callable[[L], Interval | None] | None = None,
) -> list[Series]:
    """A value over the steps: of one run with its interval, or of several, without runs that never measured it."""
    series = []
    for k, (name, lines) in enumerate(runs):
        y = [value(line) for line in lines]
        if all(v is None for v in y):
            continue
        one = len(runs) == 1
        low, high = ends_of([interval(line) for line in lines]) if interval and one else (None, None)
        drawn = Series(label if one else name, [line.step for line in lines], y, low, high, colour=colour_of(k))
        series.append(replace(drawn, smooth=smooth, dashed=k >= COLOURS))
    return series


def ends_of(intervals: Sequence[Interval | None]) -> tuple[list[float | None], list[float | None]]:
    """The lower and the upper ends, None where there is no interval."""
    low = [None if pair is None else pair[0] for pair in intervals]
    high = [None if pair is None else pair[1] for pair in intervals]
    return low, high


def values_of(lines: Sequence[Series]) -> list[float]:
    """The values of all series together."""
    return [v for line in lines for v in line.y if v is not None]


def line_plot(title: str, lines: Sequence[Series], said: Sequence[str], note: str = "", **axes: Any) -> Plot:
    """Lines with what is said about them, for screen readers and in the caption."""
    text = "; ".join(said) + "."
    return Plot(title, charts.line(title, text, lines, **axes), f"{text} {note}".rstrip())


@dataclass(frozen=True)
class MetricPanel:
    """A metric over the steps, of one run or of several."""

    title: str
    unit: str  # of the axis
    value: Callable[[Metrics], float | None]
    share: bool = False
    label: str = ""  # default: the title
    note: str = ""  # default: a sentence with the extent of the values
    missing: str = "Not measured."
    interval: Callable[[Metrics], Interval | None] | None = None

    def panel(self, runs: Sequence[ReportRun]) -> Panel:
        label = self.label or self.title
        lines = overlay([(run.name, run.metrics) for run in runs], self.value, label, interval=self.interval)
        if not lines:
            return Missing(self.title, self.missing)
        values, form = values_of(lines), percent if self.share else short
        extent = f"etween {form(min(values))} and {form(max(values))}."
        said = f"From {form(values[0])} to {form(values[-1])}, b{extent}" if len(runs) == 1 else f"B{extent}"
        top = 1.0 if self.share else None
        svg = charts.line(self.title, said, lines, y_label=self.unit, top=top, percent_axis=self.share)
        smoothed = " Faint: each step. Strong: running mean." if max(len(line.x) for line in lines) >= 20 else ""
        return Plot(self.title, svg, f"{self.note or said}{smoothed}")


def held_out(run: ReportRun, value: str = "accuracy") -> dict[str, list[Evaluated]]:
    """Evaluations that have this value, by split."""
    splits: dict[str, list[Evaluated]] = {}
    for line in run.evaluations:
        if getattr(line, value) is not None:
            splits.setdefault(line.split, []).append(line)
    return splits


def main_split(run: ReportRun, value: str = "accuracy") -> list[Evaluated]:
    """The split with the most evaluations that have this value."""
    return max(held_out(run, value).values(), key=len, default=[])


def why_no_clipping(run: ReportRun) -> str:
    """Why there is nothing to show about clipping."""
    if run.rows is None:
        return NO_ROWS
    return NO_GRADIENT if run.rows.off_policy and run.rows.last_with_gradient.is_empty() else ON_POLICY


def of_run(title: str, run: ReportRun, runs: Sequence[ReportRun]) -> str:
    """The title of a plot of one run; where there are several, it ends with the name of the run."""
    return title if len(runs) == 1 else f"{title} – {run.name}"


def range_name(low: float, high: float) -> str:
    return f"{low:g}" if low == high else f"{low:g}–{high:g}"


def between(steps: tuple[float, float]) -> str:
    return f"step {steps[0]:g}" if steps[0] == steps[1] else f"steps {steps[0]:g} to {steps[1]:g}"
