"""What this run clipped by length, and what other ranges of the same overall rate would have clipped of its answers."""

from __future__ import annotations

from collections.abc import Sequence

from fspo import objectives
from fspo.fairness import FairnessReport, measure
from fspo.pages import charts
from fspo.pages.charts import Bars
from fspo.pages.plots import LAW_COLOURS, Missing, Panel, Plot
from fspo.report.panels.bands import LOWEST_RATE, clip_rate, comparison_rate, last_fairness, last_responses
from fspo.report.panels.phrases import between, range_name, why_no_clipping
from fspo.report.report_run import ReportRun
from fspo.report.row_summary import RowSummary
from fspo.runs.rows import HAS_GRADIENT
from fspo.text import percent

BINS = 6  # as many as have room for their names
LAWS = {
    name: (label, colour)
    for name, label, colour in zip(objectives.LENGTH_LAWS, ("FSPO", "GSPO", "fixed range"), LAW_COLOURS, strict=True)
}


def same_answers(runs: Sequence[ReportRun]) -> list[Panel]:
    """For the page of one run; several runs have the clip rates of their own side by side."""
    return [_beside_others(runs[0])] if len(runs) == 1 else []


def _beside_others(run: ReportRun) -> Panel:
    title = "Clip rate by length, and other ranges on the same answers"
    own = last_fairness(run.rows, BINS)
    if own is None or run.rows is None:
        return Missing(title, why_no_clipping(run))
    rate = comparison_rate(run.rows)
    reports: dict[str, tuple[FairnessReport, int]] = {"this run": (own, 1)} if own.clip_rate >= LOWEST_RATE else {}
    notes = []
    for name, (label, colour) in LAWS.items():
        if reports and name == run.objective.get("name"):
            continue  # the run itself
        found = clipped_by(name, run.rows, rate)
        if isinstance(found, str):
            notes.append(f"{label} {found}.")
        else:
            reports[label] = found, colour
    names = [range_name(b.low, b.high) for b in own.bins]
    groups = [
        Bars(label, [b.clip_rate for b in report.bins], [b.clip_interval for b in report.bins],
             [f"{b.count:,} answers" for b in report.bins], colour)
        for label, (report, colour) in reports.items()
    ]  # fmt: skip
    flat = ", ".join(f"{label} {100 * report.flatness:.1f}" for label, (report, _) in reports.items())
    svg = charts.bars(
        title, f"Difference between the highest and the lowest clip rate, in points: {flat}.", names, groups,
        "answer length (tokens)", "clip rate", reference=(f"overall, {percent(rate)}", rate),
    )  # fmt: skip
    return Plot(title, svg, " ".join([f"Highest minus lowest rate, in points: {flat}.", _which(run.rows), *notes]))


def clipped_by(name: str, rows: RowSummary, rate: float) -> FairnessReport | str:
    """The clip rates by length of an objective whose range clips this share of the last rows; or why it cannot."""
    at_rate = objectives.get(name).at_clip_rate(last_responses(rows), rate)
    if at_rate.accepted is None:
        return at_rate.note
    has_gradient = rows.last.select(HAS_GRADIENT).to_series().to_numpy()
    return measure(rows.last["length"].to_numpy()[has_gradient], at_rate.accepted[has_gradient], BINS)


def _which(rows: RowSummary) -> str:
    of = f"Off-policy updates of {between(rows.last_steps)}"
    own = clip_rate(rows)
    if own is None or own < LOWEST_RATE:
        rate = percent(comparison_rate(rows))
        return f"{of}. The run clipped only {percent(own)}, so every range is set to clip {rate}."
    return f"{of}; the other ranges are set to clip the same share. Bars of equal height are fair to every length."
