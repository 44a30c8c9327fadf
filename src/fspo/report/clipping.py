"""Does clipping remove answers of every length at the same rate, and what does that guarantee for the update?

Clip rates by length over the last steps and through training, beside those of other ranges on the same answers; the
LRE, and the cosine of the update that it can guarantee.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import polars as pl

from fspo import objectives
from fspo.fairness import FairnessReport, cosine_bound, measure, wilson
from fspo.fairness.bins import cut
from fspo.pages import charts
from fspo.pages.charts import Bars, HeatCell, Series
from fspo.pages.document import Missing, Panel, Plot, Slider, colour_of
from fspo.report.report_run import LENGTH_BINS, LOWEST_RATE, ReportRun, RowSummary
from fspo.report.series import TOKENS, MetricPanel, between, of_run, overlay, range_name, values_of, why_no_clipping
from fspo.runs.rows import HAS_GRADIENT
from fspo.text import percent, short

SAME_ANSWERS_BINS = 6  # as many as have space for their names
KAPPAS = (1.0, 1.5, 2.0)


class BinRate(NamedTuple):
    """The clip rate of a bin of lengths, with its interval."""

    answers: int
    rate: float
    low: float
    high: float


def _rate(count: int, clipped: float) -> BinRate | None:
    """The rate of a bin, with Wilson's interval; None for an empty bin."""
    return BinRate(count, clipped / count, *wilson(clipped, count)) if count else None


def _bars(label: str, rates: Sequence[BinRate | None], colour: int = 1) -> Bars:
    return Bars(
        label,
        [None if b is None else b.rate for b in rates],
        [None if b is None else (b.low, b.high) for b in rates],
        ["no answers" if b is None else f"{b.answers:,} answers" for b in rates],
        colour,
    )


def same_answers(runs: Sequence[ReportRun]) -> list[Panel]:
    """For the page of one run; several runs have the clip rates of their own side by side."""
    return [_beside_others(runs[0])] if len(runs) == 1 else []


def clip_rates(runs: Sequence[ReportRun]) -> list[Panel]:
    return [_last_steps(runs), CLIP_RATE.panel(runs), *(_through_training(run, runs) for run in runs)]


def guarantee(runs: Sequence[ReportRun]) -> list[Panel]:
    return [LRE.panel(runs), _implied_bound(runs), _measured_cosine(runs)]


CLIP_RATE = MetricPanel(
    "Clip rate", "clip rate", lambda m: m.clip_rate, 2, share=True, label="clip rate",
    note="Share of each step's gradients that clipping removed.",
    missing="No step has a clip rate.",
)  # fmt: skip

LRE = MetricPanel(
    "Length Reweighting Error", "LRE (worst bin)", lambda m: m.lre, 4, label="LRE", interval=lambda m: m.lre_interval,
    note="Each step alone: a step has few answers per bin, and their noise raises the LRE above 0.",
    missing="No step has an LRE: it needs updates in which something was clipped.",
)  # fmt: skip


# --- Clip rates on the same answers ---


def _beside_others(run: ReportRun) -> Panel:
    """What this run clipped by length, and what other ranges of the same overall rate would have clipped."""
    title = "Clip rate by length, and other ranges on the same answers"
    own = run.fairness(SAME_ANSWERS_BINS)
    if own is None or run.rows is None:
        return Missing(title, why_no_clipping(run))
    rate = run.rows.comparison_rate
    reports: dict[str, tuple[FairnessReport, int]] = {"this run": (own, 1)} if own.clip_rate >= LOWEST_RATE else {}
    notes = []
    for name in objectives.LENGTH_LAWS:
        method = objectives.get_class(name)
        if reports and name == run.objective.get("name"):
            continue  # the run itself
        report = clipped_by(name, run.rows, rate)
        if isinstance(report, str):
            notes.append(f"{method.label} {report}.")
        else:
            reports[method.label] = report, method.color
    groups = [
        _bars(label, [BinRate(b.count, b.clip_rate, *b.clip_interval) for b in report.bins], colour)
        for label, (report, colour) in reports.items()
    ]
    flat = ", ".join(f"{label} {100 * report.flatness:.1f}" for label, (report, _) in reports.items())
    svg = charts.bars(
        title, f"Difference between the highest and the lowest clip rate, in points: {flat}.",
        [range_name(b.low, b.high) for b in own.bins], groups, TOKENS, "clip rate",
        reference=(f"overall, {percent(rate)}", rate),
    )  # fmt: skip
    return Plot(title, svg, " ".join([f"Highest minus lowest rate, in points: {flat}.", _which(run.rows), *notes]))


def clipped_by(name: str, rows: RowSummary, rate: float) -> FairnessReport | str:
    """The clip rates by length of an objective whose range clips this share of the last rows; or why it cannot."""
    at_rate = rows.at_clip_rate(name, rate)
    if at_rate.accepted is None:
        return at_rate.note
    has_gradient = rows.last.select(HAS_GRADIENT).to_series().to_numpy()
    lengths = rows.last["length"].to_numpy()
    return measure(lengths[has_gradient], at_rate.accepted[has_gradient], SAME_ANSWERS_BINS)


def _which(rows: RowSummary) -> str:
    updates = f"Off-policy updates of {between(rows.last_steps)}"
    own = rows.clip_rate
    if own is None or own < LOWEST_RATE:
        rate = percent(rows.comparison_rate)
        return f"{updates}. The run clipped only {percent(own)}, so every range is set to clip {rate}."
    return f"{updates}; the other ranges are set to clip the same share. Bars of equal height are fair to every length."


# --- Clip rates of the runs ---


def _last_steps(runs: Sequence[ReportRun]) -> Panel:
    """Clip rates by length, in the bins of all runs together, so that bars side by side are of the same lengths."""
    title = "Clip rate by length, last steps"
    summaries = [(k, run, run.rows) for k, run in enumerate(runs) if run.rows is not None and run.rows.off_policy]
    shown = [(k, run, rows) for k, run, rows in summaries if not rows.last_with_gradient.is_empty()]
    if not shown:
        return _last_metrics(title, runs[-1])
    tables = [rows.last_with_gradient for _, _, rows in shown]
    bins = cut(np.concatenate([table["length"].to_numpy() for table in tables]), LENGTH_BINS)
    names = [range_name(low, high) for low, high in bins.ranges]
    groups = []
    parts = np.split(bins.index, np.cumsum([len(table) for table in tables])[:-1])
    for (k, run, _), table, index in zip(shown, tables, parts, strict=True):
        counts = np.bincount(index, minlength=len(bins))
        clipped = np.bincount(index, 1 - table["accepted"].to_numpy(), len(bins))
        rates = [_rate(int(count), float(lost)) for count, lost in zip(counts, clipped, strict=True)]
        one = len(runs) == 1
        groups.append(_bars("clip rate" if one else run.name, rates, 1 if one else colour_of(k)))
    said = "; ".join(
        f"{g.label}: " + ", ".join(f"{name} tokens {percent(v)}" for name, v in zip(names, g.values, strict=True))
        for g in groups
    )
    overall = shown[0][2].clip_rate
    reference = (f"overall, {percent(overall)}", overall) if len(runs) == 1 and overall is not None else None
    svg = charts.bars(title, said + ".", names, groups, TOKENS, "clip rate", reference=reference)
    which = between(shown[0][2].last_steps) if len(shown) == 1 else "each run's last steps"
    return Plot(
        title,
        svg,
        f"Off-policy updates of {which}, pooled, without answers whose advantage is 0; 95 % intervals (Wilson). Bars "
        "of equal height mean fair clipping.",
    )


def _last_metrics(title: str, run: ReportRun) -> Panel:
    """The rates that the trainer itself wrote for its last step, where rows are not recorded."""
    line = next((line for line in reversed(run.metrics) if line.clip_by_length), None)
    if line is None:
        return Missing(title, why_no_clipping(run))
    bins = line.clip_by_length
    names = [range_name(b.low, b.high) for b in bins]
    said = "; ".join(f"{name} tokens: {percent(b.clip_rate)}" for name, b in zip(names, bins, strict=True))
    bars = _bars("clip rate", [BinRate(b.count, b.clip_rate, *b.interval) for b in bins])
    overall = None if line.clip_rate is None else (f"overall, {percent(line.clip_rate)}", line.clip_rate)
    svg = charts.bars(title, f"{said}.", names, [bars], TOKENS, "clip rate", reference=overall)
    note = f"Step {line.step} alone, from metrics.jsonl: there are no rows to pool."
    return Plot(title, svg, f"{note} Bars of equal height mean fair clipping.")


def _through_training(run: ReportRun, runs: Sequence[ReportRun]) -> Panel:
    """Rates by length through the steps, and the bars of the span that the slider chooses."""
    title = of_run("Clip rate by length through training", run, runs)
    rows = run.rows
    if rows is None or not rows.off_policy or rows.clip.is_empty():
        return Missing(title, why_no_clipping(run))
    parts = rows.clip.partition_by("column", maintain_order=True)
    spans = [(float(p["first"].min()), float(p["last"].max())) for p in parts]  # type: ignore[arg-type]
    edges = rows.edges
    names = [range_name(edges[0] if k == 0 else edges[k] + 1, edges[k + 1]) for k in range(len(edges) - 1)]
    cells = []
    for column, part in enumerate(parts):
        for row in part.iter_rows(named=True):
            where = between((row["first"], row["last"]))
            note = f"{where}, {names[row['bin']]} tokens: {percent(row['clip_rate'])} of {row['count']:,}"
            cells.append(HeatCell(column, row["bin"], row["clip_rate"], note))
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
    reach = max((c.high for row in cells for c in row if c is not None), default=None)
    bars = _bars("clip rate", cells[-1])
    chart = charts.bars(title, texts[-1], names, [bars], TOKENS, "clip rate", reach=reach)
    return Slider(chart, spans, names, texts, cells)


def _rates(part: pl.DataFrame, bins: int) -> list[BinRate | None]:
    """The clip rate of each bin in a span of steps."""
    rates: list[BinRate | None] = [None] * bins
    for row in part.iter_rows(named=True):
        rate = _rate(row["count"], row["count"] * row["clip_rate"])
        assert rate is not None
        rates[row["bin"]] = BinRate(rate.answers, *(round(v, 5) for v in rate[1:]))
    return rates


def _sentence(span: tuple[float, float], part: pl.DataFrame) -> str:
    count = int(part["count"].sum())
    rate = float((part["count"] * part["clip_rate"]).sum()) / count
    where = between(span)
    return f"{where[0].upper()}{where[1:]}: {percent(rate)} of {count:,} gradients clipped"


# --- What the LRE guarantees ---


def _implied_bound(runs: Sequence[ReportRun]) -> Panel:
    """The guaranteed cosine over eta, which runs do not record; no line where nothing is guaranteed."""
    title = "Cosine that this LRE can guarantee"
    reports = [(k, run, report) for k, run in enumerate(runs) if (report := run.fairness()) is not None]
    if not reports:
        return Missing(title, why_no_clipping(runs[-1]))
    if len(reports) == 1:
        report = reports[0][2]
        lines = [_bound(f"κ = {kappa:g}", report, kappa, k + 1) for k, kappa in enumerate(KAPPAS)]
    else:
        lines = [_bound(f"{run.name}, κ = 1", report, 1.0, colour_of(k)) for k, run, report in reports]
    ends = [max(0.0, (1 - report.lre) / (1 + report.lre)) for _, _, report in reports]
    end = f"{ends[0]:.2f}" if len(ends) == 1 else f"{min(ends):.2f} to {max(ends):.2f}"
    which = f"LRE {reports[0][2].lre:.3f}" if len(reports) == 1 else "the runs' LRE"
    said = f"With {which} over the last steps, nothing is guaranteed for η above {end}, even in the best case, κ = 1."
    svg = charts.line(title, said, lines, "η", "guaranteed cosine", top=1.0, whole_x=False)
    note = (
        " η is how strongly clipping selects by gradient inside a bin, κ how far the gradients of the bins cancel; "
        "both need the gradients of each bin, which a run does not record. On a small transformer η was between 0.7 "
        "and 1 (docs/method.md): without a measured η, read this as no guarantee."
    )
    return Plot(title, svg, said + note)


def _bound(label: str, report: FairnessReport, kappa: float, colour: int) -> Series:
    shares, rates = [b.share for b in report.bins], [b.acceptance for b in report.bins]
    eta = np.linspace(0, 1, 201)
    # At eta = 0 exactly a tighter bound holds, which would draw a jump.
    bounds = [cosine_bound(shares, rates, [1.0] * len(rates), 1 / kappa, max(1e-9, float(e))).cosine for e in eta]
    return Series(label, list(eta), [None if b < 0 else b for b in bounds], colour=colour)


def _measured_cosine(runs: Sequence[ReportRun]) -> Panel:
    title = "Measured cosine of the clipped and the true update"
    lines = overlay([(run.name, run.cosine) for run in runs], lambda c: c.measured, "measured", smooth=False)
    if not lines:
        return Missing(
            title,
            "Not recorded: it takes the gradients of every bin of length. `fspo train log.cosine=10` measures it every "
            "10 steps.",
        )
    values = values_of(lines)
    said = f"Between {short(min(values))} and {short(max(values))}."
    if len(runs) == 1:
        held = [None if c.bound <= -1 else c.bound for c in runs[0].cosine]
        said += f" The bound guaranteed nothing in {held.count(None)} of {len(held)} measurements."
        if any(v is not None for v in held):
            lines.append(Series("guaranteed", [c.step for c in runs[0].cosine], held, colour=4, dashed=True))
    svg = charts.line(title, said, lines, y_label="cosine", top=1.0)
    note = (
        " Between the last update of a step and the unclipped update of whole answers: a method that weighs tokens or "
        "answers differently has another direction even where nothing is clipped."
    )
    return Plot(title, svg, said + note)
