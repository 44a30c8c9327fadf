"""The tables and the page of a comparison: one chart per task and setting, one line per method."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from fspo import objectives
from fspo.comparisons import statistics
from fspo.comparisons.plan import NO_TRIAL, Row
from fspo.comparisons.statistics import Estimate, RunGroup, SuiteResults
from fspo.comparisons.suite import Suite
from fspo.files import replace_file
from fspo.pages import charts, document
from fspo.pages.charts import Series
from fspo.pages.document import COLOURS, Plot, Section, Table
from fspo.text import percent as in_words
from fspo.text import short, visible

SIZE: dict[str, Any] = {"width": 440, "height": 320}  # of a chart: on a phone its letters are still read
NONE = "–"
# Units for a bootstrap interval of 95 %: the true mean lies between the smallest and the largest of n values, and so
# between any resampled means, in only 1 - 2^(1 - n) of cases.
ENOUGH = 5
ENDPOINT_NAMES = {"gain": "normalised gain, %", "weaker end": "smaller normalised gain of the two end quarters, %"}


def text(rows: list[Row], suite: Suite) -> str:
    """All tables as Markdown."""
    results = SuiteResults(rows, suite)
    parts = [f"## {suite.title}", *notes(results), *(t.markdown() for t in overview(results) + details(results))]
    return visible("\n\n".join(parts) + "\n")


def notes(results: SuiteResults) -> list[str]:
    """What the tables are based on: the number of runs and starts, failed runs, and the version of the code."""
    suite, counts = results.suite, [len(group.rows) for group in results.groups]
    if not counts:
        return ["No test run is finished."]
    many = f"{counts[0]}" if len(set(counts)) == 1 else f"{min(counts)} to {max(counts)}"
    wanted = len(suite.all_tasks) * len(suite.settings) * len(suite.methods)
    missing = f" {wanted - len(counts)} of {wanted} combinations have no finished run yet." * (len(counts) < wanted)
    sentences = [f"Hypothesis: {suite.hypothesis.strip()}"] if suite.hypothesis else []
    if suite.confirm:
        sentences.append(f"No range was tuned on the confirming tasks: {', '.join(suite.confirm)}.")
    over = "warm starts" if suite.warm_starts > 1 else "seeds"
    sentences.append(
        f"{many} test seed{'s' * (max(counts) > 1)} per method, task and setting"
        + f", from {suite.warm_starts} warm starts" * (suite.warm_starts > 1)
        + f".{missing} In brackets: 95 % intervals over {over}, Student's for means, else bootstraps."
    )
    if 1 < min(len(set(group.units)) for group in results.groups) < ENOUGH:
        sentences.append(
            f"With fewer than {ENOUGH} {over} a bootstrap (LRE, flatness, clip rate) covers less than 95 %."
        )
    failed = sum(row["status"] == "failed" for row in results.rows)
    if failed:
        sentences.append(
            f"{failed} runs failed (too many updates had no finite gradient) and count with their last evaluation."
        )
    codes = {f"fspo {row['version']}" + f" at {row['commit'][:10]}" * bool(row["commit"]) for row in results.rows}
    return [*sentences, f"Code: {', '.join(sorted(codes))}."]


def details(results: SuiteResults) -> list[Table]:
    """Each task and setting: outcomes, gains by difficulty, features."""
    names = results.task_settings
    tables = [_outcomes(results, key) for key in names]
    tables += [make(name, results.at(key)) for make in (_gains, _features) for key, name in names.items()]
    return [table for table in tables if table.rows]


def pairs(results: SuiteResults, one: str, other: str) -> Table:
    """Two methods, seed by seed, in every setting: over the tasks of each part, and on each task."""
    for name in (one, other):
        if name not in results.methods:
            known = ", ".join(map(repr, results.methods))
            raise ValueError(f"{name!r} is not a method with runs, and two are needed, as in A,B; known: {known}")
    rows, endpoints = [], [str(results.suite.endpoint)]
    if results.suite.endpoint == "weaker end":
        endpoints += ["easiest quarter", "hardest quarter"]  # accuracy gained, in points
    for setting, (kind, part) in itertools.product(results.settings, results.parts.items()):
        together = {f"{kind}tasks": part} if len(part) > 1 else {}
        for name, tasks in (together | {task: [task] for task in part}).items():
            ours, theirs = (results.of(method, setting, tasks) for method in (one, other))
            leads = [statistics.lead(ours, theirs, endpoint) for endpoint in endpoints]
            if any(leads):
                figures = ["–" if lead is None else percent(lead.difference, signed=True) for lead in leads]
                won = "–" if leads[0] is None else f"{leads[0].won:g} of {leads[0].pairs}"
                rows.append([f"{setting}, {name}", *figures, won])
    head = ["tasks", f"{one} ahead of {other}: {ENDPOINT_NAMES[endpoints[0]]}", *endpoints[1:], "pairs won"]
    return Table(f"{one} and {other}", head, rows)


def overview(results: SuiteResults) -> list[Table]:
    """All tasks together, one table per setting and per kind of tasks: the reference against every other method."""
    reference, endpoint, tables = results.suite.reference, results.suite.endpoint, []
    for (kind, part), setting in itertools.product(results.parts.items(), results.settings):
        ours = results.of(reference, setting, part)
        rows = []
        for method in results.methods:
            theirs = results.of(method, setting, part)
            if not theirs:
                continue
            clips = [group.clipping for group in theirs if group.clipping is not None]
            ahead = statistics.lead(ours, theirs, endpoint) if method != reference else None
            rows.append([
                method,
                percent(statistics.mean_gain(theirs, endpoint)),
                NONE if ahead is None else percent(ahead.difference, signed=True),
                NONE if ahead is None else f"{ahead.won:g} of {ahead.pairs}",
                _collapsed(theirs),
                number(statistics.mean_lre(clips)) if clips else NONE,
                percent(statistics.mean_flatness(clips)) if clips else NONE,
            ])  # fmt: skip
        where = f", {setting}" * (len(results.suite.settings) > 1)
        tasks = f"{len(part)} {kind}task" + "s" * (len(part) > 1)
        head = ["method", ENDPOINT_NAMES[endpoint], f"{reference} ahead by, points", f"pairs won by {reference}",
                "collapsed", "LRE", "flatness, points"]  # fmt: skip
        tables.append(Table(f"Across {tasks}{where}", head, rows))
    return tables


def _outcomes(results: SuiteResults, task_setting: tuple[str, str]) -> Table:
    rows = []
    for group in results.at(task_setting):
        c = group.clipping
        rows.append([
            group.method,
            f"{len(group.rows)}",
            percent(group.mean("final")),
            percent(group.mean(statistics.gain)),
            percent(group.mean("auc")),
            percent(group.mean("worst")),
            _collapsed([group]),
            f"{sum(row['spikes'] or 0 for row in group.rows) / len(group.rows):.1f}",
            number(group.mean(lambda r: r["length_last"] / r["length_first"] if r["length_first"] else None)),
            NONE if c is None else percent(c.clip_rate),
            NONE if c is None else number(c.lre),
            NONE if c is None else percent(c.flatness),
            _parameters(group, results.suite),
        ])  # fmt: skip
    head = ["method", "seeds", "final accuracy, %", "normalised gain, %", "area under curve, %", "worst length bin, %",
            "collapsed", "spikes", "length, end / start", "clip rate, %", "LRE", "flatness, points",
            "parameters"]  # fmt: skip
    return Table(results.task_settings[task_setting], head, rows)


def _gains(name: str, groups: list[RunGroup]) -> Table:
    known = [(group.method, bins) for group in groups if (bins := statistics.gains(group))]
    widest = max((bins for _, bins in known), key=len, default=[])
    head = ["method", *(f"{low:.2f} to {high:.2f}" for low, high, _ in widest)]
    rows = [[method, *(percent(value) for *_, value in bins)] for method, bins in known]
    return Table(f"Gain in accuracy by difficulty, end minus start, points – {name}", head, rows)


def _features(name: str, groups: list[RunGroup]) -> Table:
    rows = []
    for feature, group in itertools.product(statistics.features(groups), groups):
        optimum = json.loads(group.rows[0]["optimum"] or "{}").get(feature)
        ends = [percent(statistics.feature(group, feature, at)) for at in (0, -1)]
        rows.append([f"{feature}: {group.method}", *ends, NONE if optimum is None else percent(Estimate(optimum))])
    head = ["feature: method", "start, %", "end, %", "optimum, %"]
    return Table(f"Features of held-out answers – {name}", head, rows)


def _parameters(group: RunGroup, suite: Suite) -> str:
    """The parameters that differ from their defaults, those that the trial sets, and the trial's learning rate."""
    row = group.rows[0]
    values = json.loads(row["objective"])
    fields = objectives.get_class(suite.methods[group.method].objective["name"]).model_fields
    tried, lr = ({}, 1.0) if row["trial"] == NO_TRIAL else suite.trials(group.setting, group.method)[row["trial"]]
    own = {k: v for k, v in values.items() if k in fields and (v != fields[k].default or k in tried)}
    own |= {"lr": f"{lr:g} x"} if len(suite.tuning.lr_factors) > 1 else {}
    return " ".join(f"{k}={_plain(v)}" for k, v in own.items()) or NONE


def _plain(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else value if isinstance(value, str) else json.dumps(value)


def _collapsed(groups: Sequence[RunGroup]) -> str:
    rows = [row for group in groups for row in group.rows]
    return f"{sum(bool(row['collapsed']) for row in rows)} of {len(rows)}"


def percent(value: Estimate | None, signed: bool = False) -> str:
    """In percent without the sign, which is in the head of the column."""
    return _written(value, lambda v: f"{100 * v:{'+' if signed else ''}.1f}".replace("-", "−"))


def number(value: Estimate | None) -> str:
    """An estimate with its interval."""
    return _written(value, short)


def _written(value: Estimate | None, form: Callable[[float], str]) -> str:
    if value is None:
        return NONE
    if value.low is None or value.high is None:
        return form(value.value)
    return f"{form(value.value)} ({form(value.low)} to {form(value.high)})"


# --- the page ---------------------------------------------------------------------------------------------------------


def write(rows: Sequence[Row], suite: Suite, path: str | Path) -> Path:
    """Write the page."""
    results = SuiteResults(rows, suite)
    sections = [_tables("overview", "Overview", overview(results), notes(results))]
    sections += _figures(results)
    sections.append(_tables("tables", "Every task", details(results)))
    html = document.document(
        title=f"{suite.title} – fspo compare",
        heading=suite.title,
        lead="Methods compared",
        main=document.render("sections.html", parts=sections),
        footer="Written by fspo compare from results.parquet.",
        links=[section.id for section in sections],
    )
    return replace_file(path, html)


def plots(rows: Sequence[Row], suite: Suite) -> list[Plot]:
    """Every figure of the page."""
    return [plot for section in _figures(SuiteResults(rows, suite)) for plot in section.plots or () if plot]


def _tables(name: str, title: str, tables: Sequence[Table], sentences: Sequence[str] = ()) -> Section:
    return Section(name, title, document.render("tables.html", sentences=sentences, tables=tables))


def _figures(results: SuiteResults) -> list[Section]:
    """The sections of the page that have a figure."""
    endpoint = results.suite.endpoint
    measure = ENDPOINT_NAMES[endpoint].removesuffix(", %").capitalize()
    summary, accuracy, clipping = [], [], []
    for (kind, part), setting in itertools.product(results.parts.items(), results.settings):
        where = f" – {setting}" * (len(results.suite.settings) > 1) + f" – {kind}tasks" * bool(kind)
        means = {
            method: statistics.mean_gain(results.of(method, setting, part), endpoint) for method in results.methods
        }
        summary.append(_dots(results, f"{measure}, mean over tasks{where}", means))
    for task_setting, name in results.task_settings.items():
        groups = results.at(task_setting)
        curves = [_line(results, group.method, *statistics.accuracy_curve(group)) for group in groups]
        accuracy.append(_chart(f"Held-out accuracy – {name}", curves, "step", "accuracy", top=1.0, zero=False))
        rates = [_by_length(results, group) for group in groups if group.clipping is not None]
        clipping.append(_chart(f"Clip rate against length – {name}", rates, "length (tokens)", "clip rate"))
    intervals = "Intervals are over warm starts, or over seeds if there is only one. Axes need not start at 0."
    sections = [
        Section("summary", "Summary", lead=intervals, plots=summary),
        Section("accuracy", "Held-out accuracy", lead="Means. A failed run keeps its last accuracy.", plots=accuracy),
        Section("clipping", "Clip rate against length", lead="Pooled over seeds, Wilson's intervals.", plots=clipping),
    ]
    return [section for section in sections if any(section.plots or ())]


def _dots(results: SuiteResults, title: str, values: dict[str, Estimate | None]) -> Plot | None:
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
        f"{name}: {'no value' if value is None else in_words(value.value)}" for name, value in values.items()
    )
    svg = charts.line(title, f"{said}.", lines, "", "gain", zero=False, percent_axis=True, x_names=names, **SIZE)
    return Plot(title, svg)


def _chart(title: str, lines: Sequence[Series], x_label: str, y_label: str, **options: Any) -> Plot | None:
    """A figure of rates, described to screen readers by the first and the last value of every line."""
    if not lines:
        return None
    known = [(line.label, [y for y in line.y if y is not None]) for line in lines]
    ends = "; ".join(f"{label} from {in_words(y[0])} to {in_words(y[-1])}" for label, y in known if y) + "."
    return Plot(title, charts.line(title, ends, lines, x_label, y_label, percent_axis=True, **options, **SIZE))


def _by_length(results: SuiteResults, group: RunGroup) -> Series:
    assert group.clipping is not None
    values = [Estimate(b.clip_rate, *b.clip_interval) for b in group.clipping.report.bins]
    return replace(_line(results, group.method, group.clipping.middles, values), dots=True)


def _line(results: SuiteResults, method: str, x: Sequence[float], values: Sequence[Estimate | None]) -> Series:
    """A line in the colour of its method, with its interval."""
    colour, dashed = _look(results, method)
    y, low, high = ([v and v[k] for v in values] for k in range(3))
    return Series(method, list(x), y, low, high, colour=colour, dashed=dashed)


def _look(results: SuiteResults, method: str) -> tuple[int, bool]:
    """A method's colour, its objective's own unless an earlier method uses it, and whether its lines are dashed."""
    looks: dict[str, tuple[int, bool]] = {}
    for name, values in results.suite.methods.items():
        dashed = len(looks) >= COLOURS
        taken = {colour for colour, other in looks.values() if other == dashed}
        own: int = objectives.get_class(values.objective["name"]).colour
        free = set(range(1, COLOURS + 1)) - taken
        looks[name] = own if own in free else min(free, default=own), dashed
    return looks[method]
