"""The tables of a comparison: for every task, across tasks, across settings and across trials."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from typing import Any

from fspo import objectives
from fspo.comparing.clipping import flatness_ratio, law, mean_flatness, mean_lre
from fspo.comparing.outcome import ATTRIBUTES, WHOLE_ANSWERS
from fspo.comparing.results import Results
from fspo.comparing.statistics import Estimate, Group, Row, improvement, iqm, mean_of, summary
from fspo.report.tables import Table
from fspo.report.text import short, visible

NONE = "–"
ENOUGH = 5  # seeds; a mean of n lies within its own values in 1 - 2^(1 - n) of cases, and no draw lies outside
INTERVALS = "In brackets: 95 % bootstrap intervals over seeds."


def text(rows: list[Row], suite: Any) -> str:
    """All tables as Markdown."""
    results = Results(rows, suite)
    parts = [f"## {suite.title}", *said(results), *(t.markdown() for t in [*overview(results), *details(results)])]
    return visible("\n\n".join(parts) + "\n")


def said(results: Results) -> list[str]:
    """What the figures rest on: how many seeds, and of which code."""
    counts = [len(group.rows) for group in results.groups]
    if not counts:
        return ["No test run is finished."]
    many = f"{counts[0]}" if len(set(counts)) == 1 else f"{min(counts)} to {max(counts)}"
    wanted = len(results.suite.tasks) * len(results.suite.settings) * len(results.suite.methods)
    present = len({(g.task, g.setting, g.method) for g in results.groups})
    missing = f" {wanted - present} of {wanted} methods at a place have no finished run yet." * (present < wanted)
    told = [f"{many} test seed{'s' * (max(counts) > 1)} finished for each method and place.{missing} {INTERVALS}"]
    if 1 < min(counts) < ENOUGH:
        told.append(f"With fewer than {ENOUGH} seeds no resampling covers 95 %: these intervals are too narrow.")
    failed = sum(row["status"] == "failed" for row in results.rows)
    if failed:
        told.append(f"{failed} runs failed (too many updates were not finite) and count with their last evaluation.")
    codes = sorted(
        {f"fspo {row['version']}" + f" at {row['commit'][:10]}" * bool(row["commit"]) for row in results.rows}
    )
    if len(codes) > 1:
        told.append(f"These runs are of different code: {', '.join(codes)}.")
    else:
        told.append(f"Code: {codes[0]}.")
    return told


def overview(results: Results) -> list[Table]:
    """All tasks together, and what settings and trials make of it."""
    found = by_trial(results) if results.suite.tuning.all else across(results)
    return found + (by_setting(results) if len(results.settings) > 1 else [])


def details(results: Results) -> list[Table]:
    """Every place by itself, the model of S, bands at the same rate, the direction of updates, other attributes."""
    found = [_place(results, place) for place in results.places]
    tables = (_laws(results), _same_rate(results), _directions(results), _attributes(results))
    return found + [t for t in tables if t.rows]


def across(results: Results) -> list[Table]:
    """One table a setting: all tasks together, and the reference against every other method."""
    reference, found = results.suite.reference, []
    for setting in results.settings:
        ours = results.of(reference, setting)
        own_clips = results.clippings(reference, setting)
        rows = []
        for label in results.labels:
            theirs, clips = results.of(label, setting), results.clippings(label, setting)
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
        tasks = "1 task" if len(results.tasks) == 1 else f"{len(results.tasks)} tasks"
        head = ["method", "IQM of final accuracy, %", f"P({reference} better)", f"{reference} ahead by, points",
                "pairs won", "collapsed", "LRE", "flatness, points", f"flatness / {reference}'s"]  # fmt: skip
        found.append(Table(f"Across {tasks}{where}", head, rows))
    return found


def by_trial(results: Results) -> list[Table]:
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


def by_setting(results: Results) -> list[Table]:
    """Final accuracy by setting, a table a task and, of several, one of all."""
    found = []
    for task in [*results.tasks, None] if len(results.tasks) > 1 else results.tasks:
        rows = []
        for label in results.labels:
            cells = []
            for setting in results.settings:
                groups = [g for g in results.of(label, setting) if task in (None, g.task)]
                value = iqm(groups) if task is None else summary(groups[0]).final if groups else None
                fallen = sum(summary(g).collapsed for g in groups)
                cells.append(_percent(value) + f", {fallen} collapsed" * bool(fallen))
            rows.append([label, *cells])
        what = "IQM of final accuracy over tasks" if task is None else f"{task}: final accuracy"
        found.append(Table(f"{what} by setting, %", ["method", *results.settings], rows))
    return found


def _place(results: Results, place: tuple[str, str]) -> Table:
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


def _laws(results: Results) -> Table:
    rows = []
    for group in results.groups:
        found = law(group)
        if found is not None:
            numbers = [_number(v) for v in (found.mu, found.sigma, found.exponent)]
            rows.append([_runs(results, group), *numbers])
    return Table("S = mu L + sigma L^H Z, over all off-policy answers", ["method", "mu", "sigma", "H"], rows)


def _directions(results: Results) -> Table:
    """The measured cosine, and how often either bound promises anything; of all tasks of a setting together."""
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
    head = ["method", "measurements", "mean cosine", "bound from the LRE says something, %",
            "with correlation inside bins, %"]  # fmt: skip
    return Table("Cosine between the clipped and the true update", head, rows)


def _same_rate(results: Results) -> Table:
    """What each band's shape does to the reference's answers, mean over seeds; where every run has measured it."""
    rows = []
    for group in _of_reference(results):
        entries = _entries(group, "length")
        if len(entries) == len(group.rows):
            lre, flatness = (
                [mean_of([e[name][key] for e in entries if name in e]) for name in WHOLE_ANSWERS]
                for key in ("lre", "flatness")
            )
            rows.append([_runs(results, group), *map(_number, lre), *map(_percent, flatness)])
    widths = ("sqrt(L), FSPO", "L, GSPO", "fixed, RLOO")
    head = ["runs", *(f"LRE: {w}" for w in widths), *(f"flatness, points: {w}" for w in widths)]
    return Table("Bands of three widths, each clipping 10 % of the same answers", head, rows)


def _attributes(results: Results) -> Table:
    """LRE over other attributes than length, mean over seeds."""
    rows = []
    for group in _of_reference(results):
        for by in ATTRIBUTES:
            entries = _entries(group, by)
            cells = [_number(mean_of([e[kind]["lre"] for e in entries])) for kind in ("own", "pooled", "partition")]
            if entries:
                rows.append([f"{_runs(results, group)}, by {by}", *cells])
    head = ["runs", "as it clipped", "one band at 10 %", "a band for each part at 10 %"]
    return Table("LRE over other attributes than length, second half of the steps", head, rows)


def _of_reference(results: Results) -> list[Group]:
    return [group for group in results.groups if group.method == results.suite.reference]


def _entries(group: Group, by: str) -> list[dict[str, Any]]:
    """What each run measured over an attribute."""
    return [entry for row in group.rows for entry in json.loads(row["attributes"] or "[]") if entry["by"] == by]


def _runs(results: Results, group: Group) -> str:
    return f"{results.places[group.task, group.setting]}: {group.label}"


def _parameters(group: Group, suite: Any) -> str:
    """What the objective sets otherwise than its defaults, and what a trial sets also where it is the default."""
    row = group.rows[0]
    values = json.loads(row["objective"])
    fields = objectives.REGISTRY[values["name"]].model_fields
    tried = {} if row["trial"] < 0 else suite.methods[group.method].trials[row["trial"]]
    own = {k: v for k, v in values.items() if k in fields and (v != fields[k].default or k in tried)}
    return " ".join(f"{k}={_plain(v)}" for k, v in own.items()) or NONE


def _plain(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else json.dumps(value) if isinstance(value, dict) else f"{value}"


def _collapsed(groups: Iterable[Group]) -> str:
    found = [summary(group) for group in groups]
    return f"{sum(s.collapsed for s in found)} of {sum(s.seeds for s in found)}"


def _percent(value: Estimate | None, signed: bool = False) -> str:
    """In percent without the sign, because the head has it."""
    return _written(value, lambda v: f"{100 * v:{'+' if signed else ''}.1f}".replace("-", "−"))


def _number(value: Estimate | None) -> str:
    return _written(value, lambda v: "∞" if math.isinf(v) else short(v))


def _written(value: Estimate | None, form: Any) -> str:
    if value is None:
        return NONE
    if value.low is None or value.high is None:
        return str(form(value.value))
    return f"{form(value.value)} ({form(value.low)} to {form(value.high)})"
