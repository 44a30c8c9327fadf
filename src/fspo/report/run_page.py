"""The report of one run or of several. Its script searches the answers and sets the theme; it is readable without."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from markupsafe import Markup

from fspo.files import replace_file
from fspo.pages import document
from fspo.pages.document import Section, Table, TableCell, colour_of, grid, render
from fspo.report.clipping import clip_rates, direction, log_ratios, same_answers
from fspo.report.panels import HEALTH, learning, lengths, main_split, range_name
from fspo.report.report_run import ReportRun, load_all
from fspo.runs import Metrics, Sample, unscored_warnings
from fspo.settings import flat
from fspo.text import duration, percent, short, slug

__all__ = ["SECTIONS", "content", "frame", "incidents", "save", "write"]

Runs = Sequence[ReportRun]
NONE = "–"


# --- overview ---


def overview(runs: Runs) -> Markup:
    """The main chart, with the figures as tiles beside it; of several runs a table of the figures first."""
    notes = [f"{note}{run.suffix}" for run in runs for note in run.notes]
    plots = [same_answers(run) for run in runs]
    if len(runs) > 1:
        return render("overview.html", notes=notes, table=_table(runs), plots=grid(plots))
    names = {
        title: TableCell(*_named(runs[0].config[key]))
        for title, key in (("Objective", "objective"), ("Task", "task"), ("Model", "model"))
        if runs[0].config.get(key)
    }
    return render("overview.html", notes=notes, plot=plots[0], figures=_figures(runs[0]), names=names, table=None)


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
        where = f"off-policy updates, {run.rows.named_steps}"
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


def _table(runs: Runs) -> Table:
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
    """Rollouts done out of those configured, and their updates."""
    done, wanted = run.metrics[-1].step if run.metrics else 0, run.config.get("steps")
    updates = sum(line.updates or 0 for line in run.metrics)
    small = f"{updates:,} updates" if updates else ""
    text = f"{done:,}" + (f" of {wanted:,}" if isinstance(wanted, int) else "")
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


# --- warnings, answers and configuration ---


def warnings(runs: Runs) -> Markup:
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
        for kind, text in texts.items():
            first_to_last = range_name(min(steps[kind]), max(steps[kind]))
            rows.append([kind + run.suffix, f"{len(steps[kind]):,}", first_to_last, text])
    head = ["Kind", "Times", "Steps", "Latest text"]
    return render("warnings.html", table=Table("Warnings", head, rows, words=2))


def samples(runs: Runs) -> Markup:
    """Answers by step, with a search if scripts are on."""
    return render("samples.html", steps=[part for run in runs for part in _steps(run)])


def _steps(run: ReportRun) -> list[dict[str, Any]]:
    steps: dict[int, list[Markup]] = {}
    for line in run.samples:
        steps.setdefault(line.step, []).append(_answer(line))
    return [
        {
            "id": f"answers-{slug(run.name)}-{step}",
            "title": f"Step {step}{run.suffix}",
            "open": step in (min(steps), max(steps)),
            "answers": answers,
        }
        for step, answers in steps.items()
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


def configuration(runs: Runs) -> Markup:
    """config.yaml of each run, and of several the settings in which they differ."""
    files = [
        {
            "id": f"config-{slug(run.name)}",
            "title": f"config.yaml{run.suffix}",
            "text": yaml.safe_dump(run.config, sort_keys=False, allow_unicode=True, width=100) if run.config else "",
        }
        for run in runs
    ]
    table = _differences(runs) if len(runs) > 1 else None
    return render("configuration.html", files=files, several=len(runs) > 1, table=table)


def _differences(runs: Runs) -> Table | None:
    """The settings in which the runs differ; None if there are none."""
    tables = [{key: str(value) for key, value in flat(run.config).items()} for run in runs]
    keys = dict.fromkeys(key for table in tables for key in table)
    rows = [[key, *(table.get(key, "–") for table in tables)] for key in keys]
    rows = [row for row in rows if len(set(row[1:])) > 1]
    head = ["Setting that differs", *(run.name for run in runs)]
    return Table("Settings that differ", head, rows, words=len(runs)) if rows else None


# --- the page ---


SECTIONS = ("overview", "learning", "fairness", "direction", "ratios", "lengths", "health", "warnings", "samples",
            "configuration")  # fmt: skip


def page_sections(runs: Runs) -> list[Section]:
    """The sections of the page, as in SECTIONS."""
    return [
        Section("overview", "Overview", overview(runs)),
        Section("learning", "Learning", plots=learning(runs)),
        Section(
            "fairness",
            "Fairness over length",
            lead="Does clipping remove answers of every length at the same rate?",
            plots=clip_rates(runs),
        ),
        Section(
            "direction",
            "LRE and direction",
            lead="The Length Reweighting Error (LRE) is how far the acceptance of the worst bin lies from the average, "
            "as a share of it: 0 is fair. A small LRE bounds how far clipping can turn the update, if clipping is even "
            "inside a bin.",
            plots=direction(runs),
        ),
        Section(
            "ratios",
            "Importance ratios",
            lead="S is the sum of an answer's token log-ratios. For L tokens its mean is near μL and its standard "
            "deviation near σ√L: a band of that shape treats all lengths alike.",
            plots=[log_ratios(run) for run in runs],
        ),
        Section("lengths", "Lengths", plots=lengths(runs)),
        Section("health", "Health of the updates", plots=[metric.panel(runs) for metric in HEALTH]),
        Section("warnings", "Warnings", warnings(runs)),
        Section(
            "samples", "Sampled answers", samples(runs), "As the model wrote them, from steps spread over the run."
        ),
        Section("configuration", "Configuration", configuration(runs)),
    ]


def write(run_folders: str | Path | Sequence[str | Path], path: str | Path | None = None) -> Path:
    """Write the report of a run, by default to `report.html` in its folder, or of several to `compare.html`."""
    folders = [run_folders] if isinstance(run_folders, str | Path) else list(run_folders)
    return save(load_all(folders), path)


def save(runs: Runs, path: str | Path | None = None) -> Path:
    """Write the report of runs that are loaded."""
    default = runs[0].folder / "report.html" if len(runs) == 1 else Path("compare.html")
    return replace_file(path or default, frame([run.name for run in runs], content(runs)))


def frame(names: Sequence[str], main: Markup, version: str | None = None) -> str:
    """The page around its content; with a version, a live page that asks its own server for newer content."""
    name = " and ".join(names) if len(names) < 3 else f"{len(names)} runs"
    return document.document(
        title=f"{name} – fspo report",
        heading=name,
        lead="Run report" if len(names) == 1 else "Runs compared",
        main=main,
        footer=f"Written by fspo from the files in the run folder{'s' * (len(names) > 1)}.",
        links=SECTIONS,
        version=version,
    )


def content(runs: Runs) -> Markup:
    """All sections."""
    return render("sections.html", parts=page_sections(runs))
