"""Did the run learn? Held-out accuracy and training reward."""

from __future__ import annotations

from collections.abc import Sequence

from fspo.pages import charts
from fspo.pages.charts import Series
from fspo.pages.plots import COLOURS, Missing, Panel, Plot, colour_of
from fspo.report.panels.phrases import range_name, with_interval
from fspo.report.panels.series import (
    ends_of,
    held_out,
    main_split,
    metrics_of,
    overlay,
    series_of,
    smooth_note,
    values_of,
)
from fspo.report.report_run import ReportRun
from fspo.runs import Evaluated, RateBin
from fspo.text import percent, short


def learning(runs: Sequence[ReportRun]) -> list[Panel]:
    by_length = [[(line, line.by_length) for line in main_split(run)] for run in runs]
    by_difficulty = [[(line, line.by_difficulty) for line in main_split(run)] for run in runs]
    return [
        _held_out_curve(runs),
        _reward_curve(runs),
        _accuracy_by(runs, "length", "answer length (tokens)", by_length),
        _accuracy_by(runs, "difficulty", "difficulty", by_difficulty),
    ]


def _held_out_curve(runs: Sequence[ReportRun]) -> Panel:
    title = "Held-out accuracy"
    found = list(held_out(runs[0]).items()) if len(runs) == 1 else [(run.name, main_split(run)) for run in runs]
    if any(lines for _, lines in found) and all(line.accuracy is None for _, lines in found for line in lines):
        return _held_out_reward(found)
    lines = [
        Series(name, [e.step for e in evaluations], [e.accuracy for e in evaluations],
               *ends_of([e.interval for e in evaluations]), colour=colour_of(k), dots=True, whiskers=True,
               dashed=k >= COLOURS)
        for k, (name, evaluations) in enumerate(found) if evaluations
    ]  # fmt: skip
    if not lines:
        return Missing(title, "No evaluation has been written yet.")
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


def _held_out_reward(found: Sequence[tuple[str, Sequence[Evaluated]]]) -> Panel:
    """Of evaluations whose rewards are not shares of a whole one."""
    title = "Held-out reward"
    lines = [
        Series(name, [e.step for e in lines], [e.reward for e in lines], colour=colour_of(k), dots=True)
        for k, (name, lines) in enumerate(found)
        if any(e.reward is not None for e in lines)
    ]
    if not lines:
        return Missing(title, "No held-out answer could be scored.")
    last = [f"{name}: {short(rows[-1].reward)} at step {rows[-1].step}" for name, rows in found if rows]
    return Plot(title, charts.line(title, "; ".join(last) + ".", lines, y_label="mean reward"), "")


def _size(runs: Sequence[ReportRun]) -> str:
    """How many prompts and samples, where all runs agree."""
    sizes = {(found[-1].prompts, found[-1].samples) for run in runs if (found := main_split(run))}
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
    runs: Sequence[ReportRun], what: str, label: str, found: Sequence[Sequence[tuple[Evaluated, list[RateBin]]]]
) -> Panel:
    """Accuracy over the middle of each bin: bins differ from evaluation to evaluation."""
    title = f"Held-out accuracy by {what}"
    chosen: list[tuple[str, list[RateBin]]] = []
    for run, evaluations in zip(runs, found, strict=True):
        known = [(line, bins) for line, bins in evaluations if bins]
        if len(runs) > 1:
            chosen += [(run.name, bins) for _, bins in known[-1:]]
        else:
            ends = known if len(known) < 2 else [known[0], known[-1]]
            chosen += [(f"step {line.step}", bins) for line, bins in ends]
    if not chosen:
        return Missing(title, f"No evaluation by {what} has been written yet.")
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
