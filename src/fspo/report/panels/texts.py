"""Warnings, sampled answers, and the configuration."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import yaml
from markupsafe import Markup

from fspo.pages.document import render
from fspo.pages.tables import Table
from fspo.report.panels.phrases import step_ranges
from fspo.report.report_run import ReportRun
from fspo.runs import Sample, unscored_warnings
from fspo.settings import flat
from fspo.text import slug

MOST_WARNINGS = 40
SAMPLES_BYTES = 1_200_000  # of the page, for all answers together


def warnings(runs: Sequence[ReportRun]) -> Markup:
    """Each kind of warning once, with the steps that had it and its latest text."""
    rows = []
    for run in runs:
        steps: dict[str, list[int]] = {}
        texts: dict[str, str] = {}
        found = [(line.step, line.warnings) for line in run.metrics]
        found += [
            (line.step, {f"held-out {kind}": text for kind, text in unscored_warnings(line).items()})
            for line in run.evaluations
        ]
        for step, kinds in found:
            for kind, text in kinds.items():
                steps.setdefault(kind, []).append(step)
                texts[kind] = text
        name = f"{run.name}: " if len(runs) > 1 else ""
        rows += [[name + kind, f"{len(steps[kind]):,}", step_ranges(steps[kind]), texts[kind]] for kind in texts]
    head = ["Kind", "Times", "Steps", "Latest text"]
    table = Table("Warnings", head, rows[:MOST_WARNINGS], words=2, wrap=True)
    return render("warnings.html", table=table, more=max(0, len(rows) - MOST_WARNINGS))


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
