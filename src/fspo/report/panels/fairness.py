"""Does clipping fall evenly over length? Rates by bin, pooled and through the steps."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import polars as pl

from fspo.fairness import wilson
from fspo.report import charts
from fspo.report.charts import Bars, Cell
from fspo.report.load import LENGTH_BINS, Records, Run
from fspo.report.panels.learning import smooth_note
from fspo.report.panels.parts import Missing, Panel, Plot, colour_of, of_run
from fspo.report.panels.rows import between, interval_of, known, limits, listed, overlay, range_name, why_not
from fspo.report.panels.statistics import last_fairness
from fspo.report.text import number, percent

TOKENS = "answer length (tokens)"


def fairness(runs: Sequence[Run]) -> list[Panel]:
    return [clip_bars(runs), clip_curve(runs), *(clip_heat(run, runs) for run in runs)]


def clip_bars(runs: Sequence[Run]) -> Panel:
    title = "Clip rate by length, last steps"
    kept = [(k, run, run.records) for k, run in enumerate(runs) if run.records is not None and run.records.off_policy]
    moved = [(k, run, records) for k, run, records in kept if not records.pulling.is_empty()]
    if not moved:
        return _bars_of_metrics(title, runs[-1])
    # The bins of all runs together, so that bars side by side are of the same lengths.
    lengths = np.concatenate([records.pulling["length"].to_numpy() for _, _, records in moved])
    edges = np.unique(np.quantile(lengths, np.arange(1, LENGTH_BINS) / LENGTH_BINS, method="inverted_cdf"))
    place = np.searchsorted(edges, lengths, side="left")
    used = np.unique(place)
    names = [range_name(lengths[place == k].min(), lengths[place == k].max()) for k in used]
    groups, overall = [], None
    for k, run, records in moved:
        report = last_fairness(records, list(edges))
        assert report is not None
        bins = {int(np.searchsorted(edges, b.high, side="left")): b for b in report.bins}
        found = [bins.get(int(j)) for j in used]
        groups.append(
            Bars(
                "clip rate" if len(runs) == 1 else run.name,
                [None if b is None else b.clip_rate for b in found],
                [None if b is None else (1 - b.interval[1], 1 - b.interval[0]) for b in found],
                ["no answers" if b is None else f"{b.count:,} answers" for b in found],
                1 if len(runs) == 1 else colour_of(k),
            )
        )
        overall = report.clip_rate
    said = "; ".join(
        f"{g.label}: " + ", ".join(f"{name} tokens {percent(v)}" for name, v in zip(names, g.values, strict=True))
        for g in groups
    )
    reference = (f"overall, {percent(overall)}", overall) if len(runs) == 1 and overall is not None else None
    svg = charts.bars(title, said + ".", names, groups, TOKENS, "clip rate", reference=reference)
    steps = moved[0][2].last_steps
    which = between(steps) if len(moved) == 1 else "each run's last steps"
    return Plot(
        title,
        svg,
        f"Off-policy updates of {which} pooled, answers whose advantage is 0 left out; 95 % intervals (Wilson). Fair "
        "clipping is a level row.",
    )


def _bars_of_metrics(title: str, run: Run) -> Panel:
    """The rates that the trainer itself wrote for its last step."""
    row = next((r for r in reversed(run.metrics) if listed(r, "clip_by_length")), None)
    if row is None:
        return Missing(title, why_not(run))
    bins = [b for b in listed(row, "clip_by_length") if number(b.get("clip_rate")) is not None]
    names = [range_name(*limits(b)) for b in bins]
    values = [float(b["clip_rate"]) for b in bins]
    notes = [f"{number(b.get('count')) or 0:,.0f} answers" for b in bins]
    overall = number(row.get("clip_rate"))
    svg = charts.bars(
        title,
        "; ".join(f"{name} tokens: {percent(v)}" for name, v in zip(names, values, strict=True)) + ".",
        names,
        [Bars("clip rate", values, [interval_of(b) for b in bins], notes)],
        TOKENS,
        "clip rate",
        reference=None if overall is None else (f"overall, {percent(overall)}", overall),
    )
    note = f"Step {row['step']} alone, from metrics.jsonl: there are no records to pool. Fair clipping is a level row."
    return Plot(title, svg, note)


def clip_heat(run: Run, runs: Sequence[Run]) -> Panel:
    """Rates by length through the steps, and the bars of the span that the slider chooses."""
    title = of_run("Clip rate by length through training", run, runs)
    records = run.records
    if records is None or not records.off_policy or not len(records.clip):
        return Missing(title, why_not(run))
    table = records.clip
    columns = sorted(set(table["column"].to_list()))
    place = {column: k for k, column in enumerate(columns)}
    parts = [table.filter(pl.col("column") == column) for column in columns]
    spans = [(float(p["first"].min()), float(p["last"].max())) for p in parts]  # type: ignore[arg-type]
    names = bin_names(records)
    cells = []
    for row in table.iter_rows(named=True):
        where = between((row["first"], row["last"]))
        note = f"{where}, {names[row['bin']]} tokens: {percent(row['clip_rate'])} of {row['count']:,}"
        cells.append(Cell(place[row["column"]], row["bin"], row["clip_rate"], note))
    rates = [c.value for c in cells]
    said = (
        f"{len(names)} bins of length over {records.steps} steps; clip rates from {percent(min(rates))} to "
        f"{percent(max(rates))}."
    )
    svg = charts.heat(title, said, spans, names, cells, TOKENS, "clip rate")
    chosen = [_span(part, len(names)) for part in parts]
    texts = [_said(span, part) for span, part in zip(spans, parts, strict=True)]
    last = chosen[-1]
    second_title = of_run("Clip rate by length, chosen steps", run, runs)
    bars = charts.bars(
        second_title,
        texts[-1],
        names,
        [
            Bars(
                "clip rate",
                [None if c is None else c[1] for c in last],
                [None if c is None else (c[2], c[3]) for c in last],
                ["no answers" if c is None else f"{c[0]:,} answers" for c in last],
            )
        ],
        TOKENS,
        "clip rate",
        reach=max((c[3] for row in chosen for c in row if c is not None), default=None),
    )
    return Plot(
        title,
        svg,
        "Fair clipping has no change from top to bottom, and level bars. Bins hold equal shares of all answers; the "
        "bars' axis is the same for all steps, their intervals are Wilson's at 95 %.",
        Plot(second_title, bars),
        {"spans": spans, "names": names, "texts": texts, "cells": chosen},
    )


def bin_names(records: Records) -> list[str]:
    edges = records.edges
    return [range_name(edges[0] if k == 0 else edges[k] + 1, edges[k + 1]) for k in range(len(edges) - 1)]


def _span(part: pl.DataFrame, bins: int) -> list[tuple[int, float, float, float] | None]:
    """Count, clip rate and its interval for each bin of a span of steps."""
    found: list[tuple[int, float, float, float] | None] = [None] * bins
    for row in part.iter_rows(named=True):
        low, high = wilson(row["count"] * row["clip_rate"], row["count"])
        found[row["bin"]] = (row["count"], round(row["clip_rate"], 5), round(low, 5), round(high, 5))
    return found


def _said(span: tuple[float, float], part: pl.DataFrame) -> str:
    count = int(part["count"].sum())
    rate = float((part["count"] * part["clip_rate"]).sum()) / count
    where = between(span)
    return f"{where[0].upper()}{where[1:]}: {percent(rate)} of {count:,} gradients clipped"


def clip_curve(runs: Sequence[Run]) -> Panel:
    title = "Clip rate"
    lines = overlay(runs, "clip_rate", "clip rate", colour=2)
    if not lines:
        return Missing(title, "No step has a clip rate.")
    values = known(lines)
    said = f"Between {percent(min(values))} and {percent(max(values))}."
    svg = charts.line(title, said, lines, y_label="clip rate", top=1.0, percent_axis=True)
    return Plot(title, svg, f"Share of each step's gradients that clipping removed. {smooth_note(lines)}".strip())
