"""Lengths of the answers, and whether the updates are sound."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from fspo.pages import charts
from fspo.pages.charts import Series
from fspo.pages.plots import Missing, Panel, Plot, colour_of
from fspo.report.panels.phrases import NO_ROWS, between
from fspo.report.panels.series import metrics_of, overlay, smooth_note, values_of
from fspo.report.report_run import ReportRun
from fspo.runs import Metrics
from fspo.text import percent, short

LENGTH_BARS = 30


def lengths(runs: Sequence[ReportRun]) -> list[Panel]:
    return [_length_curve(runs), _length_distribution(runs)]


def _length_curve(runs: Sequence[ReportRun]) -> Panel:
    title = "Answer length"
    if len(runs) == 1 and runs[0].rows is not None:
        table = runs[0].rows.lengths
        steps = table["step"].to_list()
        lines = [
            Series("", steps, [None] * len(steps), table["q05"].to_list(), table["q95"].to_list(), colour=1),
            Series("", steps, [None] * len(steps), table["q25"].to_list(), table["q75"].to_list(), colour=1),
            Series("median", steps, table["q50"].to_list(), colour=1),
        ]
        said = f"Median length from {short(table['q50'][0])} to {short(table['q50'][-1])} tokens."
        svg = charts.line(title, said, lines, y_label="tokens", legend=False)
        return Plot(title, svg, "Line: median. Dark band: middle half. Light band: 5 to 95 %.")
    lines = overlay(metrics_of(runs), lambda m: m.length, "mean length")
    if not lines:
        return Missing(title, "No step has a length.")
    svg = charts.line(title, "Mean length per step.", lines, y_label="tokens")
    return Plot(title, svg, f"Mean of each step. {smooth_note(lines)}".strip())


def _length_distribution(runs: Sequence[ReportRun]) -> Panel:
    title = "Length distribution, last steps"
    found = [(k, run, run.rows) for k, run in enumerate(runs) if run.rows is not None]
    if not found:
        return Missing(title, NO_ROWS)
    columns = [rows.last["length"].to_numpy() for _, _, rows in found]
    low, high = min(c.min() for c in columns), max(c.max() for c in columns)
    # Whole tokens per bar, so that every bar stands for the same number of lengths.
    width = max(1, int(np.ceil((high - low + 1) / LENGTH_BARS)))
    edges = np.arange(low - 0.5, high + 0.5 + width, width)
    counts = [np.histogram(c, edges)[0] for c in columns]
    label = "answer length (tokens)"
    if len(runs) == 1:
        steps = between(found[0][2].last_steps)
        middle = float(np.median(columns[0]))
        svg = charts.histogram(
            title,
            f"Answers of {steps}: from {low:g} to {high:g} tokens, median {middle:g}.",
            [float(e) for e in edges],
            [float(c) for c in counts[0]],
            None,
            [(f"median, {middle:g}", middle)],
            label,
            "rows",
        )
        return Plot(title, svg, f"Rows of {steps}: an answer counts once for each update that computed it.")
    centres = [float(e) for e in (edges[:-1] + edges[1:]) / 2]
    lines = [
        Series(run.name, centres, [float(v) for v in count / count.sum()], colour=colour_of(k))
        for (k, run, _), count in zip(found, counts, strict=True)
    ]
    svg = charts.line(title, "Share of answers by length.", lines, label, "share of answers", percent_axis=True)
    return Plot(title, svg, f"Share of each run's answers in bins of {width} token{'s' * (width > 1)}.")


@dataclass(frozen=True)
class _Gauge:
    """A metric that shows whether training is sound."""

    title: str
    unit: str
    value: Callable[[Metrics], float | None]
    colour: int
    share: bool = False


def _computed(line: Metrics) -> float | None:
    return line.rows_computed / line.rows if line.rows and line.rows_computed is not None else None


def _without_variance(line: Metrics) -> float | None:
    if line.groups_without_variance is None or not line.groups:
        return None
    return line.groups_without_variance / line.groups


GAUGES = (
    _Gauge("Gradient norm", "norm", lambda m: m.grad_norm, 1),
    _Gauge("Entropy", "nats per token", lambda m: m.entropy, 3),
    _Gauge("KL", "nats per token", lambda m: m.kl, 4),
    _Gauge("Effective sample size", "share of the answers", lambda m: m.ess, 6, share=True),
    _Gauge("Truncated answers", "share of the answers", lambda m: m.truncated, 2, share=True),
    _Gauge("Groups without variance", "share of the groups", _without_variance, 5, share=True),
    _Gauge("Answers computed in updates", "share of the answers", _computed, 3, share=True),
)


def health(runs: Sequence[ReportRun]) -> list[Panel]:
    return [_gauge(gauge, runs) for gauge in GAUGES]


def _gauge(gauge: _Gauge, runs: Sequence[ReportRun]) -> Panel:
    lines = overlay(metrics_of(runs), gauge.value, gauge.title, colour=gauge.colour)
    if not lines:
        return Missing(gauge.title, "Not measured.")
    values, form = values_of(lines), percent if gauge.share else short
    extent = f"etween {form(min(values))} and {form(max(values))}."
    said = f"From {form(values[0])} to {form(values[-1])}, b{extent}" if len(runs) == 1 else f"B{extent}"
    svg = charts.line(
        gauge.title, said, lines, y_label=gauge.unit, height=230, width=340, top=1.0 if gauge.share else None,
        percent_axis=gauge.share,
    )  # fmt: skip
    return Plot(gauge.title, svg, said)
