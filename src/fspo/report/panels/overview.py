"""The figures a reader wants first: tiles for one run, a table for several."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from fspo.report.load import Row, Run
from fspo.report.panels.parts import colour_of
from fspo.report.panels.rows import between, interval_of, main_split
from fspo.report.panels.statistics import last_fairness
from fspo.report.text import duration, escape, number, percent, short


def overview(runs: Sequence[Run]) -> str:
    notes = [(run.name if len(runs) > 1 else "", note) for run in runs for note in run.notes]
    lines = "".join(f"<p>{escape(f'{name}: {note}' if name else note)}</p>" for name, note in notes)
    return (f'<div class="alert">{lines}</div>' if lines else "") + (
        _tiles(runs[0]) if len(runs) == 1 else _table(runs)
    )


def _tiles(run: Run) -> str:
    tiles: list[tuple[str, str, str, bool]] = []  # name, value, small print, whether it is words

    def tile(name: str, value: str, small: str = "", words: bool = False) -> None:
        tiles.append((name, value, small, words))

    evaluations = main_split(run)
    if evaluations:
        first, last = evaluations[0], evaluations[-1]
        if last is first:
            tile("Held-out accuracy", percent(first["accuracy"]), _accuracy_note(first))
        else:
            tile("Held-out accuracy, start", percent(first["accuracy"]), _accuracy_note(first))
            tile("Held-out accuracy, end", percent(last["accuracy"]), _accuracy_note(last))
    tile("Steps", steps_done(run), _incidents(run.metrics))
    seconds, rates = _numbers(run.timings, "total"), _numbers(run.timings, "tokens_per_second")
    if seconds:
        tile("Time", duration(sum(seconds)), f"{duration(float(np.median(seconds)))} a step (median)")
    if rates:
        tile("Tokens a second", f"{float(np.median(rates)):,.0f}", "completion tokens, median over steps")
    fairness = last_fairness(run.records)
    if fairness is not None and run.records is not None:
        where = between(run.records.last_steps)
        tile("Clip rate", percent(fairness.clip_rate), f"off-policy updates, {where}")
        low, high = fairness.lre_interval
        tile("LRE", f"{fairness.lre:.3f}", f"interval {low:.3f} to {high:.3f}; 0 is fair")
    elif run.metrics:
        last_row = run.metrics[-1]
        tile("Clip rate", percent(number(last_row.get("clip_rate"))), f"step {last_row['step']}")
        tile("LRE", short(number(last_row.get("lre"))), f"step {last_row['step']}; 0 is fair")
    for name, key in (("Objective", "objective"), ("Task", "task"), ("Model", "model")):
        if run.config.get(key):
            value, small = named(run.config[key])
            tile(name, value, small, True)
    html = "".join(
        f'<div><dt>{escape(name)}</dt><dd class="{"words" if words else "value"}">{escape(value)}</dd>'
        + (f"<dd>{escape(small)}</dd>" if small else "")
        + "</div>"
        for name, value, small, words in tiles
    )
    return f'<dl class="tiles">{html}</dl>'


COLUMNS = ("Run", "Objective", "Steps", "Accuracy, start", "Accuracy, end", "Clip rate", "LRE", "Length", "Time")


def _table(runs: Sequence[Run]) -> str:
    """The final figures, a row a run."""
    head = "".join(f'<th scope="col"{" class=n" * (k > 1)}>{escape(name)}</th>' for k, name in enumerate(COLUMNS))
    body = []
    for k, run in enumerate(runs):
        evaluations, fairness = main_split(run), last_fairness(run.records)
        ends = [_extent(percent(r["accuracy"]), interval_of(r), percent) for r in evaluations[:1] + evaluations[-1:]]
        seconds, lengths = _numbers(run.timings, "total"), _numbers(run.metrics, "length")
        lre = "–" if fairness is None else _extent(f"{fairness.lre:.3f}", fairness.lre_interval, "{:.3f}".format)
        cells = [
            escape(steps_done(run)),
            *(ends or ["–", "–"]),
            percent(None if fairness is None else fairness.clip_rate),
            lre,
            short(lengths[-1]) if lengths else "–",
            duration(sum(seconds)) if seconds else "–",
        ]
        line = f'<path class="line strong c{colour_of(k)}" d="M0 5h14"/>'
        key = f'<svg class="key" viewBox="0 0 14 10" aria-hidden="true">{line}</svg>'
        objective = named(run.config["objective"])[0] if run.config.get("objective") else "–"
        body.append(
            f'<tr><th scope="row">{key}{escape(run.name)}</th><td>{escape(objective)}</td>'
            + "".join(f'<td class="n">{cell}</td>' for cell in cells)
            + "</tr>"
        )
    return (
        '<div class="card scroll" tabindex="0" role="region" aria-label="Final figures"><table><thead><tr>'
        f"{head}</tr></thead><tbody>{''.join(body)}</tbody></table></div>"
        '<p class="note">Accuracy is held-out, with its interval. Clip rate and LRE are of off-policy updates of each '
        "run's last steps; 0 is a fair LRE. Length is the last step's mean, in tokens.</p>"
    )


def _extent(value: str, interval: tuple[float, float] | None, form: Callable[[float], str]) -> str:
    """A figure with its interval in small print under it."""
    return value + (f"<small>{form(interval[0])} to {form(interval[1])}</small>" if interval else "")


def steps_done(run: Run) -> str:
    wanted = number(run.config.get("steps"))
    done = run.metrics[-1]["step"] if run.metrics else 0
    return f"{done:,}" + (f" of {wanted:,.0f}" if wanted else "")


def _numbers(rows: Sequence[Row], key: str) -> list[float]:
    return [v for row in rows if (v := number(row.get(key))) is not None]


def _accuracy_note(row: Row) -> str:
    interval = interval_of(row)
    parts = [f"step {row['step']}"]
    if interval:
        parts.append(f"interval {percent(interval[0])} to {percent(interval[1])}")
    return "; ".join(parts)


def _incidents(metrics: Sequence[Row]) -> str:
    """Steps that were skipped and weights that were capped, where there were any."""
    parts = []
    for key, what in (("skipped", "updates skipped"), ("capped", "weights capped"), ("unscored", "answers unscored")):
        total = sum(number(row.get(key)) or 0 for row in metrics) + sum(row.get(key) is True for row in metrics)
        if total:
            parts.append(f"{total:,.0f} {what}")
    return ", ".join(parts)


def named(value: Any) -> tuple[str, str]:
    """The name of a model, task or objective, and its settings in short."""
    if not isinstance(value, dict):
        return str(value), ""
    key = next((k for k in ("name", "path", "preset", "kind", "type", "source") if value.get(k)), None)
    rest = {k: v for k, v in value.items() if k != key and v is not None and not isinstance(v, dict | list)}
    small = ", ".join(f"{k} {v:g}" if isinstance(v, float) else f"{k} {v}" for k, v in list(rest.items())[:6])
    return (str(value[key]), small) if key else (small or "–", "")
