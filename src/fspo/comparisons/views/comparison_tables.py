"""The tables of a comparison: for every task, across tasks, across settings and across trials."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable, Iterable
from typing import Any

from fspo import objectives
from fspo.comparisons.outcome import ATTRIBUTES, CLIP_RATE
from fspo.comparisons.plan import NO_TRIAL, Row
from fspo.comparisons.pooled_clipping import flatness_ratio, law, mean_flatness, mean_lre, objective_class
from fspo.comparisons.seed_statistics import Estimate, RunGroup, improvement, iqm, mean_of, summary
from fspo.comparisons.suite import Suite
from fspo.comparisons.suite_results import SuiteResults
from fspo.comparisons.views.gain_views import gain_tables
from fspo.pages.document import Table
from fspo.text import short, visible

__all__ = ["details", "notes", "overview", "text"]

NONE = "–"
# Seeds for a 95 % interval. A resampled mean lies between the smallest and the largest of the n values, and the true
# mean lies between them in only 1 - 2^(1 - n) of cases.
ENOUGH = 5
INTERVALS = "In brackets: 95 % bootstrap intervals over seeds."
_RATE = f"{CLIP_RATE:.0%}".replace("%", " %")
WIDTHS = ("sqrt(L), FSPO", "L, GSPO", "fixed, RLOO")  # of objectives.LENGTH_LAWS


def text(rows: list[Row], suite: Suite) -> str:
    """All tables as Markdown."""
    results = SuiteResults(rows, suite)
    parts = [f"## {suite.title}", *notes(results), *(t.markdown() for t in [*overview(results), *details(results)])]
    return visible("\n\n".join(parts) + "\n")


def notes(results: SuiteResults) -> list[str]:
    """What the tables are based on: the number of seeds, failed runs, and the version of the code."""
    counts = [len(group.rows) for group in results.groups]
    if not counts:
        return ["No test run is finished."]
    many = f"{counts[0]}" if len(set(counts)) == 1 else f"{min(counts)} to {max(counts)}"
    wanted = len(results.suite.all_tasks) * len(results.suite.settings) * len(results.suite.methods)
    present = len({(g.task, g.setting, g.method) for g in results.groups})
    missing = f" {wanted - present} of {wanted} combinations have no finished run yet." * (present < wanted)
    seeds = f"{many} test seed{'s' * (max(counts) > 1)}"
    found = [f"Hypothesis: {results.suite.hypothesis.strip()}"] if results.suite.hypothesis else []
    if results.suite.confirm:
        found.append(f"Nothing was chosen by the confirming tasks: {', '.join(results.suite.confirm)}.")
    starts = results.suite.warm_starts
    found.append(
        f"{seeds} per method, task and setting" + f", from {starts} warm starts" * (starts > 1)
        + f".{missing} {INTERVALS}"
    )  # fmt: skip
    if 1 < min(counts) < ENOUGH:
        found.append(f"With fewer than {ENOUGH} seeds no bootstrap interval covers 95 %: these are too narrow.")
    failed = sum(row["status"] == "failed" for row in results.rows)
    if failed:
        found.append(
            f"{failed} runs failed (too many updates had no finite gradient) and count with their last evaluation."
        )
    codes = sorted(
        {f"fspo {row['version']}" + f" at {row['commit'][:10]}" * bool(row["commit"]) for row in results.rows}
    )
    if len(codes) > 1:
        found.append(f"These runs were made by different versions of the code: {', '.join(codes)}.")
    else:
        found.append(f"Code: {codes[0]}.")
    return found


def overview(results: SuiteResults) -> list[Table]:
    """All tasks together, by method, by trial and by setting."""
    found = _by_trial(results) if results.suite.tuning.all else _across(results)
    return found + (_by_setting(results) if len(results.settings) > 1 else [])


def details(results: SuiteResults) -> list[Table]:
    """Each task and setting, who gains, the law of S, bands at the same rate, the direction of updates, attributes."""
    found = [_place(results, place) for place in results.places] + gain_tables(results)
    tables = (_laws(results), _same_rate(results), _directions(results), _attributes(results))
    return found + [t for t in tables if t.rows]


def _across(results: SuiteResults) -> list[Table]:
    """One table per setting, and per choosing and confirming tasks: the reference against every other method."""
    reference, found = results.suite.reference, []
    for (kind, part), setting in itertools.product(results.parts.items(), results.settings):
        ours = results.of(reference, setting, part)
        own_clips = results.clippings(reference, setting, part)
        rows = []
        for label in results.labels:
            theirs, clips = results.of(label, setting, part), results.clippings(label, setting, part)
            if not theirs:
                continue
            better = improvement(ours, theirs) if label != reference else None
            ratio = flatness_ratio(clips, own_clips) if clips and own_clips and label != reference else None
            rows.append([
                label,
                _percent(iqm(theirs)),
                NONE if better is None else _number(better.probability),
                NONE if better is None else _percent(better.difference, signed=True),
                NONE if better is None else f"{better.share * better.pairs:g} of {better.pairs}",
                _collapsed(theirs),
                _number(mean_lre(clips)) if clips else NONE,
                _percent(mean_flatness(clips)) if clips else NONE,
                _number(ratio),
            ])  # fmt: skip
        where = f", {setting}" * (len(results.suite.settings) > 1)
        tasks = f"{len(part)} {kind}task" + "s" * (len(part) > 1)
        head = ["method", "IQM of final accuracy, %", f"P({reference} better)", f"{reference} ahead by, points",
                "pairs won", "collapsed", "LRE", "flatness, points", f"flatness / {reference}'s"]  # fmt: skip
        found.append(Table(f"Across {tasks}{where}", head, rows))
    return found


def _by_trial(results: SuiteResults) -> list[Table]:
    """Final accuracy of every trial, the interquartile mean over tasks."""
    found = []
    for setting in results.settings:
        rows = []
        for method in results.methods:
            cells, values = [], []
            for trial in sorted({g.trial for g in results.groups if g.method == method and g.trial is not None}):
                trials = [g for g in results.groups if (g.method, g.trial, g.setting) == (method, trial, setting)]
                value = iqm(trials)
                if value is not None:
                    x = trials[0].rows[0]["x"]
                    cells.append((f"{x:g}: " if x is not None else "") + _percent(value))
                    values.append(value.value)
            if cells:
                rows.append([method, f"{100 * (max(values) - min(values)):.1f}", *cells])
        width = max((len(row) for row in rows), default=2)
        head = ["method", "spread, points", *(f"trial {k + 1}" for k in range(width - 2))]
        where = f", {setting}" * (len(results.suite.settings) > 1)
        rows = [row + [""] * (width - len(row)) for row in rows]
        found.append(Table(f"IQM of final accuracy by clip parameter, %{where}", head, rows))
    return found


def _by_setting(results: SuiteResults) -> list[Table]:
    """Final accuracy by setting: one table per task and, if there are several, one over all."""
    found = []
    for task in [*results.tasks, None] if len(results.tasks) > 1 else results.tasks:
        rows = []
        for label in results.labels:
            cells = []
            for setting in results.settings:
                groups = [g for g in results.of(label, setting) if task in (None, g.task)]
                value = iqm(groups) if task is None else summary(groups[0]).final if groups else None
                collapsed = sum(summary(g).collapsed for g in groups)
                cells.append(_percent(value) + f", {collapsed} collapsed" * bool(collapsed))
            rows.append([label, *cells])
        what = "IQM of final accuracy over tasks" if task is None else f"{task}: final accuracy"
        found.append(Table(f"{what} by setting, %", ["method", *results.settings], rows))
    return found


def _place(results: SuiteResults, place: tuple[str, str]) -> Table:
    rows = []
    for group in results.at(place):
        s, c = summary(group), results.clipping(group)
        rows.append([
            group.label,
            f"{s.seeds}",
            _percent(s.final),
            _percent(s.auc),
            _percent(s.worst),
            _collapsed([group]),
            f"{s.spikes:.1f}",
            _number(s.length_drift),
            NONE if c is None else _percent(c.clip_rate),
            NONE if c is None else _number(c.lre),
            NONE if c is None else _percent(c.flatness),
            _parameters(group, results.suite),
        ])  # fmt: skip
    head = ["method", "seeds", "final accuracy, %", "area under curve, %", "worst length bin, %", "collapsed", "spikes",
            "length, end / start", "clip rate, %", "LRE", "flatness, points", "parameters"]  # fmt: skip
    return Table(results.places[place], head, rows)


def _laws(results: SuiteResults) -> Table:
    rows = []
    for group in results.groups:
        found = law(group)
        if found is not None:
            numbers = [_number(v) for v in (found.mu, found.sigma, found.exponent)]
            rows.append([_runs(results, group), *numbers])
    return Table("S = mu L + sigma L^H Z, over all off-policy responses", ["method", "mu", "sigma", "H"], rows)


def _directions(results: SuiteResults) -> Table:
    """The measured cosine, and how often its bounds are not vacuous, over all tasks of a setting."""
    rows = []
    for setting, label in ((s, label) for s in results.settings for label in results.labels):
        runs = [row for group in results.of(label, setting) for row in group.rows]
        measured = [c for row in runs for c in row["cosine"]]
        if measured:
            shares = [
                _percent(Estimate(sum(b > -1 for row in runs for b in row[key]) / len(measured)))
                for key in ("cosine_bound", "cosine_bound_full")
            ]
            where = f"{setting}: " * (len(results.suite.settings) > 1)
            rows.append([f"{where}{label}", f"{len(measured)}", short(sum(measured) / len(measured)), *shares])
    head = ["method", "measurements", "mean cosine", "non-vacuous bounds, %",
            "non-vacuous bounds with correlation inside bins, %"]  # fmt: skip
    return Table("Cosine between the clipped and the true update", head, rows)


def _same_rate(results: SuiteResults) -> Table:
    """LRE and flatness of three bands on the reference's responses, mean over seeds; where every run measured them."""
    rows = []
    for group in _of_reference(results):
        entries = _entries(group, "length")
        if len(entries) == len(group.rows):
            lre, flatness = (
                [mean_of([e[name][key] for e in entries if name in e]) for name in objectives.LENGTH_LAWS]
                for key in ("lre", "flatness")
            )
            rows.append([_runs(results, group), *map(_number, lre), *map(_percent, flatness)])
    head = ["runs", *(f"LRE: {w}" for w in WIDTHS), *(f"flatness, points: {w}" for w in WIDTHS)]
    return Table(f"Bands of three widths, each clipping {_RATE} of the same responses", head, rows)


def _attributes(results: SuiteResults) -> Table:
    """LRE over attributes other than length, mean over seeds."""
    rows = []
    for group in _of_reference(results):
        for by in ATTRIBUTES:
            entries = _entries(group, by)
            cells = [_number(mean_of([e[kind]["lre"] for e in entries])) for kind in ("own", "pooled", "partition")]
            if entries:
                rows.append([f"{_runs(results, group)}, by {by}", *cells])
    head = ["runs", "the run's own clipping", f"one band at {_RATE}", f"one band per part at {_RATE}"]
    return Table("LRE over attributes other than length, second half of the steps", head, rows)


def _of_reference(results: SuiteResults) -> list[RunGroup]:
    return [group for group in results.groups if group.method == results.suite.reference]


def _entries(group: RunGroup, by: str) -> list[dict[str, Any]]:
    """The measurements of each run over an attribute."""
    return [entry for row in group.rows for entry in json.loads(row["attributes"] or "[]") if entry["by"] == by]


def _runs(results: SuiteResults, group: RunGroup) -> str:
    return f"{results.places[group.task, group.setting]}: {group.label}"


def _parameters(group: RunGroup, suite: Suite) -> str:
    """The parameters that differ from their defaults, and those that the trial sets."""
    row = group.rows[0]
    values = json.loads(row["objective"])
    fields = objective_class(values["name"]).model_fields
    tried = {} if row["trial"] == NO_TRIAL else suite.methods[group.method].trials[row["trial"]]
    own = {k: v for k, v in values.items() if k in fields and (v != fields[k].default or k in tried)}
    return " ".join(f"{k}={_plain(v)}" for k, v in own.items()) or NONE


def _plain(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else value if isinstance(value, str) else json.dumps(value)


def _collapsed(groups: Iterable[RunGroup]) -> str:
    found = [summary(group) for group in groups]
    return f"{sum(s.collapsed for s in found)} of {sum(s.seeds for s in found)}"


def _percent(value: Estimate | None, signed: bool = False) -> str:
    """In percent without the sign, which is in the head of the column."""
    return _written(value, lambda v: f"{100 * v:{'+' if signed else ''}.1f}".replace("-", "−"))


def _number(value: Estimate | None) -> str:
    return _written(value, lambda v: "∞" if math.isinf(v) else short(v))


def _written(value: Estimate | None, form: Callable[[float], str]) -> str:
    if value is None:
        return NONE
    if value.low is None or value.high is None:
        return form(value.value)
    return f"{form(value.value)} ({form(value.low)} to {form(value.high)})"
