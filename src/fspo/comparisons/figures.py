"""The page of a comparison and its figures: one line per method, one chart per task and setting.

The page is one HTML file that opens from disk and requests nothing from any other machine.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from fspo import objectives
from fspo.comparisons.plan import Row
from fspo.comparisons.statistics import Estimate, RunGroup, SuiteResults, curve, mean_gain
from fspo.comparisons.suite import Suite
from fspo.comparisons.tables import ENDPOINT_NAMES, details, notes, overview
from fspo.files import replace_file
from fspo.pages import charts, document
from fspo.pages.charts import Dot, Series
from fspo.pages.document import COLOURS, Plot, Section, Table, grid
from fspo.text import percent

SIZE: dict[str, Any] = {"width": 440, "height": 320}  # on a phone its letters are still read


def write(rows: Sequence[Row], suite: Suite, path: str | Path) -> Path:
    """Write the page."""
    return replace_file(path, render(rows, suite))


def render(rows: Sequence[Row], suite: Suite) -> str:
    """The page as text."""
    results = SuiteResults(rows, suite)
    sections = [_tables("overview", "Overview", overview(results), notes(results))]
    sections += [Section(f.id, f.title, grid(f.plots), f.lead) for f in figure_sections(results)]
    sections.append(_tables("tables", "Every task", details(results)))
    return document.document(
        title=f"{suite.title} – fspo compare",
        heading=suite.title,
        lead="Methods compared",
        main=document.sections(sections),
        footer="Written by fspo compare from results.parquet.",
        links=sections,
    )


def _tables(name: str, title: str, tables: Sequence[Table], sentences: Sequence[str] = ()) -> Section:
    return Section(name, title, document.render("tables.html", sentences=sentences, tables=tables))


def plots(rows: Sequence[Row], suite: Suite) -> list[Plot]:
    """Every figure of the page."""
    return [plot for section in figure_sections(SuiteResults(rows, suite)) for plot in section.plots]


class FigureSection(NamedTuple):
    """A section of the page and its figures."""

    id: str
    title: str
    lead: str
    plots: list[Plot]


def figure_sections(results: SuiteResults) -> list[FigureSection]:
    """The sections of the page that have a figure."""

    def section(
        id: str, title: str, lead: str, draw: Callable[[SuiteResults, str, list[RunGroup]], Plot | None]
    ) -> FigureSection:
        """One figure per place."""
        drawn = [draw(results, f"{title} – {name}", results.at(place)) for place, name in results.places.items()]
        return FigureSection(id, title, lead, [plot for plot in drawn if plot is not None])

    sections = [
        _summary(results),
        section("accuracy", "Held-out accuracy", "Means. A run that failed keeps its last accuracy.", _accuracy),
        section("clipping", "Clip rate against length", "Pooled over seeds, with Wilson's intervals.", _by_length),
    ]
    return [section for section in sections if section.plots]


def _summary(results: SuiteResults) -> FigureSection:
    endpoint = results.suite.endpoint
    drawn = []
    for (kind, part), setting in itertools.product(results.parts.items(), results.settings):
        where = f" – {setting}" * (len(results.suite.settings) > 1) + f" – {kind}tasks" * bool(kind)
        means = {method: mean_gain(results.of(method, setting, part), endpoint) for method in results.methods}
        measure = ENDPOINT_NAMES[endpoint].removesuffix(", %")
        drawn.append(_dots(results, f"{measure[0].upper()}{measure[1:]}, mean over tasks{where}", means, "gain"))
    for place, name in results.places.items():
        finals = {group.method: group.mean("final") for group in results.at(place)}
        values = {method: finals.get(method) for method in results.methods}
        drawn.append(_dots(results, f"Final accuracy – {name}", values, "accuracy"))
    lead = "Intervals are over warm starts, or over seeds if there is only one. Axes need not start at 0."
    return FigureSection("summary", "Summary", lead, [plot for plot in drawn if plot is not None])


def _dots(results: SuiteResults, title: str, values: dict[str, Estimate | None], x_label: str) -> Plot | None:
    """One row per method, and a line at the reference."""
    if all(value is None for value in values.values()):
        return None
    own = values.get(results.suite.reference)
    line = None if own is None else (results.suite.reference, own.value)
    rows = []
    for method, value in values.items():
        extent = None if value is None or value.low is None or value.high is None else (value.low, value.high)
        rows.append(Dot(method, value and value.value, extent, *_look(results, method)))
    described = "; ".join(f"{row.label}: {'no value' if row.value is None else percent(row.value)}" for row in rows)
    return Plot(title, charts.dots(title, f"{described}.", rows, x_label, reference=line, width=SIZE["width"]))


def _accuracy(results: SuiteResults, title: str, groups: list[RunGroup]) -> Plot | None:
    """The curves of methods over training."""
    lines = [_line(results, g.method, *curve(g, "eval_steps", "eval_accuracy", hold=True)) for g in groups]
    return _drawn(title, lines, "step", "accuracy", top=1.0, zero=False)


def _by_length(results: SuiteResults, title: str, groups: list[RunGroup]) -> Plot | None:
    lines = []
    for group in groups:
        clipped = results.clipping(group)
        if clipped is not None:
            values = [Estimate(b.clip_rate, *b.clip_interval) for b in clipped.report.bins]
            lines.append(replace(_line(results, group.method, clipped.middles, values), dots=True))
    return _drawn(title, lines, "length (tokens)", "clip rate")


def _drawn(title: str, lines: Sequence[Series], x_label: str, y_label: str, **options: Any) -> Plot | None:
    """A figure of rates, described to screen readers by the first and the last value of every line."""
    lines = [line for line in lines if line.x]
    if not lines:
        return None
    known = [(line.label, [y for y in line.y if y is not None]) for line in lines]
    ends = "; ".join(f"{label} from {percent(y[0])} to {percent(y[-1])}" for label, y in known if y) + "."
    return Plot(title, charts.line(title, ends, lines, x_label, y_label, percent_axis=True, **options, **SIZE))


def _line(results: SuiteResults, method: str, x: Sequence[float] | range, values: Sequence[Estimate | None]) -> Series:
    """A line in the colour of its method, with its interval."""
    colour, dashed = _look(results, method)
    return Series(
        method,
        list(x),
        [v and v.value for v in values],
        [v and v.low for v in values],
        [v and v.high for v in values],
        colour=colour,
        dashed=dashed,
    )


def _look(results: SuiteResults, method: str) -> tuple[int, bool]:
    """The colour of a method, its objective's if no method before it has that, and whether its lines are dashed."""
    looks: dict[str, tuple[int, bool]] = {}
    for name, values in results.suite.methods.items():
        dashed = len(looks) >= COLOURS
        taken = {colour for colour, other in looks.values() if other == dashed}
        own: int = objectives.get_class(values.objective["name"]).color
        free = set(range(1, COLOURS + 1)) - taken
        looks[name] = own if own in free else min(free, default=own), dashed
    return looks[method]
