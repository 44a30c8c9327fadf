"""The page of a comparison and its figures: one line per method, one chart per task and setting.

The page is one HTML file that opens from disk and requests nothing from any other machine.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from fspo import objectives
from fspo.comparisons.plan import Row
from fspo.comparisons.statistics import Estimate, RunGroup, SuiteResults, curve, mean_gain
from fspo.comparisons.suite import Suite
from fspo.comparisons.tables import ENDPOINT_NAMES, details, notes, overview
from fspo.files import replace_file
from fspo.pages import charts, document
from fspo.pages.charts import Series
from fspo.pages.document import COLOURS, Plot, Section, Table
from fspo.text import percent

SIZE: dict[str, Any] = {"width": 440, "height": 320}  # on a phone its letters are still read


def write(rows: Sequence[Row], suite: Suite, path: str | Path) -> Path:
    """Write the page."""
    return replace_file(path, render(rows, suite))


def render(rows: Sequence[Row], suite: Suite) -> str:
    """The page as text."""
    results = SuiteResults(rows, suite)
    sections = [_tables("overview", "Overview", overview(results), notes(results))]
    sections += figure_sections(results)
    sections.append(_tables("tables", "Every task", details(results)))
    return document.document(
        title=f"{suite.title} – fspo compare",
        heading=suite.title,
        lead="Methods compared",
        main=document.render("sections.html", parts=sections),
        footer="Written by fspo compare from results.parquet.",
        links=[section.id for section in sections],
    )


def _tables(name: str, title: str, tables: Sequence[Table], sentences: Sequence[str] = ()) -> Section:
    return Section(name, title, document.render("tables.html", sentences=sentences, tables=tables))


def plots(rows: Sequence[Row], suite: Suite) -> list[Plot]:
    """Every figure of the page."""
    return [plot for section in figure_sections(SuiteResults(rows, suite)) for plot in section.plots or () if plot]


def figure_sections(results: SuiteResults) -> list[Section]:
    """The sections of the page that have a figure."""

    def each(title: str, draw: Callable[[SuiteResults, str, list[RunGroup]], Plot | None]) -> list[Plot | None]:
        """One figure per place."""
        return [draw(results, f"{title} – {name}", results.at(place)) for place, name in results.places.items()]

    accuracy, clipping = each("Held-out accuracy", _accuracy), each("Clip rate against length", _by_length)
    sections = [
        _summary(results),
        Section("accuracy", "Held-out accuracy", lead="Means. A failed run keeps its last accuracy.", plots=accuracy),
        Section("clipping", "Clip rate against length", lead="Pooled over seeds, Wilson's intervals.", plots=clipping),
    ]
    return [section for section in sections if any(section.plots or ())]


def _summary(results: SuiteResults) -> Section:
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
    return Section("summary", "Summary", lead=lead, plots=drawn)


def _dots(results: SuiteResults, title: str, values: dict[str, Estimate | None], y_label: str) -> Plot | None:
    """One dot per method, and a line at the reference."""
    if all(value is None for value in values.values()):
        return None
    names = list(values)
    lines = [replace(_line(results, name, [k + 0.5], [values[name]]), dots=True) for k, name in enumerate(names)]
    reference = results.suite.reference
    own = values.get(reference)
    if own is not None:
        colour, _ = _look(results, reference)
        lines.append(Series("", [*range(len(names) + 1)], [own.value] * (len(names) + 1), colour=colour, dashed=True))
    said = "; ".join(
        f"{name}: {'no value' if value is None else percent(value.value)}" for name, value in values.items()
    )
    svg = charts.line(title, f"{said}.", lines, "", y_label, zero=False, percent_axis=True, x_names=names, **SIZE)
    return Plot(title, svg)


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
