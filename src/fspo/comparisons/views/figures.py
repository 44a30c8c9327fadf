"""The figures of a comparison, with intervals over seeds: one line per method, one chart per task and setting."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fspo.comparisons.pooled_clipping import predicted
from fspo.comparisons.seed_statistics import Estimate, RunGroup, curve, improvement, iqm, summary
from fspo.comparisons.suite_results import SuiteResults
from fspo.pages import charts
from fspo.pages.charts import Dot, Series
from fspo.pages.document import COLOURS, Plot, colour_of
from fspo.text import percent, short

__all__ = ["SIZE", "FigureSection", "ends", "figure_sections", "line_of", "over_steps"]

SIZE: dict[str, Any] = {"width": 540, "height": 340}
Estimates = Sequence[Estimate | None]


@dataclass(frozen=True)
class FigureSection:
    """A section of the page and its figures."""

    id: str
    title: str
    lead: str
    plots: list[Plot]


def figure_sections(results: SuiteResults) -> list[FigureSection]:
    """The sections of the page that have a figure."""
    if results.suite.tuning.all:
        found = [_sensitivity(results)]
    else:
        found = [_summary(results), _settings(results), *_training(results)]
    return [section for section in found if section.plots]


# --- across tasks -----------------------------------------------------------------------------------------------------


def _summary(results: SuiteResults) -> FigureSection:
    reference = results.suite.reference
    plots = []
    for (kind, part), (setting, name) in itertools.product(results.parts.items(), results.setting_names.items()):
        where = f" – {name}" * (len(results.suite.settings) > 1) + f" – {kind}tasks" * bool(kind)
        runs = {label: results.of(label, setting, part) for label in results.labels}
        means = {label: iqm(groups) for label, groups in runs.items()}
        plots.append(_dots(results, f"Interquartile mean of final accuracy{where}", means, "accuracy"))
        ours = results.of(reference, setting, part)
        better = {label: improvement(ours, theirs) for label, theirs in runs.items() if label != reference}
        chances = {label: None if found is None else found.probability for label, found in better.items()}
        title = f"Probability that {reference} improves on a method{where}"
        plots.append(_dots(results, title, chances, "probability", ("no difference", 0.5)))
    for place, name in results.places.items():
        summaries = {group.label: summary(group) for group in results.at(place)}
        for key, title in (("final", "Final accuracy"), ("worst", "Accuracy in the worst length bin")):
            values = {label: getattr(summaries[label], key) if label in summaries else None for label in results.labels}
            plots.append(_dots(results, f"{title} – {name}", values, "accuracy"))
    lead = "Intervals are bootstraps over seeds, paired by seed where methods are compared. Axes need not start at 0."
    return FigureSection("summary", "Summary", lead, [plot for plot in plots if plot is not None])


def _dots(
    results: SuiteResults,
    title: str,
    values: dict[str, Estimate | None],
    x_label: str,
    line: tuple[str, float] | None = None,
) -> Plot | None:
    """One row per method; a line at `line` or, without it, at the reference."""
    if all(value is None for value in values.values()):
        return None
    own = values.get(results.suite.reference)
    if line is None and own is not None:
        line = (results.suite.reference, own.value)
    rows = []
    for label, value in values.items():
        extent = None if value is None or value.low is None or value.high is None else (value.low, value.high)
        rows.append(Dot(label, value and value.value, extent, _colour(results, label), _dashed(results, label)))
    described = "; ".join(f"{row.label}: {'no value' if row.value is None else percent(row.value)}" for row in rows)
    return Plot(title, charts.dots(title, f"{described}.", rows, x_label, reference=line, width=SIZE["width"]))


def _settings(results: SuiteResults) -> FigureSection:
    """Final accuracy over the settings, in the suite's order."""
    plots = []
    for task in results.tasks if len(results.settings) > 1 else []:
        lines = []
        for label in results.labels:
            found = [
                next((summary(g).final for g in results.of(label, setting) if g.task == task), None)
                for setting in results.settings
            ]
            lines.append(line_of(results, label, range(len(found)), found, dots=True, whiskers=True))
        title = f"Final accuracy by setting – {task}"
        svg = charts.line(
            title, ends(lines, percent), lines, "setting", "accuracy", zero=False, top=1.0, percent_axis=True,
            x_names=results.settings, **SIZE,
        )  # fmt: skip
        plots.append(Plot(title, svg))
    return FigureSection("settings", "Settings", "Final held-out accuracy of every method by setting.", plots)


# --- over training ----------------------------------------------------------------------------------------------------


Draw = Callable[[str, list[RunGroup]], Plot | None]


def _training(results: SuiteResults) -> list[FigureSection]:
    def section(id: str, title: str, lead: str, figure: str, draw: Draw) -> FigureSection:
        """One figure per place."""
        drawn = [draw(f"{figure} – {name}", results.at(place)) for place, name in results.places.items()]
        return FigureSection(id, title, lead, [plot for plot in drawn if plot is not None])

    def over(steps: str, key: str, y_label: str, **options: Any) -> Draw:
        return lambda title, groups: over_steps(results, title, groups, steps, key, y_label, **options)

    accuracy = over("eval_steps", "eval_accuracy", "accuracy", hold=True, top=1.0, percent_axis=True)
    failed = "Mean over seeds. A run that failed keeps its last accuracy."
    clipping = (
        "Points: pooled over seeds, with Wilson's intervals. Dotted, for methods that clip the whole sequence: what "
        "S ~ Normal(μL, σ²L) predicts for the method's own band if advantages of either sign are equally likely."
    )
    lre = "How far the worst bin's acceptance lies from the average: 0 is fair."
    cosine = (
        "Measured cosine between the clipped and the true update. Dotted: its lower bound from the LRE, for even "
        "clipping inside a bin; left out where it is vacuous."
    )
    growth = "H of Var(S | L) = σ²L^(2H); independent tokens have 1/2."
    return [
        section("accuracy", "Held-out accuracy", failed, "Held-out accuracy", accuracy),
        section("reward", "Training reward", "Mean reward of a step, averaged over seeds.", "Training reward",
                over("steps", "reward", "mean reward", top=1.0)),
        section("clipping", "Clip rate against length", clipping, "Clip rate against length",
                lambda title, groups: _by_length(results, title, groups)),
        section("lre", "LRE over training", lre, "LRE over training", over("steps", "lre", "LRE", zero=True)),
        section("cosine", "Direction of the update", cosine, "Cosine over training",
                lambda title, groups: _cosine(results, title, groups)),
        section("growth", "Growth of the spread of S", growth, "H over training", over("h_steps", "h", "H")),
    ]  # fmt: skip


def over_steps(
    results: SuiteResults,
    title: str,
    groups: list[RunGroup],
    steps: str,
    key: str,
    y_label: str,
    *,
    hold: bool = False,
    zero: bool = False,
    **options: Any,
) -> Plot | None:
    """The curves of methods over training; None where no run has them."""
    lines = [line_of(results, g.label, *curve(g, steps, key, hold=hold)) for g in groups]
    lines = [line for line in lines if line.x]
    if not lines:
        return None
    form = percent if options.get("percent_axis") else short
    return Plot(title, charts.line(title, ends(lines, form), lines, "step", y_label, zero=zero, **options, **SIZE))


def _by_length(results: SuiteResults, title: str, groups: list[RunGroup]) -> Plot | None:
    lines, models = [], []
    for group in groups:
        found = results.clipping(group)
        if found is None:
            continue
        values = [Estimate(b.clip_rate, *b.clip_interval) for b in found.report.bins]
        lines.append(line_of(results, group.label, found.middles, values, dots=True, whiskers=True))
        grid = np.linspace(found.middles[0], found.middles[-1], 40)
        curve_of = predicted(group, grid)
        if curve_of is not None:
            like = replace(lines[-1], label="", low=None, high=None, dots=False, dotted=True)
            models.append(replace(like, x=grid.tolist(), y=curve_of.tolist()))
    if not lines:
        return None
    svg = charts.line(
        title, ends(lines, percent), [*lines, *models], "length (tokens)", "clip rate", percent_axis=True, **SIZE
    )  # fmt: skip
    return Plot(title, svg)


def _cosine(results: SuiteResults, title: str, groups: list[RunGroup]) -> Plot | None:
    lines = []
    for group in groups:
        measured = line_of(results, group.label, *curve(group, "cosine_steps", "cosine"))
        if measured.x:
            bound = line_of(results, group.label, *curve(_non_vacuous(group), "cosine_steps", "cosine_bound"))
            lines += [measured, replace(bound, label="", low=None, high=None, dotted=True)]
    if not lines:
        return None
    described = ends([line for line in lines if line.label], short)
    lines = [line for line in lines if line.x]
    return Plot(title, charts.line(title, described, lines, "step", "cosine", zero=False, top=1.0, **SIZE))


def _non_vacuous(group: RunGroup) -> RunGroup:
    """Without the steps at which the bound of any seed is vacuous (-1): the mean of the others would be too high."""
    vacuous = {
        step
        for row in group.rows
        for step, bound in zip(row["cosine_steps"], row["cosine_bound"], strict=True)
        if bound is not None and bound <= -1
    }
    rows = []
    for row in group.rows:
        pairs = zip(row["cosine_steps"], row["cosine_bound"], strict=True)
        rows.append(row | {"cosine_bound": [None if step in vacuous else bound for step, bound in pairs]})
    return replace(group, rows=rows)


# --- every trial ------------------------------------------------------------------------------------------------------


def _sensitivity(results: SuiteResults) -> FigureSection:
    """The effect of the clip parameter: every trial on all test seeds."""

    def clip(group: RunGroup, key: str) -> Estimate | None:
        found = results.clipping(group)
        return None if found is None else getattr(found, key)

    wanted: list[tuple[str, str, Callable[[RunGroup], Estimate | None], bool]] = [
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
                lines.append(line_of(results, method, x, [value(g) for g in trials], dots=True, whiskers=True))
            lines = [line for line in lines if any(y is not None for y in line.y)]
            if lines:
                title = f"{what} by clip parameter – {name}"
                svg = charts.line(
                    title, ends(lines, percent if share else short), lines, "clip parameter", y_label, zero=False,
                    top=1.0 if share else None, percent_axis=share, log_x=True, **SIZE,
                )  # fmt: skip
                plots.append(Plot(title, svg))
    lead = (
        "Each method's own parameter, on a logarithmic axis. Every trial is run with all test seeds: nothing is chosen."
    )
    return FigureSection("sensitivity", "Sensitivity to the clip parameter", lead, plots)


# --- lines ------------------------------------------------------------------------------------------------------------


def line_of(results: SuiteResults, label: str, x: Sequence[float] | range, values: Estimates, **options: Any) -> Series:
    """A line in the colour of its method, with its interval."""
    return Series(
        label,
        list(x),
        [v and v.value for v in values],
        [v and v.low for v in values],
        [v and v.high for v in values],
        colour=_colour(results, label),
        dashed=_dashed(results, label),
        **options,
    )


def _colour(results: SuiteResults, label: str) -> int:
    return colour_of(results.methods.index(label))


def _dashed(results: SuiteResults, label: str) -> bool:
    """Whether another method already has this colour; its line is then dashed."""
    return results.methods.index(label) >= COLOURS


def ends(lines: Sequence[Series], form: Callable[[float | None], str]) -> str:
    """The first and the last value of every line, as the description for screen readers."""
    known = [(line.label, [y for y in line.y if y is not None]) for line in lines]
    return "; ".join(f"{label} from {form(y[0])} to {form(y[-1])}" for label, y in known if y) + "."
