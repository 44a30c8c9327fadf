"""Does clipping remove answers of every length at the same rate, and how far does it turn the update?

Clip rates by length over the last steps and through training, beside those of other ranges on the same answers; the
LRE, and the measured cosine of the clipped update.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from fspo import objectives
from fspo.fairness import FairnessReport, cut, measure, wilson
from fspo.pages import charts
from fspo.pages.charts import Bars, Series
from fspo.pages.document import Missing, Panel, Plot, colour_of
from fspo.report.report_run import LENGTH_BINS, LOWEST_RATE, ReportRun, RowSummary
from fspo.report.series import TOKENS, MetricPanel, between, of_run, overlay, range_name, values_of, why_no_clipping
from fspo.runs.rows import HAS_GRADIENT
from fspo.text import percent, short

SAME_ANSWERS_BINS = 6  # as many as have space for their names


class BinRate(NamedTuple):
    """The clip rate of a bin of lengths, with its interval."""

    answers: int
    rate: float
    low: float
    high: float


def _rate(count: int, clipped: float) -> BinRate:
    """The rate of a bin that is not empty, with Wilson's interval."""
    return BinRate(count, clipped / count, *wilson(clipped, count))


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
    """Beside the overview's bars: over the steps, and for several runs the bars of all of them."""
    bars = [_last_steps(runs)] if len(runs) > 1 else []
    return [*bars, CLIP_RATE.panel(runs), *(_through_training(run, runs) for run in runs)]


def direction(runs: Sequence[ReportRun]) -> list[Panel]:
    return [LRE.panel(runs), _measured_cosine(runs)]


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
    tables = [(k, run.rows.last_with_gradient) for k, run in enumerate(runs) if run.rows and run.rows.off_policy]
    tables = [(k, table) for k, table in tables if not table.is_empty()]
    if not tables:
        return Missing(title, why_no_clipping(runs[-1]))
    bins = cut(np.concatenate([table["length"].to_numpy() for _, table in tables]), LENGTH_BINS)
    names = [range_name(low, high) for low, high in bins.ranges]
    groups = []
    parts = np.split(bins.index, np.cumsum([len(table) for _, table in tables])[:-1])
    for (k, table), index in zip(tables, parts, strict=True):
        counts = np.bincount(index, minlength=len(bins))
        clipped = np.bincount(index, 1 - table["accepted"].to_numpy(), len(bins))
        rates = [_rate(int(n), float(lost)) if n else None for n, lost in zip(counts, clipped, strict=True)]
        groups.append(_bars(runs[k].name, rates, colour_of(k)))
    said = "; ".join(
        f"{g.label}: " + ", ".join(f"{name} tokens {percent(v)}" for name, v in zip(names, g.values, strict=True))
        for g in groups
    )
    return Plot(
        title,
        charts.bars(title, said + ".", names, groups, TOKENS, "clip rate"),
        "Off-policy updates of each run's last steps, pooled, without answers whose advantage is 0; 95 % intervals "
        "(Wilson). Bars of equal height mean fair clipping.",
    )


def _through_training(run: ReportRun, runs: Sequence[ReportRun]) -> Panel:
    """One line per bin of length: fair clipping keeps them together."""
    title = of_run("Clip rate by length through training", run, runs)
    rows = run.rows
    if rows is None or not rows.off_policy or rows.clip.is_empty():
        return Missing(title, why_no_clipping(run))
    lines, said = [], []
    for k, part in enumerate(rows.clip.partition_by("bin", maintain_order=True)):
        name = f"{range_name(part['shortest'].min(), part['longest'].max())} tokens"
        rates = [_rate(count, count * rate) for count, rate in part.select("count", "clip_rate").iter_rows()]
        lines.append(
            Series(name, ((part["first"] + part["last"]) / 2).to_list(), [b.rate for b in rates],
                   [b.low for b in rates], [b.high for b in rates], colour=colour_of(k))
        )  # fmt: skip
        said.append(f"{name}: {percent(rates[0].rate)} to {percent(rates[-1].rate)}")
    svg = charts.line(title, "; ".join(said) + ".", lines, y_label="clip rate", top=1.0, percent_axis=True)
    note = (
        "Equal shares of the answers in each bin; intervals are Wilson's at 95 %. Fair clipping keeps lines together."
    )
    return Plot(title, svg, f"{'; '.join(said)}. {note}")


# --- The cosine of the update ---


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
