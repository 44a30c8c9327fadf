"""The panels of the page: each takes a run and gives HTML, or one sentence about what it lacks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl
import yaml

from fspo.fairness import Calibration, FairnessReport, calibrate, measure, scaling_law
from fspo.report import charts
from fspo.report.charts import Bars, Cell, Points, Series
from fspo.report.load import LENGTH_BINS, Records, Row, Run
from fspo.report.text import duration, escape, number, percent, short

SCATTER_POINTS = 2000
LONGEST_TEXT = 3000  # characters of an answer that are shown
MOST_WARNINGS = 40


# --- pieces of HTML ------------------------------------------------------------------------------------------------


def figure(title: str, svg: str, caption: str = "") -> str:
    note = f"<figcaption>{escape(caption)}</figcaption>" if caption else ""
    return f"<figure><h3>{escape(title)}</h3>{svg}{note}</figure>"


def missing(title: str, why: str) -> str:
    return f'<div class="card"><h3>{escape(title)}</h3><p class="none">{escape(why)}</p></div>'


def grid(*panels: str, small: bool = False) -> str:
    return f'<div class="grid{" small" if small else ""}">{"".join(panels)}</div>'


# --- reading rows --------------------------------------------------------------------------------------------------


def series_of(rows: Sequence[Row], key: str, **options: Any) -> Series | None:
    """A metric over the steps; None where it was never measured."""
    y = [number(row.get(key)) for row in rows]
    if all(v is None for v in y):
        return None
    return Series(options.pop("label", key), [row["step"] for row in rows], y, **options)


def interval_of(row: Row, key: str = "interval") -> tuple[float, float] | None:
    pair = row.get(key)
    if not isinstance(pair, list | tuple) or len(pair) != 2:
        return None
    low, high = number(pair[0]), number(pair[1])
    return None if low is None or high is None else (low, high)


def _range(row: Row) -> tuple[float, float]:
    return number(row.get("low")) or 0.0, number(row.get("high")) or 0.0


def range_name(low: float, high: float) -> str:
    return f"{low:g}" if low == high else f"{low:g}–{high:g}"


def listed(row: Row, key: str) -> list[Row]:
    rows = row.get(key)
    return [r for r in rows if isinstance(r, dict)] if isinstance(rows, list) else []


def held_out(run: Run) -> dict[str, list[Row]]:
    """Evaluations with an accuracy, by split."""
    splits: dict[str, list[Row]] = {}
    for row in run.evaluations:
        if number(row.get("accuracy")) is not None:
            splits.setdefault(str(row.get("split") or "held-out"), []).append(row)
    return splits


def main_split(run: Run) -> list[Row]:
    """The split with the most evaluations."""
    return max(held_out(run).values(), key=len, default=[])


def between(steps: tuple[int, int]) -> str:
    return f"step {steps[0]}" if steps[0] == steps[1] else f"steps {steps[0]} to {steps[1]}"


def with_interval(value: float, interval: tuple[float, float] | None) -> str:
    return f"{percent(value)} ({percent(interval[0])} to {percent(interval[1])})" if interval else percent(value)


# --- statistics of the last steps ----------------------------------------------------------------------------------


def last_fairness(records: Records | None) -> FairnessReport | None:
    """Clip rate by length over the last steps; None where no update was off-policy."""
    if records is None or not records.off_policy:
        return None
    return measure(records.last["length"].to_numpy(), records.last["accepted"].to_numpy(), LENGTH_BINS)


@dataclass(frozen=True)
class RunBand:
    """The run's own band mu L - c_low L^H .. mu L + c_high L^H, where its objective has one."""

    mu: float
    c_low: float
    c_high: float
    exponent: float


def run_band(run: Run) -> RunBand | None:
    """From the last steps' metrics where the trainer wrote it there, else from the configuration."""
    records, objective = run.records, run.objective
    name = str(objective.get("name"))
    if records is None or not name.startswith("fspo") or "studentized" in name:
        return None
    first, last = records.last_steps
    rows = [row for row in run.metrics if first <= row["step"] <= last]

    def measured(key: str) -> float | None:
        return charts.mean([number(row.get(key)) for row in rows])

    drift = objective.get("drift", "kl")
    if drift == "zero":
        mu: float | None = 0.0
    elif number(drift) is not None:
        mu = number(drift)
    else:
        mu = measured("drift")
        mu = measured("mu") if mu is None else mu
    c_low, c_high = measured("c_low"), measured("c_high")
    if c_low is None or c_high is None:
        rate = number(objective.get("clip_rate"))
        if rate is not None and 0 < rate < 1:
            S, L = records.last["log_ratio"].to_numpy(), records.last["length"].to_numpy()
            c_low = c_high = calibrate(S, L, rate, drift="kl" if mu is None else mu, method="gaussian").c_high
        else:
            c_low, c_high = number(objective.get("c_low")), number(objective.get("c_high"))
    if mu is None or c_low is None or c_high is None:
        return None
    return RunBand(mu, c_low, c_high, number(objective.get("exponent")) or 0.5)


def last_scale(run: Run) -> tuple[Calibration, np.ndarray] | None:
    """Drift and scale of the last steps, and z around the run's own drift; None while S is 0 everywhere."""
    if run.records is None or not run.records.off_policy:
        return None
    S, L = run.records.last["log_ratio"].to_numpy(), run.records.last["length"].to_numpy()
    band = run_band(run)
    scale = calibrate(S, L, drift="kl" if band is None else band.mu)
    if scale.sigma < 1e-9:
        return None
    return scale, (S - scale.mu * L) / np.sqrt(L)


ON_POLICY = "Every update so far was on-policy: S is 0, so clipping cannot act and there is nothing to compare."
NO_RECORDS = "There are no per-answer records yet."


def why_not(run: Run) -> str:
    return NO_RECORDS if run.records is None else ON_POLICY


# --- overview ------------------------------------------------------------------------------------------------------


def overview(run: Run) -> str:
    tiles: list[tuple[str, str, str, bool]] = []  # name, value, small print, whether it is words

    def tile(name: str, value: str, small: str = "", words: bool = False) -> None:
        tiles.append((name, value, small, words))

    evaluations = main_split(run)
    if evaluations:
        first, last = evaluations[0], evaluations[-1]
        a, b = first["accuracy"], last["accuracy"]
        if last is first:
            tile("Held-out accuracy", percent(a), _accuracy_note(first))
        else:
            tile("Held-out accuracy, start", percent(a), _accuracy_note(first))
            tile("Held-out accuracy, end", percent(b), _accuracy_note(last))
    wanted = number(run.config.get("steps"))
    done = run.metrics[-1]["step"] if run.metrics else 0
    tile("Steps", f"{done:,}" + (f" of {wanted:,.0f}" if wanted else ""), _incidents(run.metrics))
    seconds = [v for row in run.timings if (v := number(row.get("total"))) is not None]
    rates = [v for row in run.timings if (v := number(row.get("tokens_per_second"))) is not None]
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
            value, small = _named(run.config[key])
            tile(name, value, small, True)
    html = "".join(
        f'<div><dt>{escape(name)}</dt><dd class="{"words" if words else "value"}">{escape(value)}</dd>'
        + (f"<dd>{escape(small)}</dd>" if small else "")
        + "</div>"
        for name, value, small, words in tiles
    )
    notes = "".join(f"<p>{escape(note)}</p>" for note in run.notes)
    return (f'<div class="alert">{notes}</div>' if notes else "") + f'<dl class="tiles">{html}</dl>'


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


def _named(value: Any) -> tuple[str, str]:
    """The name of a model, task or objective, and its settings in short."""
    if not isinstance(value, dict):
        return str(value), ""
    key = next((k for k in ("name", "path", "preset", "kind", "type", "source") if value.get(k)), None)
    rest = {k: v for k, v in value.items() if k != key and v is not None and not isinstance(v, dict | list)}
    small = ", ".join(f"{k} {v:g}" if isinstance(v, float) else f"{k} {v}" for k, v in list(rest.items())[:6])
    return (str(value[key]), small) if key else (small or "–", "")


# --- learning ------------------------------------------------------------------------------------------------------


def learning(run: Run) -> str:
    return grid(
        _held_out_curve(run),
        _reward_curve(run),
        _accuracy_by(run, "length", "length (tokens)"),
        _accuracy_by(run, "difficulty", "difficulty"),
    )


def _held_out_curve(run: Run) -> str:
    title = "Held-out accuracy"
    splits = held_out(run)
    if not splits:
        return missing(title, "No evaluation has been written yet.")
    lines = []
    for k, (split, rows) in enumerate(splits.items()):
        intervals = [interval_of(row) or (None, None) for row in rows]
        lines.append(
            Series(split, [r["step"] for r in rows], [number(r["accuracy"]) for r in rows],
                   [i[0] for i in intervals], [i[1] for i in intervals], colour=1 + k % 4, dots=True, whiskers=True)
        )  # fmt: skip
    rows = main_split(run)
    said = (
        f"From {with_interval(rows[0]['accuracy'], interval_of(rows[0]))} at step {rows[0]['step']} to "
        f"{with_interval(rows[-1]['accuracy'], interval_of(rows[-1]))} at step {rows[-1]['step']}."
    )
    caption = "Bars are the evaluation's own intervals."
    prompts = number(rows[-1].get("prompts"))
    if prompts:
        samples = number(rows[-1].get("samples"))
        caption = (
            f"{prompts:,.0f} prompts"
            + (f", {samples:g} sample{'s' * (samples != 1)} each" if samples else "")
            + ". "
            + caption
        )
    return figure(title, charts.line(title, said, lines, y_label="accuracy", top=1.0, percent_axis=True), caption)


def _reward_curve(run: Run) -> str:
    title = "Training reward"
    reward = series_of(run.metrics, "reward", label="mean reward", smooth=True)
    right = series_of(run.metrics, "accuracy_train", label="share with reward 1", smooth=True, colour=3)
    lines = [s for s in (reward, right) if s is not None]
    if not lines:
        return missing(title, "No step has been written yet.")
    if len(lines) == 2 and list(lines[0].y) == list(lines[1].y):
        lines = lines[:1]  # rewards of 0 and 1: the two are the same line
    kept = [v for s in lines for v in s.y if v is not None]
    svg = charts.line(
        title,
        f"Over {len(run.metrics)} steps, from {short(kept[0])}; last value {short(lines[0].y[-1])}.",
        lines,
        y_label="mean reward" if len(lines) == 1 else "",
        top=1.0,
    )
    return figure(title, svg, "Faint: each step. Strong: running mean." if len(run.metrics) >= 20 else "")


# --- fairness ------------------------------------------------------------------------------------------------------


def fairness(run: Run) -> str:
    return grid(_clip_bars(run), _clip_heat(run), _lre_curve(run), _clip_curve(run))


def _clip_bars(run: Run) -> str:
    title = "Clip rate by length, last steps"
    report = last_fairness(run.records)
    if report is not None and run.records is not None:
        names = [b.label for b in report.bins]
        values = [b.clip_rate for b in report.bins]
        intervals = [(1 - b.interval[1], 1 - b.interval[0]) for b in report.bins]
        counts = [b.count for b in report.bins]
        overall: float | None = report.clip_rate
        caption = f"Off-policy updates of {between(run.records.last_steps)} pooled; 95 % intervals (Wilson)."
    else:
        row = next((r for r in reversed(run.metrics) if listed(r, "clip_by_length")), None)
        if row is None:
            return missing(title, why_not(run))
        bins = [b for b in listed(row, "clip_by_length") if number(b.get("clip_rate")) is not None]
        names = [range_name(number(b.get("low")) or 0, number(b.get("high")) or 0) for b in bins]
        values = [float(b["clip_rate"]) for b in bins]
        intervals = [interval_of(b) or (math.nan, math.nan) for b in bins]
        counts = [int(number(b.get("count")) or 0) for b in bins]
        overall = number(row.get("clip_rate"))
        caption = f"Step {row['step']} alone, from metrics.jsonl: there are no records to pool."
    said = "; ".join(f"{name} tokens: {percent(v)}" for name, v in zip(names, values, strict=True)) + "."
    shown = [i if math.isfinite(i[0]) else None for i in intervals]
    svg = charts.bars(
        title,
        said,
        names,
        [Bars("clip rate", values, shown, [f"{c:,} answers" for c in counts])],
        "answer length (tokens)",
        "",
        reference=None if overall is None else (f"overall, {percent(overall)}", overall),
    )
    return figure(title, svg, caption + " Fair clipping is a level row.")


def _clip_heat(run: Run) -> str:
    title = "Clip rate by length through training"
    records = run.records
    if records is None or not records.off_policy:
        return missing(title, why_not(run))
    table = records.clip
    columns = sorted(set(table["column"].to_list()))
    place = {column: k for k, column in enumerate(columns)}
    spans = [
        (float(part["first"].min()), float(part["last"].max()))  # type: ignore[arg-type]
        for part in (table.filter(pl.col("column") == column) for column in columns)
    ]
    edges = records.edges
    names = [range_name(edges[0] if k == 0 else edges[k] + 1, edges[k + 1]) for k in range(len(edges) - 1)]
    cells = []
    for row in table.iter_rows(named=True):
        where = between((row["first"], row["last"]))
        note = f"{where}, {names[row['bin']]} tokens: {percent(row['clip_rate'])} of {row['count']:,}"
        cells.append(Cell(place[row["column"]], row["bin"], row["clip_rate"], note))
    rates = [c.value for c in cells]
    svg = charts.heat(
        title,
        f"{len(names)} bins of length over {records.steps} steps; clip rates from {percent(min(rates))} to "
        f"{percent(max(rates))}.",
        spans,
        names,
        cells,
        "answer length (tokens)",
        "clip rate",
    )
    return figure(title, svg, "Fair clipping has no change from top to bottom. Bins hold equal shares of all answers.")


def _lre_curve(run: Run) -> str:
    title = "Length Reweighting Error"
    line = series_of(run.metrics, "lre", label="LRE")
    if line is None:
        return missing(title, "No step has an LRE: it needs updates in which something was clipped.")
    pairs = [interval_of(row, "lre_interval") or (None, None) for row in run.metrics]
    line = Series("LRE", line.x, line.y, [p[0] for p in pairs], [p[1] for p in pairs], colour=4, smooth=True)
    known = [v for v in line.y if v is not None]
    svg = charts.line(
        title, f"Between {short(min(known))} and {short(max(known))}; 0 is fair.", [line], y_label="LRE (worst bin)"
    )  # fmt: skip
    return figure(
        title, svg, "Each step alone, with its interval: a step has few answers a bin, so noise lifts it above 0."
    )


def _clip_curve(run: Run) -> str:
    title = "Clip rate"
    line = series_of(run.metrics, "clip_rate", label="clip rate", smooth=True, colour=2)
    if line is None:
        return missing(title, "No step has a clip rate.")
    known = [v for v in line.y if v is not None]
    said = f"Between {percent(min(known))} and {percent(max(known))}."
    return figure(
        title,
        charts.line(title, said, [line], y_label="clip rate", top=1.0, percent_axis=True),
        "Share of each step's gradients that clipping removed.",
    )


# --- ratios --------------------------------------------------------------------------------------------------------


def ratios(run: Run) -> str:
    return grid(_scatter(run), _z_histogram(run))


def _scatter(run: Run) -> str:
    title = "Log-ratio S against length L"
    scale = last_scale(run)
    if scale is None or run.records is None:
        return missing(title, why_not(run))
    rows = run.records.last
    some = rows.sample(SCATTER_POINTS, seed=0) if len(rows) > SCATTER_POINTS else rows
    groups = []
    for label, colour, part in (
        ("kept", 1, some.filter(pl.col("accepted") > 0.5)),
        ("clipped", 2, some.filter(pl.col("accepted") <= 0.5)),
    ):
        groups.append(Points(label, part["length"].to_list(), part["log_ratio"].to_list(), colour))
    L = np.linspace(0, float(rows["length"].max()), 61)  # type: ignore[arg-type]
    band = run_band(run)
    calibration = scale[0]
    if band is not None:
        low, high = band.mu * L - band.c_low * L**band.exponent, band.mu * L + band.c_high * L**band.exponent
        curves = [
            Series("the run's band", list(L), list(high), colour=3),
            Series("", list(L), list(low), colour=3),
        ]
        power = "√L" if band.exponent == 0.5 else f"L^{band.exponent:g}"
        width = short(band.c_high) if band.c_low == band.c_high else f"({short(band.c_low)}, {short(band.c_high)})"
        rule = f"Band: μL ± c{power}, μ = {short(band.mu)}, c = {width}. "
    else:
        low, high = (calibration.mu * L + k * calibration.sigma * np.sqrt(L) for k in (-2, 2))
        curves = [
            Series("μL ± 2σ√L of the data", list(L), list(high), colour=3, dashed=True),
            Series("", list(L), list(low), colour=3, dashed=True),
        ]
        rule = "This objective has no band in S; the curves are the data's own spread. "
    svg = charts.scatter(
        title,
        f"{len(some):,} answers of {between(run.records.last_steps)}; drift {short(calibration.mu)} a token, scale "
        f"{short(calibration.sigma)}.",
        groups,
        curves,
        "answer length L (tokens)",
        "S = log π − log π_old",
    )
    caption = rule + "An answer outside is clipped only if its advantage would push it further out."
    if len(some) < len(rows):
        caption += f" {len(some):,} of {len(rows):,} answers drawn."
    return figure(title, svg, caption)


def _z_histogram(run: Run) -> str:
    title = "z = (S − μL) / √L"
    scale = last_scale(run)
    if scale is None or run.records is None:
        return missing(title, why_not(run))
    calibration, z = scale
    reach = min(5 * calibration.sigma, float(np.abs(z).max()) * 1.02)
    counts, edges = np.histogram(z, bins=40, range=(-reach, reach))
    x = np.linspace(-reach, reach, 121)
    density = np.exp(-0.5 * (x / calibration.sigma) ** 2) / (calibration.sigma * math.sqrt(2 * math.pi))
    curve = Series(f"Gaussian, σ = {short(calibration.sigma)}", list(x), list(density * len(z) * (edges[1] - edges[0])),
                   colour=2)  # fmt: skip
    band = run_band(run)
    marks = [("±c", -band.c_low), ("±c", band.c_high)] if band is not None and band.exponent == 0.5 else []
    beyond = float(np.mean(np.abs(z) > 2 * calibration.sigma))
    svg = charts.histogram(
        title,
        f"{len(z):,} answers; {percent(beyond)} lie beyond two sigma, a Gaussian has 4.6 %.",
        [float(e) for e in edges],
        [float(c) for c in counts],
        curve,
        marks,
        "z",
        "answers",
    )
    caption = f"{percent(beyond)} lie beyond 2σ (a Gaussian: 4.6 %); pooling updates of different age adds to that. "
    outside = int(np.sum(np.abs(z) > reach))
    if outside:
        caption += f"{outside:,} beyond 5σ are not drawn. "
    try:
        law = scaling_law(run.records.last["log_ratio"].to_numpy(), run.records.last["length"].to_numpy())
    except ValueError:
        pass  # too few answers, or one length only: no exponent to state
    else:
        caption += (
            f"The spread of S grows as L to the power {law.exponent:.2f} "
            f"({law.interval[0]:.2f} to {law.interval[1]:.2f}); the √L band expects 0.5."
        )
    return figure(title, svg, caption)


# --- lengths -------------------------------------------------------------------------------------------------------


def lengths(run: Run) -> str:
    return grid(_length_curve(run), _truncation_curve(run))


def _length_curve(run: Run) -> str:
    title = "Answer length"
    if run.records is not None:
        table = run.records.lengths
        steps = table["step"].to_list()
        lines = [
            Series("5 to 95 %", steps, [None] * len(steps), table["q05"].to_list(), table["q95"].to_list(), colour=1),
            Series("25 to 75 %", steps, [None] * len(steps), table["q25"].to_list(), table["q75"].to_list(), colour=1),
            Series("median", steps, table["q50"].to_list(), colour=1),
        ]
        caption = "Line: median. Dark band: middle half. Light band: 5 to 95 %."
        said = f"Median length from {short(table['q50'][0])} to {short(table['q50'][-1])} tokens."
        drawn = charts.line(title, said, lines, y_label="tokens", legend=False)
        return figure(title, drawn, caption)
    line = series_of(run.metrics, "length", label="mean length", smooth=True)
    if line is None:
        return missing(title, "No step has been written yet.")
    return figure(title, charts.line(title, "Mean length a step.", [line], y_label="tokens"), "Mean of each step.")


def _truncation_curve(run: Run) -> str:
    title = "Truncated answers"
    line = series_of(run.metrics, "truncated", label="truncated", smooth=True, colour=2)
    if line is None:
        return missing(title, "No step has been written yet.")
    known = [v for v in line.y if v is not None]
    said = f"Between {percent(min(known))} and {percent(max(known))}; last {percent(known[-1])}."
    svg = charts.line(title, said, [line], y_label="share of answers", top=1.0, percent_axis=True)
    return figure(title, svg, "Share of answers that ran into the length limit.")


def _accuracy_by(run: Run, what: str, label: str) -> str:
    title, key = f"Held-out accuracy by {what}", f"by_{what}"
    rows = [row for row in main_split(run) if listed(row, key)]
    if not rows:
        return missing(title, f"No evaluation by {what} has been written yet.")
    chosen = [rows[0]] if len(rows) == 1 else [rows[0], rows[-1]]
    ranges = sorted({_range(b) for row in chosen for b in listed(row, key)})
    groups = []
    for k, row in enumerate(chosen):
        bins = {_range(b): b for b in listed(row, key)}
        found = [bins.get(r, {}) for r in ranges]
        groups.append(
            Bars(
                f"step {row['step']}",
                [number(b.get("accuracy")) for b in found],
                [interval_of(b) for b in found],
                [f"{number(b.get('count')) or 0:,.0f} answers" for b in found],
                colour=2 if k == 0 and len(chosen) == 2 else 1,
            )
        )
    said = "; ".join(
        f"{g.label}: " + ", ".join(f"{range_name(*r)} {percent(v)}" for r, v in zip(ranges, g.values, strict=True))
        for g in groups
    )
    svg = charts.bars(title, said, [range_name(*r) for r in ranges], groups, label, "accuracy")
    return figure(title, svg, "First and last evaluation, with their intervals.")


# --- health --------------------------------------------------------------------------------------------------------

HEALTH = (
    ("grad_norm", "Gradient norm", 1),
    ("entropy", "Entropy (nats a token)", 3),
    ("kl", "KL a token", 4),
    ("ess", "Effective sample size", 2),
)


def health(run: Run) -> str:
    panels = []
    for key, title, colour in HEALTH:
        line = series_of(run.metrics, key, label=title, smooth=True, colour=colour)
        if line is None:
            panels.append(missing(title, "Not measured yet."))
            continue
        known = [v for v in line.y if v is not None]
        said = f"From {short(known[0])} to {short(known[-1])}, between {short(min(known))} and {short(max(known))}."
        panels.append(figure(title, charts.line(title, said, [line], height=176, width=260), said))
    return grid(*panels, small=True)


# --- words ---------------------------------------------------------------------------------------------------------


def warnings(run: Run) -> str:
    found: dict[str, list[int]] = {}
    for row in run.metrics:
        texts = row.get("warnings")
        for text in texts if isinstance(texts, list) else []:
            found.setdefault(str(text), []).append(row["step"])
    if not found:
        return '<p class="none">None.</p>'
    body = "".join(
        f'<tr><td>{escape(text)}</td><td class="n">{len(steps):,}</td>'
        f'<td class="n">{steps[0] if len(steps) == 1 else f"{steps[0]} to {steps[-1]}"}</td></tr>'
        for text, steps in list(found.items())[:MOST_WARNINGS]
    )
    more = len(found) - MOST_WARNINGS
    return (
        '<div class="card"><table><thead><tr><th>Warning</th><th class="n">Times</th><th class="n">Steps</th></tr>'
        f"</thead><tbody>{body}</tbody></table></div>"
        + (f'<p class="note">{more:,} more are in metrics.jsonl.</p>' if more > 0 else "")
    )


def samples(run: Run) -> str:
    if not run.samples:
        return '<p class="none">No answer has been written yet.</p>'
    steps: dict[int, list[Row]] = {}
    for row in run.samples:
        steps.setdefault(row["step"], []).append(row)
    ends = {min(steps), max(steps)}
    return "".join(
        f"<details{' open' if step in ends else ''}><summary>Step {step}</summary><div>"
        + "".join(_answer(row) for row in rows)
        + "</div></details>"
        for step, rows in steps.items()
    )


def _answer(row: Row) -> str:
    reward, length = number(row.get("reward")), number(row.get("length"))
    tag = "tag" if reward is None else "tag good" if reward > 0 else "tag bad"
    facts = [f'<span class="{tag}">reward {"not scored" if reward is None else f"{reward:g}"}</span>']
    if length is not None:
        facts.append(f"{length:g} tokens")
    if row.get("truncated"):
        facts.append("truncated")
    if row.get("task"):
        facts.append(escape(row["task"]))
    return (
        f'<div class="answer"><p>{" · ".join(facts)}</p><p>Prompt</p><pre>{_cut(row.get("prompt"))}</pre>'
        f"<p>Answer</p><pre>{_cut(row.get('completion'))}</pre></div>"
    )


def _cut(text: Any) -> str:
    text = "" if text is None else str(text)
    left = len(text) - LONGEST_TEXT
    return escape(text[:LONGEST_TEXT]) + (f"\n… {left:,} more characters" if left > 0 else "")


def configuration(run: Run) -> str:
    if not run.config:
        return '<p class="none">There is no readable config.yaml.</p>'
    text = yaml.safe_dump(run.config, sort_keys=False, allow_unicode=True, width=100)
    return f"<details open><summary>config.yaml</summary><div><pre>{escape(text)}</pre></div></details>"
