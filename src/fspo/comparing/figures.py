"""The figures of a comparison, with intervals over seeds: one line or row a method, one chart a task and setting."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fspo.comparing.clipping import predicted
from fspo.comparing.results import Results
from fspo.comparing.statistics import Estimate, Group, curve, improvement, iqm, summary
from fspo.report import charts
from fspo.report.charts import Dot, Series
from fspo.report.panels.parts import COLOURS, Plot, colour_of
from fspo.report.text import percent, short

SIZE: dict[str, Any] = {"width": 540, "height": 340}
Estimates = Sequence[Estimate | None]


@dataclass(frozen=True)
class Part:
    """A section of the page."""

    id: str
    title: str
    lead: str
    plots: list[Plot]


def parts(results: Results) -> list[Part]:
    """All sections that have a figure."""
    if results.suite.tuning.all:
        found = [_sensitivity(results)]
    else:
        found = [_summary(results), _settings(results), *_training(results)]
    return [part for part in found if part.plots]


# --- across tasks -----------------------------------------------------------------------------------------------------


def _summary(results: Results) -> Part:
    reference = results.suite.reference
    plots = []
    for setting, name in results.setting_names.items():
        where = f" – {name}" * (len(results.suite.settings) > 1)
        runs = {label: results.of(label, setting) for label in results.labels}
        means = {label: iqm(groups) for label, groups in runs.items()}
        plots.append(_dots(results, f"Interquartile mean of final accuracy{where}", means, "accuracy"))
        ours = results.of(reference, setting)
        better = {label: improvement(ours, theirs) for label, theirs in runs.items() if label != reference}
        chances = {label: None if found is None else found.probability for label, found in better.items()}
        title = f"Probability that {reference} improves on a method{where}"
        plots.append(_dots(results, title, chances, "probability", ("no difference", 0.5)))
    for place, name in results.places.items():
        told = {group.label: summary(group) for group in results.at(place)}
        for key, title in (("final", "Final accuracy"), ("worst", "Accuracy in the worst length bin")):
            values = {label: getattr(told[label], key) if label in told else None for label in results.labels}
            plots.append(_dots(results, f"{title} – {name}", values, "accuracy"))
    lead = "Intervals are bootstraps over seeds, paired by seed where methods are compared. Axes need not start at 0."
    return Part("summary", "Summary", lead, [plot for plot in plots if plot is not None])


def _dots(
    results: Results,
    title: str,
    values: dict[str, Estimate | None],
    x_label: str,
    line: tuple[str, float] | None = None,
) -> Plot | None:
    """A row a method; a line at `line` or, without it, at the reference."""
    if all(value is None for value in values.values()):
        return None
    own = values.get(results.suite.reference)
    if line is None and own is not None:
        line = (results.suite.reference, own.value)
    rows = []
    for label, value in values.items():
        extent = None if value is None or value.low is None or value.high is None else (value.low, value.high)
        rows.append(Dot(label, value and value.value, extent, _colour(results, label), _again(results, label)))
    said = "; ".join(f"{row.label}: {'no value' if row.value is None else percent(row.value)}" for row in rows)
    return Plot(title, charts.dots(title, f"{said}.", rows, x_label, reference=line, width=SIZE["width"]))


def _settings(results: Results) -> Part:
    """Final accuracy over the settings, in the suite's order."""
    plots = []
    for task in results.tasks if len(results.settings) > 1 else []:
        lines = []
        for label in results.labels:
            found = [
                next((summary(g).final for g in results.of(label, setting) if g.task == task), None)
                for setting in results.settings
            ]
            lines.append(_line(results, label, range(len(found)), found, dots=True, whiskers=True))
        title = f"Final accuracy by setting – {task}"
        svg = charts.line(
            title, _ends(lines, percent), lines, "setting", "accuracy", zero=False, top=1.0, percent_axis=True,
            x_names=results.settings, **SIZE,
        )  # fmt: skip
        plots.append(Plot(title, svg))
    return Part("settings", "Settings", "Final held-out accuracy of every method, setting by setting.", plots)


# --- over training ----------------------------------------------------------------------------------------------------


def _training(results: Results) -> list[Part]:
    def each(title: str, draw: Callable[[str, list[Group]], Plot | None]) -> list[Plot]:
        drawn = [draw(f"{title} – {name}", results.at(place)) for place, name in results.places.items()]
        return [plot for plot in drawn if plot is not None]

    def over(steps: str, key: str, y_label: str, **options: Any) -> Callable[[str, list[Group]], Plot | None]:
        return lambda title, groups: _over_steps(results, title, groups, steps, key, y_label, **options)

    shares = {"top": 1.0, "percent_axis": True}
    return [
        Part("accuracy", "Held-out accuracy", "Mean over seeds. A run that failed keeps its last accuracy.",
             each("Held-out accuracy", over("eval_steps", "eval_accuracy", "accuracy", hold=True, **shares))),
        Part("reward", "Training reward", "Mean over seeds of the steps' mean reward.",
             each("Training reward", over("steps", "reward", "mean reward", top=1.0))),
        Part("clipping", "Clip rate against length",
             "Points: pooled over seeds, with Wilson's intervals. Dotted: what S ~ Normal(μL, σ²L) predicts for the "
             "method's own band, half of what lies outside, for methods that clip the whole sequence.",
             each("Clip rate against length", lambda title, groups: _by_length(results, title, groups))),
        Part("lre", "LRE over training", "How far the worst bin's acceptance lies from the average: 0 is fair.",
             each("LRE over training", over("steps", "lre", "LRE", zero=True))),
        Part("cosine", "Direction of the update",
             "Measured cosine between the clipped and the true update. Dotted: its lower bound from the LRE, with even "
             "clipping inside a bin; left out where it says nothing.",
             each("Cosine over training", lambda title, groups: _cosine(results, title, groups))),
        Part("growth", "Growth of the spread of S", "H of Var(S | L) = σ²L^(2H); independent tokens have 1/2.",
             each("H over training", over("h_steps", "h", "H"))),
    ]  # fmt: skip


def _over_steps(
    results: Results,
    title: str,
    groups: list[Group],
    steps: str,
    key: str,
    y_label: str,
    *,
    hold: bool = False,
    zero: bool = False,
    **options: Any,
) -> Plot | None:
    lines = [_line(results, g.label, *curve(g, steps, key, hold=hold)) for g in groups]
    lines = [line for line in lines if line.x]
    if not lines:
        return None
    form = percent if options.get("percent_axis") else short
    return Plot(title, charts.line(title, _ends(lines, form), lines, "step", y_label, zero=zero, **options, **SIZE))


def _by_length(results: Results, title: str, groups: list[Group]) -> Plot | None:
    lines, models = [], []
    for group in groups:
        found = results.clipping(group)
        if found is None:
            continue
        values = [Estimate(b.clip_rate, 1 - b.interval[1], 1 - b.interval[0]) for b in found.report.bins]
        lines.append(_line(results, group.label, found.middles, values, dots=True, whiskers=True))
        grid = np.linspace(found.middles[0], found.middles[-1], 40)
        curve_of = predicted(group, grid)
        if curve_of is not None:
            like = replace(lines[-1], label="", low=None, high=None, dots=False, dotted=True)
            models.append(replace(like, x=grid.tolist(), y=curve_of.tolist()))
    if not lines:
        return None
    svg = charts.line(
        title, _ends(lines, percent), [*lines, *models], "length (tokens)", "clip rate", percent_axis=True, **SIZE
    )  # fmt: skip
    return Plot(title, svg)


def _cosine(results: Results, title: str, groups: list[Group]) -> Plot | None:
    lines = []
    for group in groups:
        measured = _line(results, group.label, *curve(group, "cosine_steps", "cosine"))
        if measured.x:
            bound = _line(results, group.label, *curve(_told(group), "cosine_steps", "cosine_bound"))
            lines += [measured, replace(bound, label="", low=None, high=None, dotted=True)]
    if not lines:
        return None
    said = _ends([line for line in lines if line.label], short)
    lines = [line for line in lines if line.x]
    return Plot(title, charts.line(title, said, lines, "step", "cosine", zero=False, top=1.0, **SIZE))


def _told(group: Group) -> Group:
    """Without the steps at which the bound of some seed is -1: a mean over the others would be too high."""
    silent = {
        step
        for row in group.rows
        for step, bound in zip(row["cosine_steps"], row["cosine_bound"], strict=True)
        if bound is not None and bound <= -1
    }
    rows = []
    for row in group.rows:
        pairs = zip(row["cosine_steps"], row["cosine_bound"], strict=True)
        rows.append(row | {"cosine_bound": [None if step in silent else bound for step, bound in pairs]})
    return replace(group, rows=rows)


# --- every trial ------------------------------------------------------------------------------------------------------


def _sensitivity(results: Results) -> Part:
    """What the clip parameter does, every trial on all test seeds."""

    def clip(group: Group, key: str) -> Estimate | None:
        found = results.clipping(group)
        return None if found is None else getattr(found, key)

    wanted: list[tuple[str, str, Callable[[Group], Estimate | None], bool]] = [
        ("Final accuracy", "accuracy", lambda g: summary(g).final, True),
        ("Worst length bin", "accuracy", lambda g: summary(g).worst, True),
        ("Clip rate", "clip rate", lambda g: clip(g, "clip_rate"), True),
        ("LRE", "LRE", lambda g: clip(g, "lre"), False),
    ]
    plots = []
    for place, name in results.places.items():
        for what, y_label, value, share in wanted:
            lines = []
            for method in results.methods:
                trials = [g for g in results.at(place) if g.method == method and (g.rows[0]["x"] or 0) > 0]
                trials.sort(key=lambda g: g.rows[0]["x"])
                x = [g.rows[0]["x"] for g in trials]
                lines.append(_line(results, method, x, [value(g) for g in trials], dots=True, whiskers=True))
            lines = [line for line in lines if any(y is not None for y in line.y)]
            if lines:
                title = f"{what} by clip parameter – {name}"
                svg = charts.line(
                    title, _ends(lines, percent if share else short), lines, "clip parameter", y_label, zero=False,
                    top=1.0 if share else None, percent_axis=share, log_x=True, **SIZE,
                )  # fmt: skip
                plots.append(Plot(title, svg))
    lead = "Each method's own parameter, on a logarithmic axis. Every trial has all test seeds: nothing is chosen."
    return Part("sensitivity", "Sensitivity to the clip parameter", lead, plots)


# --- lines ------------------------------------------------------------------------------------------------------------


def _line(results: Results, label: str, x: Sequence[float] | range, values: Estimates, **options: Any) -> Series:
    return Series(
        label,
        list(x),
        [v and v.value for v in values],
        [v and v.low for v in values],
        [v and v.high for v in values],
        colour=_colour(results, label),
        dashed=_again(results, label),
        **options,
    )


def _colour(results: Results, label: str) -> int:
    return colour_of(results.methods.index(label))


def _again(results: Results, label: str) -> bool:
    """Whether another method has its colour already."""
    return results.methods.index(label) >= COLOURS


def _ends(lines: Sequence[Series], form: Callable[[float | None], str]) -> str:
    """From the first to the last value of every line, for readers who do not see it."""
    known = [(line.label, [y for y in line.y if y is not None]) for line in lines]
    return "; ".join(f"{label} from {form(y[0])} to {form(y[-1])}" for label, y in known if y) + "."
