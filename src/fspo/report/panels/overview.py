"""What a reader wants first: clip rates beside those of other ranges and tiles for one run, a table for several."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from markupsafe import Markup

from fspo.pages.document import render
from fspo.pages.plots import colour_of
from fspo.pages.tables import Table, TableCell
from fspo.report.panels.bands import last_fairness
from fspo.report.panels.phrases import between
from fspo.report.panels.same_answers import same_answers
from fspo.report.panels.series import main_split
from fspo.report.report_run import ReportRun
from fspo.runs import Evaluated, Metrics
from fspo.text import duration, number, percent, short

NONE = "–"


def overview(runs: Sequence[ReportRun]) -> Markup:
    notes = [f"{run.name}: {note}" if len(runs) > 1 else note for run in runs for note in run.notes]
    if len(runs) == 1:
        return render("overview.html", notes=notes, panels=same_answers(runs), tiles=_tiles(runs[0]), table=None)
    return render("overview.html", notes=notes, panels=[], tiles=[], table=_table(runs))


@dataclass(frozen=True)
class Tile:
    """A figure of a run with its name."""

    name: str
    value: str
    small: str = ""
    words: bool = False  # whether the value is a name and not a number


def _tiles(run: ReportRun) -> list[Tile]:
    tiles = _accuracy_tiles(main_split(run))
    tiles.append(Tile("Steps", _steps_done(run), incidents(run.metrics)))
    seconds = [line.total for line in run.timings if line.total is not None]
    speeds = [line.tokens_per_second for line in run.timings if line.tokens_per_second is not None]
    if seconds:
        median = duration(float(np.median(seconds)))
        tiles.append(Tile("Time", duration(sum(seconds)), f"{median} per step (median)"))
    if speeds:
        tiles.append(
            Tile("Tokens per second", f"{float(np.median(speeds)):,.0f}", "completion tokens, median over steps")
        )
    fairness = last_fairness(run.rows)
    if fairness is not None and run.rows is not None:
        low, high = fairness.lre_interval
        where = f"off-policy updates, {between(run.rows.last_steps)}"
        tiles.append(Tile("Clip rate", percent(fairness.clip_rate), where))
        tiles.append(Tile("LRE", f"{fairness.lre:.3f}", f"interval {low:.3f} to {high:.3f}; 0 is fair"))
    elif run.metrics:
        last = run.metrics[-1]
        tiles.append(Tile("Clip rate", percent(last.clip_rate), f"step {last.step}"))
        tiles.append(Tile("LRE", short(last.lre), f"step {last.step}; 0 is fair"))
    for name, key in (("Objective", "objective"), ("Task", "task"), ("Model", "model")):
        if run.config.get(key):
            tiles.append(Tile(name, *_named(run.config[key]), words=True))
    return tiles


def _accuracy_tiles(evaluations: Sequence[Evaluated]) -> list[Tile]:
    if not evaluations:
        return []
    first, last = evaluations[0], evaluations[-1]
    ends = [("", first)] if last is first else [(", start", first), (", end", last)]
    tiles = []
    for end, line in ends:
        extent = f"; interval {percent(line.interval[0])} to {percent(line.interval[1])}" if line.interval else ""
        tiles.append(Tile(f"Held-out accuracy{end}", percent(line.accuracy), f"step {line.step}{extent}"))
    return tiles


def _table(runs: Sequence[ReportRun]) -> Table:
    """The final figures, one row per run."""
    rows: list[list[str | TableCell]] = []
    for run in runs:
        evaluations, fairness = main_split(run), last_fairness(run.rows)
        ends = [_with_extent(line) for line in evaluations[:1] + evaluations[-1:]] or [TableCell(NONE)] * 2
        seconds = [line.total for line in run.timings if line.total is not None]
        lengths = [line.length for line in run.metrics if line.length is not None]
        lre = TableCell(NONE)
        if fairness is not None:
            lre = TableCell(f"{fairness.lre:.3f}", f"{fairness.lre_interval[0]:.3f} to {fairness.lre_interval[1]:.3f}")
        objective = run.config.get("objective")
        rows.append([
            TableCell(run.name, _named(objective)[0] if objective else ""),
            _steps_done(run),
            *ends,
            percent(None if fairness is None else fairness.clip_rate),
            lre,
            short(lengths[-1]) if lengths else NONE,
            duration(sum(seconds)) if seconds else NONE,
        ])  # fmt: skip
    head = ["Run", "Steps", "Accuracy, start", "Accuracy, end", "Clip rate", "LRE", "Length", "Time"]
    return Table("Final figures", head, rows, colours=[colour_of(k) for k in range(len(runs))])


def _with_extent(line: Evaluated) -> TableCell:
    interval = line.interval
    return TableCell(percent(line.accuracy), f"{percent(interval[0])} to {percent(interval[1])}" if interval else "")


def _steps_done(run: ReportRun) -> str:
    wanted = number(run.config.get("steps"))
    done = run.metrics[-1].step if run.metrics else 0
    return f"{done:,}" + (f" of {wanted:,.0f}" if wanted else "")


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
    key = next((k for k in ("name", "path", "preset", "kind", "type", "source") if value.get(k)), None)
    rest = {k: v for k, v in value.items() if k != key and v is not None and not isinstance(v, dict | list)}
    small = ", ".join(f"{k} {v:g}" if isinstance(v, float) else f"{k} {v}" for k, v in list(rest.items())[:6])
    return (str(value[key]), small) if key else (small or NONE, "")
