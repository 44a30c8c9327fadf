"""What a reader wants first, and the parts of the page that are text: warnings, sampled answers, the configuration."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import yaml
from markupsafe import Markup

from fspo.pages.document import Table, TableCell, colour_of, render
from fspo.report.clipping import same_answers
from fspo.report.report_run import ReportRun
from fspo.report.series import between, main_split, range_name
from fspo.runs import Metrics, Sample, unscored_warnings
from fspo.settings import flat
from fspo.text import duration, number, percent, short, slug

NONE = "–"
SAMPLES_BYTES = 1_200_000  # of the page, for all answers together


def overview(runs: Sequence[ReportRun]) -> Markup:
    notes = [f"{run.name}: {note}" if len(runs) > 1 else note for run in runs for note in run.notes]
    if len(runs) > 1:
        return render("overview.html", notes=notes, table=_table(runs))
    names = {
        title: TableCell(*_named(runs[0].config[key]))
        for title, key in (("Objective", "objective"), ("Task", "task"), ("Model", "model"))
        if runs[0].config.get(key)
    }
    panels = same_answers(runs)
    return render("overview.html", notes=notes, panels=panels, figures=_figures(runs[0]), names=names, table=None)


def _figures(run: ReportRun) -> dict[str, TableCell]:
    """The figures that a run has, by name."""
    figures = {}
    evaluations = main_split(run)
    for end, line in zip(("start", "end"), evaluations[:1] + evaluations[1:][-1:], strict=False):
        extent = f"; {percent(line.interval[0])} to {percent(line.interval[1])}" if line.interval else ""
        figures[f"Held-out accuracy, {end}"] = TableCell(percent(line.accuracy), f"step {line.step}{extent}")
    figures["Steps"] = _steps_done(run)
    fairness = run.fairness()
    if fairness is not None and run.rows is not None:
        low, high = fairness.lre_interval
        where = f"off-policy updates, {between(run.rows.last_steps)}"
        figures["Clip rate"] = TableCell(percent(fairness.clip_rate), where)
        figures["LRE"] = TableCell(f"{fairness.lre:.3f}", f"interval {low:.3f} to {high:.3f}; 0 is fair")
    lengths = [line.length for line in run.metrics if line.length is not None]
    if lengths:
        figures["Length"] = TableCell(short(lengths[-1]), "mean tokens of the last step")
    seconds = [line.total for line in run.timings if line.total is not None]
    speeds = [line.tokens_per_second for line in run.timings if line.tokens_per_second is not None]
    if seconds:
        small = f"{duration(float(np.median(seconds)))} per step"
        small += f", {np.median(speeds):,.0f} completion tokens per second" if speeds else ""
        figures["Time"] = TableCell(duration(sum(seconds)), f"{small} (median)")
    return figures


def _table(runs: Sequence[ReportRun]) -> Table:
    """The figures, one row per run."""
    figures = [_figures(run) for run in runs]
    head = list(dict.fromkeys(name for each in figures for name in each))
    rows = []
    for run, each in zip(runs, figures, strict=True):
        objective = run.config.get("objective")
        name = TableCell(run.name, _named(objective)[0] if objective else "")
        rows.append([name, *(each.get(title, TableCell(NONE)) for title in head)])
    return Table("Final figures", ["Run", *head], rows, colours=[colour_of(k) for k in range(len(runs))])


def _steps_done(run: ReportRun) -> TableCell:
    """Steps of the configuration's; TRL counts optimiser steps, of which each of its rollouts has several."""
    trl = run.config.get("trl")
    if isinstance(trl, dict):
        wanted, done = number(trl.get("max_steps")), sum(line.updates or 0 for line in run.metrics)
        small = f"optimiser steps, in {len(run.metrics):,} rollouts: the steps of the charts"
    else:
        wanted, done, small = number(run.config.get("steps")), run.metrics[-1].step if run.metrics else 0, ""
    text = f"{done:,}" + (f" of {wanted:,.0f}" if wanted and wanted > 0 else "")
    return TableCell(text, "; ".join(filter(None, (small, incidents(run.metrics)))))


def incidents(metrics: Sequence[Metrics]) -> str:
    """Skipped updates, capped weights and answers without a score, where there were any."""
    skipped = next((line.skipped for line in reversed(metrics) if line.skipped is not None), 0)  # since the run began
    capped = max((line.capped or 0.0 for line in metrics), default=0.0)
    unscored = sum(line.unscored or 0 for line in metrics)
    parts = []
    if skipped:
        parts.append(f"{skipped:,} update{'s' * (skipped > 1)} skipped")
    if capped:
        parts.append(f"up to {percent(capped)} of a step's weights capped")
    if unscored:
        parts.append(f"{unscored:,} answer{'s' * (unscored > 1)} without a score")
    return ", ".join(parts)


def _named(value: Any) -> tuple[str, str]:
    """The name of a model, task or objective as the configuration has it, and its first settings."""
    if not isinstance(value, dict):
        return str(value), ""
    key = next((k for k in ("name", "path") if value.get(k)), None)
    rest = {k: v for k, v in value.items() if k != key and v is not None and not isinstance(v, dict | list)}
    small = ", ".join(f"{k} {v:g}" if isinstance(v, float) else f"{k} {v}" for k, v in list(rest.items())[:6])
    return (str(value[key]), small) if key else (small or NONE, "")


def warnings(runs: Sequence[ReportRun]) -> Markup:
    """Each kind of warning once, with its first and last step and its latest text."""
    rows = []
    for run in runs:
        steps: dict[str, list[int]] = {}
        texts: dict[str, str] = {}
        warned = [(line.step, line.warnings) for line in run.metrics]
        warned += [
            (line.step, {f"held-out {kind}": text for kind, text in unscored_warnings(line).items()})
            for line in run.evaluations
        ]
        for step, kinds in warned:
            for kind, text in kinds.items():
                steps.setdefault(kind, []).append(step)
                texts[kind] = text
        name = f"{run.name}: " if len(runs) > 1 else ""
        for kind, text in texts.items():
            first_to_last = range_name(min(steps[kind]), max(steps[kind]))
            rows.append([name + kind, f"{len(steps[kind]):,}", first_to_last, text])
    head = ["Kind", "Times", "Steps", "Latest text"]
    return render("warnings.html", table=Table("Warnings", head, rows, words=2, wrap=True))


def samples(runs: Sequence[ReportRun]) -> Markup:
    """Answers by step, with a search if scripts are on."""
    parts = [part for run in runs for part in _steps(run, len(runs) > 1, SAMPLES_BYTES // len(runs))]
    return render("samples.html", steps=parts)


def _steps(run: ReportRun, several: bool, budget: int) -> list[dict[str, Any]]:
    """The steps whose answers fit the budget, evenly spread, first and last included."""
    steps: dict[int, list[Markup]] = {}
    for line in run.samples:
        steps.setdefault(line.step, []).append(_answer(line))
    sizes = {step: sum(len(text.encode()) for text in texts) for step, texts in steps.items()}
    shown = list(steps)
    while len(shown) > 2 and sum(sizes[s] for s in shown) > budget:
        shown = [*shown[:-1:2], shown[-1]]
    return [
        {
            "id": f"answers-{slug(run.name)}-{step}",
            "title": f"{run.name}, step {step}" if several else f"Step {step}",
            "open": step in (shown[0], shown[-1]),
            "answers": steps[step],
        }
        for step in shown
    ]


def _answer(sample: Sample) -> Markup:
    reward = "not scored" if sample.reward is None else f"{sample.reward:g}"
    mark = "" if sample.reward is None else "good" if sample.reward > 0 else "bad"
    facts = [] if sample.length is None else [f"{sample.length:,} tokens"]
    if sample.truncated:
        facts.append("truncated")
    if sample.task:
        facts.append(sample.task)
    return render("answer.html", sample=sample, reward=reward, mark=mark, facts=facts)


def configuration(runs: Sequence[ReportRun]) -> Markup:
    """config.yaml of each run, and of several the settings in which they differ."""
    files = [
        {
            "id": f"config-{slug(run.name)}",
            "title": "config.yaml" if len(runs) == 1 else f"{run.name}: config.yaml",
            "text": yaml.safe_dump(run.config, sort_keys=False, allow_unicode=True, width=100) if run.config else "",
        }
        for run in runs
    ]
    table = _differences(runs) if len(runs) > 1 else None
    return render("configuration.html", files=files, several=len(runs) > 1, table=table)


def _differences(runs: Sequence[ReportRun]) -> Table | None:
    """The settings in which the runs differ; None if there are none."""
    tables = [{key: str(value) for key, value in flat(run.config).items()} for run in runs]
    keys = dict.fromkeys(key for table in tables for key in table)
    rows = [[key, *(table.get(key, "–") for table in tables)] for key in keys]
    rows = [row for row in rows if len(set(row[1:])) > 1]
    head = ["Setting that differs", *(run.name for run in runs)]
    return Table("Settings that differ", head, rows, words=len(runs), wrap=True) if rows else None
