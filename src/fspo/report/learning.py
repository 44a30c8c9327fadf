"""Did the run learn, how long are its answers, and are its updates sound?"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fspo.pages import charts
from fspo.pages.charts import Series
from fspo.pages.document import COLOURS, Missing, Panel, Plot, colour_of
from fspo.report.report_run import ReportRun
from fspo.report.series import (
    NO_ROWS,
    TOKENS,
    MetricPanel,
    between,
    ends_of,
    held_out,
    main_split,
    metrics_of,
    overlay,
    range_name,
    series_of,
    smooth_note,
    values_of,
    with_interval,
)
from fspo.runs import Evaluated, Metrics, RateBin
from fspo.text import percent, short

LENGTH_BARS = 30


def learning(runs: Sequence[ReportRun]) -> list[Panel]:
    by_length = [[(line, line.by_length) for line in main_split(run)] for run in runs]
    by_difficulty = [[(line, line.by_difficulty) for line in main_split(run)] for run in runs]
    panels = [
        _held_out_curve(runs),
        _reward_curve(runs),
        _accuracy_by(runs, "length", TOKENS, by_length),
        _accuracy_by(runs, "difficulty", "difficulty", by_difficulty),
    ]
    return [panel for panel in panels if panel is not None]


def _held_out_curve(runs: Sequence[ReportRun]) -> Panel | None:
    title = "Held-out accuracy"
    lines = [
        Series(name, [e.step for e in evaluations], [e.accuracy for e in evaluations],
               *ends_of([e.interval for e in evaluations]), colour=colour_of(k), dots=True, whiskers=True,
               dashed=k >= COLOURS)
        for k, (name, evaluations) in enumerate(_splits(runs, "accuracy")) if evaluations
    ]  # fmt: skip
    if not lines:
        # Another engine evaluates only where its user asks for it.
        waits = any(run.facts.engine == "local" for run in runs)
        missing = Missing(title, "No evaluation has been written yet.") if waits else None
        return _held_out_reward(runs) or missing
    said = []
    for run in runs:
        if evaluations := main_split(run):
            first, last = evaluations[0], evaluations[-1]
            said.append(
                ("" if len(runs) == 1 else f"{run.name}: ")
                + f"from {with_interval(first.accuracy, first.interval)} at step {first.step} to "
                f"{with_interval(last.accuracy, last.interval)} at step {last.step}"
            )
    svg = charts.line(title, "; ".join(said) + ".", lines, y_label="accuracy", top=1.0, percent_axis=True)
    return Plot(title, svg, _size(runs) + "Error bars are the evaluation's own intervals.")


def _held_out_reward(runs: Sequence[ReportRun]) -> Panel | None:
    """For evaluations whose rewards are not shares of a whole one, and which have no accuracy."""
    title = "Held-out reward"
    splits = _splits(runs, "reward")
    lines = [
        Series(name, [e.step for e in evaluations], [e.reward for e in evaluations], colour=colour_of(k), dots=True)
        for k, (name, evaluations) in enumerate(splits) if evaluations
    ]  # fmt: skip
    last = [f"{name}: {short(rows[-1].reward)} at step {rows[-1].step}" for name, rows in splits if rows]
    return Plot(title, charts.line(title, "; ".join(last) + ".", lines, y_label="mean reward")) if lines else None


def _splits(runs: Sequence[ReportRun], value: str) -> list[tuple[str, list[Evaluated]]]:
    """Evaluations that have this value: of one run by split, of several those of each run's main split."""
    if len(runs) == 1:
        return list(held_out(runs[0], value).items())
    return [(run.name, main_split(run, value)) for run in runs]


def _size(runs: Sequence[ReportRun]) -> str:
    """How many prompts and samples, where all runs agree."""
    sizes = {(lines[-1].prompts, lines[-1].samples) for run in runs if (lines := main_split(run))}
    prompts, samples = sizes.pop()
    if prompts is None or sizes:
        return ""
    return f"{prompts:,} prompts" + (f", {samples} sample{'s' * (samples != 1)} each" if samples else "") + ". "


def _reward_curve(runs: Sequence[ReportRun]) -> Panel:
    title = "Training reward"
    lines = overlay(metrics_of(runs), lambda m: m.reward, "mean reward")
    if len(runs) == 1:
        right = series_of(runs[0].metrics, lambda m: m.accuracy_train, "share with reward 1", smooth=True, colour=3)
        # With rewards of 0 and 1 the two are the same line.
        if right is not None and not (lines and list(lines[0].y) == list(right.y)):
            lines.append(right)
    if not lines:
        return Missing(title, "No step has a reward.")
    values = values_of(lines)
    svg = charts.line(
        title,
        f"Between {short(min(values))} and {short(max(values))} over {max(len(line.x) for line in lines)} steps.",
        lines,
        y_label="mean reward" if len(lines) == 1 or len(runs) > 1 else "",
        top=1.0,
    )
    return Plot(title, svg, smooth_note(lines))


def _accuracy_by(
    runs: Sequence[ReportRun], what: str, label: str, binned: Sequence[Sequence[tuple[Evaluated, list[RateBin]]]]
) -> Panel | None:
    """Accuracy over the middle of each bin, because bins differ from evaluation to evaluation; None without any."""
    title = f"Held-out accuracy by {what}"
    chosen: list[tuple[str, list[RateBin]]] = []
    for run, evaluations in zip(runs, binned, strict=True):
        known = [(line, bins) for line, bins in evaluations if bins]
        if len(runs) > 1:
            chosen += [(run.name, bins) for _, bins in known[-1:]]
        else:
            ends = known if len(known) < 2 else [known[0], known[-1]]
            chosen += [(f"step {line.step}", bins) for line, bins in ends]
    if not chosen:
        return None
    lines, said = [], []
    for k, (name, bins) in enumerate(chosen):
        bins = sorted(bins, key=lambda b: (b.low, b.high))
        colour = colour_of(k) if len(runs) > 1 else 2 if k == 0 and len(chosen) == 2 else 1
        lines.append(
            Series(name, [(b.low + b.high) / 2 for b in bins], [b.accuracy for b in bins],
                   *ends_of([b.interval for b in bins]), colour=colour, dots=True, whiskers=True)
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
    mean = MetricPanel(
        title, "tokens", lambda m: m.length, 1, note="Mean of each step.", missing="No step has a length."
    )
    return mean.panel(runs)


def _length_distribution(runs: Sequence[ReportRun]) -> Panel:
    title = "Length distribution, last steps"
    shown = [(k, run, run.rows) for k, run in enumerate(runs) if run.rows is not None]
    if not shown:
        return Missing(title, NO_ROWS)
    columns = [rows.last["length"].to_numpy() for _, _, rows in shown]
    low, high = min(c.min() for c in columns), max(c.max() for c in columns)
    # Whole tokens per bar, so that every bar stands for the same number of lengths.
    width = max(1, int(np.ceil((high - low + 1) / LENGTH_BARS)))
    edges = np.arange(low - 0.5, high + 0.5 + width, width)
    counts = [np.histogram(c, edges)[0] for c in columns]
    if len(runs) == 1:
        steps = between(shown[0][2].last_steps)
        middle = float(np.median(columns[0]))
        svg = charts.histogram(
            title,
            f"Answers of {steps}: from {low:g} to {high:g} tokens, median {middle:g}.",
            [float(e) for e in edges],
            [float(c) for c in counts[0]],
            None,
            [(f"median, {middle:g}", middle)],
            TOKENS,
            "rows",
        )
        return Plot(title, svg, f"Rows of {steps}: an answer counts once for each update that computed it.")
    centres = [float(e) for e in (edges[:-1] + edges[1:]) / 2]
    lines = [
        Series(run.name, centres, [float(v) for v in count / count.sum()], colour=colour_of(k))
        for (k, run, _), count in zip(shown, counts, strict=True)
    ]
    svg = charts.line(title, "Share of answers by length.", lines, TOKENS, "share of answers", percent_axis=True)
    return Plot(title, svg, f"Share of each run's answers in bins of {width} token{'s' * (width > 1)}.")


def _computed(line: Metrics) -> float | None:
    return line.rows_computed / line.rows if line.rows and line.rows_computed is not None else None


def _without_variance(line: Metrics) -> float | None:
    if line.groups_without_variance is None or not line.groups:
        return None
    return line.groups_without_variance / line.groups


HEALTH = (
    MetricPanel("Gradient norm", "norm", lambda m: m.grad_norm, 1, small=True),
    MetricPanel("Entropy", "nats per token", lambda m: m.entropy, 3, small=True),
    MetricPanel("KL", "nats per token", lambda m: m.kl, 4, small=True),
    MetricPanel("Effective sample size", "share of the answers", lambda m: m.ess, 6, share=True, small=True),
    MetricPanel("Truncated answers", "share of the answers", lambda m: m.truncated, 2, share=True, small=True),
    MetricPanel("Groups without variance", "share of the groups", _without_variance, 5, share=True, small=True),
    MetricPanel("Answers computed in updates", "share of the answers", _computed, 3, share=True, small=True),
)


def health(runs: Sequence[ReportRun]) -> list[Panel]:
    """The metrics that show whether training is sound, without those that no run has measured."""
    panels = [panel for metric in HEALTH if isinstance(panel := metric.panel(runs), Plot)]
    return [*panels] or [Missing("Health", "No step has been written yet.")]
