"""Did the run learn, how long are its answers, and are its updates sound?"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from fspo.pages import charts
from fspo.pages.charts import Series
from fspo.pages.document import COLOURS, Missing, Panel, Plot, colour_of
from fspo.report.report_run import ReportRun
from fspo.report.series import NO_ROWS, TOKENS, MetricPanel, ends_of, held_out, line_plot, main_split, range_name
from fspo.runs import Evaluated, Metrics, RateBin
from fspo.text import percent, short

LENGTH_POINTS = 30  # of the distribution

REWARD = MetricPanel("Training reward", "mean reward", lambda m: m.reward, missing="No step has a reward.")
LENGTH = MetricPanel("Answer length", "mean tokens", lambda m: m.length, missing="No step has a length.")


def learning(runs: Sequence[ReportRun]) -> list[Panel]:
    by_length = _accuracy_by(runs, "length", TOKENS, lambda line: line.by_length)
    by_difficulty = _accuracy_by(runs, "difficulty", "difficulty", lambda line: line.by_difficulty)
    panels = [_held_out_curve(runs), REWARD.panel(runs), by_length, by_difficulty]
    return [panel for panel in panels if panel is not None]


def _held_out_curve(runs: Sequence[ReportRun]) -> Panel | None:
    """Accuracy, or the reward of evaluations whose rewards are not shares of a whole one and have no accuracy."""
    for value, form in (("accuracy", percent), ("reward", short)):
        splits = [(k, name, rows) for k, (name, rows) in enumerate(_splits(runs, value)) if rows]
        if not splits:
            continue
        lines, said = [], []
        for k, name, rows in splits:
            y = [getattr(e, value) for e in rows]
            low, high = ends_of([e.interval if value == "accuracy" else None for e in rows])
            drawn = Series(name, [e.step for e in rows], y, low, high, colour=colour_of(k))
            lines.append(replace(drawn, dots=True, dashed=k >= COLOURS))
            said.append(f"{name}: from {form(y[0])} at step {rows[0].step} to {form(y[-1])} at step {rows[-1].step}")
        share = value == "accuracy"
        note = "Error bars are the evaluation's own intervals." if share else ""
        axes = {"y_label": value, "top": 1.0 if share else None, "percent_axis": share}
        return line_plot(f"Held-out {value}", lines, said, note, **axes)
    # Another engine evaluates only where its user asks for it.
    waits = any(run.facts.engine == "local" for run in runs)
    return Missing("Held-out accuracy", "No evaluation has been written yet.") if waits else None


def _splits(runs: Sequence[ReportRun], value: str) -> list[tuple[str, list[Evaluated]]]:
    """Evaluations that have this value: of one run by split, of several those of each run's main split."""
    if len(runs) == 1:
        return list(held_out(runs[0], value).items())
    return [(run.name, main_split(run, value)) for run in runs]


def _accuracy_by(
    runs: Sequence[ReportRun], what: str, label: str, bins_of: Callable[[Evaluated], list[RateBin]]
) -> Panel | None:
    """Accuracy over the middle of each bin, because bins differ from evaluation to evaluation; None without any."""
    title = f"Held-out accuracy by {what}"
    chosen: list[tuple[str, list[RateBin]]] = []
    for run in runs:
        known = [line for line in main_split(run) if bins_of(line)]
        if len(runs) > 1:
            chosen += [(run.name, bins_of(line)) for line in known[-1:]]
        else:
            ends = known if len(known) < 2 else [known[0], known[-1]]
            chosen += [(f"step {line.step}", bins_of(line)) for line in ends]
    if not chosen:
        return None
    lines, said = [], []
    for k, (name, bins) in enumerate(chosen):
        bins = sorted(bins, key=lambda b: (b.low, b.high))
        colour = colour_of(k) if len(runs) > 1 else 2 if k == 0 and len(chosen) == 2 else 1
        lines.append(
            Series(name, [(b.low + b.high) / 2 for b in bins], [b.accuracy for b in bins],
                   *ends_of([b.interval for b in bins]), colour=colour, dots=True)
        )  # fmt: skip
        said.append(f"{name}: " + ", ".join(f"{range_name(b.low, b.high)} {percent(b.accuracy)}" for b in bins))
    middles = [float(x) for line in lines for x in line.x]
    svg = charts.line(
        title, "; ".join(said) + ".", lines, label, "accuracy", top=1.0, percent_axis=True,
        whole_x=max(middles) - min(middles) > 5,
    )  # fmt: skip
    which = "Last evaluation of each run" if len(runs) > 1 else "First and last evaluation"
    return Plot(title, svg, f"{which}, with intervals; each point is at the middle of its bin.")


def lengths(runs: Sequence[ReportRun]) -> list[Panel]:
    return [LENGTH.panel(runs), _length_distribution(runs)]


def _length_distribution(runs: Sequence[ReportRun]) -> Panel:
    title = "Length distribution, last steps"
    shown = [(k, run.rows.last["length"].to_numpy()) for k, run in enumerate(runs) if run.rows is not None]
    if not shown:
        return Missing(title, NO_ROWS)
    low, high = min(lengths.min() for _, lengths in shown), max(lengths.max() for _, lengths in shown)
    # Whole tokens per bin, so that every bin stands for the same number of lengths.
    width = max(1, int(np.ceil((high - low + 1) / LENGTH_POINTS)))
    edges = np.arange(low - 0.5, high + 0.5 + width, width)
    centres = [float(e) for e in (edges[:-1] + edges[1:]) / 2]
    lines, said = [], []
    for k, lengths in shown:
        share = np.histogram(lengths, edges)[0] / len(lengths)
        lines.append(Series(runs[k].name, centres, [float(v) for v in share], colour=colour_of(k)))
        said.append(
            f"{runs[k].name}: from {lengths.min():g} to {lengths.max():g} tokens, median {np.median(lengths):g}"
        )
    note = f"Share of answers in bins of {width} token{'s' * (width > 1)}: an answer counts once per update."
    return line_plot(title, lines, said, note, x_label=TOKENS, y_label="share of answers", percent_axis=True)


def _without_variance(line: Metrics) -> float | None:
    if line.groups_without_variance is None or not line.groups:
        return None
    return line.groups_without_variance / line.groups


HEALTH = (
    MetricPanel("Gradient norm", "norm", lambda m: m.grad_norm),
    MetricPanel("Entropy", "nats per token", lambda m: m.entropy),
    MetricPanel("KL", "nats per token", lambda m: m.kl),
    MetricPanel("Effective sample size", "share of the answers", lambda m: m.ess, share=True),
    MetricPanel("Truncated answers", "share of the answers", lambda m: m.truncated, share=True),
    MetricPanel("Groups without variance", "share of the groups", _without_variance, share=True),
)


def health(runs: Sequence[ReportRun]) -> list[Panel]:
    """The metrics that show whether training is sound, without those that no run has measured."""
    panels = [panel for metric in HEALTH if isinstance(panel := metric.panel(runs), Plot)]
    return [*panels] or [Missing("Health", "No step has been written yet.")]
