"""Tables and figures of who gains: by difficulty, by length, and in the features of the answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from fspo.comparisons.gains import REACHED, best, feature, feature_names, gains, gradient, rollouts_until
from fspo.comparisons.seed_statistics import Estimate, RunGroup, mean_of
from fspo.comparisons.suite_results import SuiteResults
from fspo.comparisons.views.figures import SIZE, FigureSection, ends, line_of, over_steps
from fspo.pages import charts
from fspo.pages.charts import Series
from fspo.pages.document import Plot, Table
from fspo.text import percent, short

__all__ = ["gain_sections", "gain_tables"]

NONE = "–"
_SHARE = f"{REACHED:.0%}".replace("%", " %")


def gain_tables(results: SuiteResults) -> list[Table]:
    """The tables that the results have the columns for."""
    places = results.places.items()
    found = [_gain_table(name, results.at(place)) for place, name in places]
    found += [_speed_table(results), _norm_table(results)]
    found += [_gradient_table(name, results.at(place)) for place, name in places]
    found += [_feature_table(name, results.at(place)) for place, name in places]
    return [table for table in found if table.rows]


def _gain_table(place: str, groups: Sequence[RunGroup]) -> Table:
    known = [(group.label, found) for group in groups if (found := gains(group)) is not None]
    most = max((len(found.bins) for _, found in known), default=0)
    rows = []
    for label, found in known:
        cells = [points(b.gain) for b in found.bins]
        cells += [""] * (most - len(cells))
        rows.append([label, points(found.mean), *cells, number(found.worst_over_mean)])
    bins = max((found.bins for _, found in known), key=len, default=[])
    head = ["method", "all", *(f"{b.low:.2f} to {b.high:.2f}" for b in bins), "worst / mean"]
    return Table(f"Gain in accuracy by difficulty, end minus start, points – {place}", head, rows)


def _speed_table(results: SuiteResults) -> Table:
    """Only where runs have the columns of this module: older results keep their tables."""
    places = {place: name for place, name in results.places.items() if any(map(gains, results.at(place)))}
    levels = {place: REACHED * best(results.at(place)) for place in places}
    rows = []
    for label in results.labels if places else []:
        cells = []
        for place in places:
            group = next((g for g in results.at(place) if g.label == label), None)
            if group is None:
                cells.append(NONE)
                continue
            until, reached = rollouts_until(group, levels[place])
            missed = f", {reached} of {len(group.rows)} runs" * (reached < len(group.rows))
            cells.append(number(until) + missed)
        rows.append([label, *cells])
    return Table(f"Rollouts until {_SHARE} of the best accuracy of any method", ["method", *places.values()], rows)


def _norm_table(results: SuiteResults) -> Table:
    rows = []
    for setting in results.settings:
        for label in results.labels:
            runs = [row for group in results.of(label, setting) for row in group.rows if row["norm_clipped"]]
            norms, clipped = (_run_means(runs, key) for key in ("grad_norm", "norm_clipped"))
            if norms and clipped:
                where = f"{setting}: " * (len(results.suite.settings) > 1)
                low, high = float(np.min(norms)), float(np.max(norms))
                rows.append([
                    f"{where}{label}", number(mean_of(norms)), f"{short(low)} to {short(high)}",
                    points(mean_of(clipped)),
                ])  # fmt: skip
    head = ["method", "mean gradient norm before clipping", "of single runs", "updates whose norm was clipped, %"]
    return Table("Gradient norms", head, rows)


def _run_means(rows: Sequence[dict[str, Any]], key: str) -> list[float]:
    """The mean over steps of a curve, for each run that has it."""
    curves = [[value for value in row[key] if value is not None] for row in rows]
    return [float(np.mean(curve)) for curve in curves if curve]


def _gradient_table(place: str, groups: Sequence[RunGroup]) -> Table:
    known = [(group.label, found) for group in groups if (found := gradient(group))]
    rows = []
    for label, bins in known:
        ends_of = [f"{points(b.true)} → {points(b.clipped)}" for b in (bins[0], bins[-1])]
        spread = sum(abs(b.clipped.value - b.true.value) for b in bins) / 2
        rows.append([label, *ends_of, f"{100 * spread:.1f}"])
    head = ["method", "shortest bin", "longest bin", "moved between bins, points"]
    return Table(f"Share of the gradient by length, unclipped update → the method's own, % – {place}", head, rows)


def _feature_table(place: str, groups: Sequence[RunGroup]) -> Table:
    rows = []
    for name in feature_names(groups):
        for group in groups:
            found = feature(group, name)
            if found is None:
                continue
            missed = f", {found.reached} of {len(group.rows)} runs" * (found.reached < len(group.rows))
            rows.append([
                f"{name}: {group.label}", points(found.values[0]), points(found.values[-1]),
                NONE if found.optimum is None else f"{100 * found.optimum:.1f}",
                NONE if found.rollouts is None else number(found.rollouts) + missed,
            ])  # fmt: skip
    head = ["feature: method", "start, %", "end, %", "optimum, %", f"rollouts until {_SHARE} of the way"]
    return Table(f"Features of held-out answers – {place}", head, rows)


def gain_sections(results: SuiteResults) -> list[FigureSection]:
    """The sections of the page that the results have the columns for."""
    if results.suite.tuning.all:
        return []
    gained, shared, described, normed = [], [], [], []
    for place, name in results.places.items():
        groups = results.at(place)
        gained.append(_gain_figure(results, f"Gain by difficulty – {name}", groups))
        shared.append(_gradient_figure(results, f"Share of the gradient by length – {name}", groups))
        for each in feature_names(groups):
            described.append(_feature_figure(results, f"{each} – {name}", groups, each))
        with_norms = [g for g in groups if any(row["norm_clipped"] for row in g.rows)]
        normed.append(over_steps(results, f"Gradient norm – {name}", with_norms, "steps", "grad_norm", "norm"))
    gradient_lead = (
        "Dotted: the update without clipping, exp(S) A summed over tokens. Lines: the method's own update. Shares of "
        "the sum of the bins' gradient norms, over the last update of the measured steps."
    )
    sections = [
        FigureSection(
            "gains", "Gain by difficulty", "Held-out accuracy at the end minus that at the start.", _drawn(gained)
        ),
        FigureSection("gradient", "Share of the gradient by length", gradient_lead, _drawn(shared)),
        FigureSection(
            "features", "Features of the answers", "Held-out answers. Dotted: the optimum.", _drawn(described)
        ),
        FigureSection("norms", "Gradient norm", "Mean norm of a step's updates before clipping.", _drawn(normed)),
    ]
    return [section for section in sections if section.plots]


def _drawn(plots: Sequence[Plot | None]) -> list[Plot]:
    return [plot for plot in plots if plot is not None]


def _gain_figure(results: SuiteResults, title: str, groups: Sequence[RunGroup]) -> Plot | None:
    lines: list[Series] = []
    names: list[str] = []
    for group in groups:
        found = gains(group)
        if found is not None:
            names = max(names, [f"{b.low:.2f} to {b.high:.2f}" for b in found.bins], key=len)
            values = [b.gain for b in found.bins]
            lines.append(line_of(results, group.label, range(len(values)), values, dots=True, whiskers=True))
    if not lines:
        return None
    svg = charts.line(
        title, ends(lines, percent), lines, "difficulty", "gain in accuracy", percent_axis=True, x_names=names, **SIZE
    )  # fmt: skip
    return Plot(title, svg)


def _gradient_figure(results: SuiteResults, title: str, groups: Sequence[RunGroup]) -> Plot | None:
    lines, models = [], []
    for group in groups:
        bins = gradient(group)
        if bins:
            x = [b.length for b in bins]
            lines.append(line_of(results, group.label, x, [b.clipped for b in bins], dots=True, whiskers=True))
            true = line_of(results, group.label, x, [b.true for b in bins])
            models.append(replace(true, label="", low=None, high=None, dotted=True))
    if not lines:
        return None
    svg = charts.line(
        title, ends(lines, percent), [*lines, *models], "length (tokens)", "share of the gradient", percent_axis=True,
        log_x=True, **SIZE,
    )  # fmt: skip
    return Plot(title, svg)


def _feature_figure(results: SuiteResults, title: str, groups: Sequence[RunGroup], name: str) -> Plot | None:
    found = {group.label: each for group in groups if (each := feature(group, name)) is not None}
    if not found:
        return None
    lines = [line_of(results, label, each.steps, each.values) for label, each in found.items()]
    described = ends(lines, percent)
    one = next(iter(found.values()))
    if one.optimum is not None:
        x = [one.steps[0], one.steps[-1]]
        lines.append(Series("", x, [one.optimum, one.optimum], colour=1, dotted=True))
    return Plot(title, charts.line(title, described, lines, "step", name, top=1.0, percent_axis=True, **SIZE))


def points(value: Estimate | None) -> str:
    """In points or percent, without the sign."""
    return _written(value, 100.0, ".1f")


def number(value: Estimate | None) -> str:
    """An estimate with its interval, as text."""
    return _written(value, 1.0, ".3g")


def _written(value: Estimate | None, factor: float, form: str) -> str:
    if value is None:
        return NONE
    shown = [f"{factor * v:{form}}".replace("-", "−") for v in value if v is not None]
    return shown[0] if len(shown) == 1 else f"{shown[0]} ({shown[1]} to {shown[2]})"
