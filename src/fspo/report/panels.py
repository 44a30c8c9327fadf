"""Did the run learn, how long are its answers, and are its updates sound?

What is measured per step or evaluation is one line per run; everything else has a chart per run. A panel is None where
nothing was measured.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from fspo.pages import charts
from fspo.pages.charts import Series
from fspo.pages.document import Plot, colour_of
from fspo.report.report_run import ReportRun
from fspo.runs import Evaluated, Metrics, RateBin
from fspo.runs.schema import Interval, Line
from fspo.text import percent, short

TOKENS = "answer length (tokens)"
LENGTH_POINTS = 30  # of the distribution

L = TypeVar("L", bound=Line)
Panels = list[Plot | None]


# --- lines over the steps ---


def overlay(
    named: Sequence[tuple[str, Sequence[L]]],
    value: Callable[[L], float | None],
    interval: Callable[[L], Interval | None] | None = None,
    *,
    dots: bool = False,
    smooth: bool = False,
) -> list[Series]:
    """A value over the steps, one line per name, without those that never measured it."""
    series = []
    for k, (name, lines) in enumerate(named):
        y = [value(line) for line in lines]
        if any(v is not None for v in y):
            low, high = ends_of([interval(line) for line in lines]) if interval else (None, None)
            steps = [line.step for line in lines]
            series.append(Series(name, steps, y, low, high, colour=colour_of(k), dots=dots, smooth=smooth))
    return series


def ends_of(intervals: Sequence[Interval | None]) -> tuple[list[float | None], list[float | None]]:
    """The lower and the upper ends, None where there is no interval."""
    low = [None if pair is None else pair[0] for pair in intervals]
    high = [None if pair is None else pair[1] for pair in intervals]
    return low, high


def line_plot(title: str, lines: Sequence[Series], said: Sequence[str], note: str = "", **axes: Any) -> Plot:
    """Lines with what is said about them, for screen readers and in the caption."""
    text = "; ".join(said) + "."
    return Plot(title, charts.line(title, text, lines, **axes), f"{text} {note}".rstrip())


def range_name(low: float, high: float) -> str:
    return f"{low:g}" if low == high else f"{low:g}–{high:g}"


@dataclass(frozen=True)
class MetricPanel:
    """A metric over the steps, of one run or of several."""

    title: str
    unit: str  # of the axis
    value: Callable[[Metrics], float | None]
    share: bool = False
    note: str = ""  # default: a sentence with the extent of the values
    interval: Callable[[Metrics], Interval | None] | None = None  # shown for one run

    def panel(self, runs: Sequence[ReportRun]) -> Plot | None:
        one = len(runs) == 1
        named = [(self.title if one else run.name, run.metrics) for run in runs]
        lines = overlay(named, self.value, self.interval if one else None, smooth=True)
        if not lines:
            return None
        values, form = charts.known(v for line in lines for v in line.y), percent if self.share else short
        extent = f"etween {form(min(values))} and {form(max(values))}."
        said = f"From {form(values[0])} to {form(values[-1])}, b{extent}" if one else f"B{extent}"
        top = 1.0 if self.share else None
        svg = charts.line(self.title, said, lines, y_label=self.unit, top=top, percent_axis=self.share)
        smoothed = " Faint: each step. Strong: running mean." if max(len(line.x) for line in lines) >= 20 else ""
        return Plot(self.title, svg, f"{self.note or said}{smoothed}")


# --- learning ---

REWARD = MetricPanel("Training reward", "mean reward", lambda m: m.reward)
LENGTH = MetricPanel("Answer length", "mean tokens", lambda m: m.length)


def learning(runs: Sequence[ReportRun]) -> Panels:
    """Evaluations whose rewards are not shares of a whole one have no accuracy: their reward is shown."""
    panels = [_held_out_curve(runs, "accuracy") or _held_out_curve(runs, "reward"), REWARD.panel(runs)]
    for run in runs:
        panels.append(_accuracy_by(run, "length", TOKENS, lambda line: line.by_length))
        panels.append(_accuracy_by(run, "difficulty", "difficulty", lambda line: line.by_difficulty))
    return panels


def held_out(run: ReportRun, value: str) -> dict[str, list[Evaluated]]:
    """Evaluations that have this value, by split."""
    splits: dict[str, list[Evaluated]] = {}
    for line in run.evaluations:
        if getattr(line, value) is not None:
            splits.setdefault(line.split, []).append(line)
    return splits


def main_split(run: ReportRun, value: str = "accuracy") -> list[Evaluated]:
    """The split with the most evaluations that have this value."""
    return max(held_out(run, value).values(), key=len, default=[])


def _held_out_curve(runs: Sequence[ReportRun], value: str) -> Plot | None:
    """Of one run each split, of several the main split of each."""
    share = value == "accuracy"
    named = list(held_out(runs[0], value).items())
    if len(runs) > 1:
        named = [(run.name, main_split(run, value)) for run in runs]
    interval = (lambda line: line.interval) if share else None
    lines = overlay(named, lambda line: getattr(line, value), interval, dots=True)
    if not lines:
        return None
    form = percent if share else short
    said = [f"{s.label}: from {form(s.y[0])} at step {s.x[0]} to {form(s.y[-1])} at step {s.x[-1]}" for s in lines]
    note = "Error bars are the evaluation's own intervals." if share else ""
    top = 1.0 if share else None
    return line_plot(f"Held-out {value}", lines, said, note, y_label=value, top=top, percent_axis=share)


def _accuracy_by(run: ReportRun, what: str, label: str, bins_of: Callable[[Evaluated], list[RateBin]]) -> Plot | None:
    """First and last evaluation, over the middle of each bin, because bins differ between evaluations."""
    known = [line for line in main_split(run) if bins_of(line)]
    if not known:
        return None
    lines, said = [], []
    for colour, line in zip((2, 1) if len(known) > 1 else (1,), (known[0], known[-1]), strict=False):
        bins = sorted(bins_of(line), key=lambda b: (b.low, b.high))
        middles, ends = [(b.low + b.high) / 2 for b in bins], ends_of([b.interval for b in bins])
        name = f"step {line.step}"
        lines.append(Series(name, middles, [b.accuracy for b in bins], *ends, colour=colour, dots=True))
        said.append(f"{name}: " + ", ".join(f"{range_name(b.low, b.high)} {percent(b.accuracy)}" for b in bins))
    title = f"Held-out accuracy by {what}{run.suffix}"
    svg = charts.line(title, "; ".join(said) + ".", lines, label, "accuracy", top=1.0, percent_axis=True)
    return Plot(title, svg, "First and last evaluation, with intervals; each point is at the middle of its bin.")


# --- lengths ---


def lengths(runs: Sequence[ReportRun]) -> Panels:
    return [LENGTH.panel(runs), *(_length_distribution(run) for run in runs)]


def _length_distribution(run: ReportRun) -> Plot | None:
    if run.rows is None:
        return None
    lengths = run.rows.last["length"].to_numpy()
    low, high = lengths.min(), lengths.max()
    # Whole tokens per bin, so that every bin stands for the same number of lengths.
    width = max(1, int(np.ceil((high - low + 1) / LENGTH_POINTS)))
    edges = np.arange(low - 0.5, high + 0.5 + width, width)
    share = np.histogram(lengths, edges)[0] / len(lengths)
    line = Series(run.name, ((edges[:-1] + edges[1:]) / 2).tolist(), share.tolist())
    said = f"From {low:g} to {high:g} tokens, median {np.median(lengths):g}"
    note = f"Share of answers in bins of {width} token{'s' * (width > 1)}: an answer counts once per update."
    title = f"Length distribution, last steps{run.suffix}"
    return line_plot(title, [line], [said], note, x_label=TOKENS, y_label="share of answers", percent_axis=True)


# --- health of the updates ---


def _without_variance(line: Metrics) -> float | None:
    if line.groups_without_variance is None or not line.groups:
        return None
    return line.groups_without_variance / line.groups


HEALTH = (  # whether training is sound
    MetricPanel("Gradient norm", "norm", lambda m: m.grad_norm),
    MetricPanel("Entropy", "nats per token", lambda m: m.entropy),
    MetricPanel("KL", "nats per token", lambda m: m.kl),
    MetricPanel("Effective sample size", "share of the answers", lambda m: m.ess, share=True),
    MetricPanel("Truncated answers", "share of the answers", lambda m: m.truncated, share=True),
    MetricPanel("Groups without variance", "share of the groups", _without_variance, share=True),
)
