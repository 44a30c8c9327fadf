"""Does clipping remove answers of every length at the same rate? Clip rates by length, pooled and through the steps."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import polars as pl

from fspo.fairness import cut, quantile_edges, wilson
from fspo.pages import charts
from fspo.pages.charts import Bars, HeatCell
from fspo.pages.plots import Missing, Panel, Plot, Slider, colour_of
from fspo.report.panels.bands import last_fairness
from fspo.report.panels.phrases import between, of_run, range_name, why_no_clipping
from fspo.report.panels.series import metrics_of, overlay, smooth_note, values_of
from fspo.report.report_run import ReportRun
from fspo.report.row_summary import LENGTH_BINS, RowSummary
from fspo.text import percent

TOKENS = "answer length (tokens)"
BinRate = tuple[int, float, float, float]  # count, clip rate and its interval


def clip_rates(runs: Sequence[ReportRun]) -> list[Panel]:
    return [_clip_bars(runs), _clip_curve(runs), *(_clip_heat(run, runs) for run in runs)]


def _clip_bars(runs: Sequence[ReportRun]) -> Panel:
    title = "Clip rate by length, last steps"
    summaries = [(k, run, run.rows) for k, run in enumerate(runs) if run.rows is not None and run.rows.off_policy]
    shown = [(k, run, rows) for k, run, rows in summaries if not rows.last_with_gradient.is_empty()]
    if not shown:
        return _bars_of_metrics(title, runs[-1])
    # The bins of all runs together, so that bars side by side are of the same lengths.
    lengths = np.concatenate([rows.last_with_gradient["length"].to_numpy() for _, _, rows in shown])
    edges = quantile_edges(lengths, LENGTH_BINS)
    together = cut(lengths, edges)
    names = [range_name(low, high) for low, high in together.ranges]
    groups, overall = [], None
    for k, run, rows in shown:
        report = last_fairness(rows, list(edges))
        assert report is not None
        bins = {int(np.searchsorted(edges, b.high, side="left")): b for b in report.bins}
        found = [bins.get(int(j)) for j in together.numbers]
        groups.append(
            Bars(
                "clip rate" if len(runs) == 1 else run.name,
                [None if b is None else b.clip_rate for b in found],
                [None if b is None else b.clip_interval for b in found],
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
    which = between(shown[0][2].last_steps) if len(shown) == 1 else "each run's last steps"
    return Plot(
        title,
        svg,
        f"Off-policy updates of {which}, pooled, without answers whose advantage is 0; 95 % intervals (Wilson). Bars "
        "of equal height mean fair clipping.",
    )


def _bars_of_metrics(title: str, run: ReportRun) -> Panel:
    """The rates that the trainer itself wrote for its last step."""
    line = next((line for line in reversed(run.metrics) if line.clip_by_length), None)
    if line is None:
        return Missing(title, why_no_clipping(run))
    bins = line.clip_by_length
    names = [range_name(b.low, b.high) for b in bins]
    svg = charts.bars(
        title,
        "; ".join(f"{name} tokens: {percent(b.clip_rate)}" for name, b in zip(names, bins, strict=True)) + ".",
        names,
        [Bars("clip rate", [b.clip_rate for b in bins], [b.interval for b in bins],
              [f"{b.count:,} answers" for b in bins])],
        TOKENS,
        "clip rate",
        reference=None if line.clip_rate is None else (f"overall, {percent(line.clip_rate)}", line.clip_rate),
    )  # fmt: skip
    note = f"Step {line.step} alone, from metrics.jsonl: there are no rows to pool."
    return Plot(title, svg, f"{note} Bars of equal height mean fair clipping.")


def _clip_heat(run: ReportRun, runs: Sequence[ReportRun]) -> Panel:
    """Rates by length through the steps, and the bars of the span that the slider chooses."""
    title = of_run("Clip rate by length through training", run, runs)
    rows = run.rows
    if rows is None or not rows.off_policy or rows.clip.is_empty():
        return Missing(title, why_no_clipping(run))
    columns = sorted(set(rows.clip["column"].to_list()))
    place = {column: k for k, column in enumerate(columns)}
    parts = [rows.clip.filter(pl.col("column") == column) for column in columns]
    spans = [(float(p["first"].min()), float(p["last"].max())) for p in parts]  # type: ignore[arg-type]
    names = _bin_names(rows)
    cells = []
    for row in rows.clip.iter_rows(named=True):
        where = between((row["first"], row["last"]))
        note = f"{where}, {names[row['bin']]} tokens: {percent(row['clip_rate'])} of {row['count']:,}"
        cells.append(HeatCell(place[row["column"]], row["bin"], row["clip_rate"], note))
    rates = [c.value for c in cells]
    said = (
        f"{len(names)} bins of length over {rows.steps} steps; clip rates from {percent(min(rates))} to "
        f"{percent(max(rates))}."
    )
    return Plot(
        title,
        charts.heat(title, said, spans, names, cells, TOKENS, "clip rate"),
        "Fair clipping has no change from top to bottom, and bars of equal height. Bins hold equal shares of all "
        "answers; the bars' axis is the same for all steps, their intervals are Wilson's at 95 %.",
        _slider(of_run("Clip rate by length, chosen steps", run, runs), spans, names, parts),
    )


def _slider(title: str, spans: list[tuple[float, float]], names: list[str], parts: Sequence[pl.DataFrame]) -> Slider:
    cells = [_rates(part, len(names)) for part in parts]
    texts = [_sentence(span, part) for span, part in zip(spans, parts, strict=True)]
    last = cells[-1]
    bars = Bars(
        "clip rate",
        [None if c is None else c[1] for c in last],
        [None if c is None else (c[2], c[3]) for c in last],
        ["no answers" if c is None else f"{c[0]:,} answers" for c in last],
    )
    reach = max((c[3] for row in cells for c in row if c is not None), default=None)
    chart = charts.bars(title, texts[-1], names, [bars], TOKENS, "clip rate", reach=reach)
    return Slider(chart, spans, names, texts, cells)


def _bin_names(rows: RowSummary) -> list[str]:
    edges = rows.edges
    return [range_name(edges[0] if k == 0 else edges[k] + 1, edges[k + 1]) for k in range(len(edges) - 1)]


def _rates(part: pl.DataFrame, bins: int) -> list[BinRate | None]:
    """The clip rate of each bin in a span of steps."""
    found: list[BinRate | None] = [None] * bins
    for row in part.iter_rows(named=True):
        low, high = wilson(row["count"] * row["clip_rate"], row["count"])
        found[row["bin"]] = (row["count"], round(row["clip_rate"], 5), round(low, 5), round(high, 5))
    return found


def _sentence(span: tuple[float, float], part: pl.DataFrame) -> str:
    count = int(part["count"].sum())
    rate = float((part["count"] * part["clip_rate"]).sum()) / count
    where = between(span)
    return f"{where[0].upper()}{where[1:]}: {percent(rate)} of {count:,} gradients clipped"


def _clip_curve(runs: Sequence[ReportRun]) -> Panel:
    title = "Clip rate"
    lines = overlay(metrics_of(runs), lambda m: m.clip_rate, "clip rate", colour=2)
    if not lines:
        return Missing(title, "No step has a clip rate.")
    values = values_of(lines)
    said = f"Between {percent(min(values))} and {percent(max(values))}."
    svg = charts.line(title, said, lines, y_label="clip rate", top=1.0, percent_axis=True)
    return Plot(title, svg, f"Share of each step's gradients that clipping removed. {smooth_note(lines)}".strip())
