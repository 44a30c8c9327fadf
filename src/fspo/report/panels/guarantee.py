"""The LRE through the steps, and what it can and cannot guarantee about the direction of the update."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fspo.fairness import FairnessReport, cosine_bound
from fspo.pages import charts
from fspo.pages.charts import Series
from fspo.pages.plots import Missing, Panel, Plot, colour_of
from fspo.report.panels.bands import last_fairness
from fspo.report.panels.phrases import why_no_clipping
from fspo.report.panels.series import metrics_of, overlay, values_of
from fspo.report.report_run import ReportRun
from fspo.text import short

KAPPAS = (1.0, 1.5, 2.0)


def guarantee(runs: Sequence[ReportRun]) -> list[Panel]:
    return [_lre_curve(runs), _implied_bound(runs), _measured_cosine(runs)]


def _lre_curve(runs: Sequence[ReportRun]) -> Panel:
    title = "Length Reweighting Error"
    lines = overlay(metrics_of(runs), lambda m: m.lre, "LRE", colour=4, interval=lambda m: m.lre_interval)
    if not lines:
        return Missing(title, "No step has an LRE: it needs updates in which something was clipped.")
    values = values_of(lines)
    said = f"Between {short(min(values))} and {short(max(values))}; 0 is fair."
    svg = charts.line(title, said, lines, y_label="LRE (worst bin)")
    note = "Each step alone: a step has few answers per bin, and their noise raises the LRE above 0."
    return Plot(title, svg, note + (" The band is its interval." if len(runs) == 1 else ""))


def _implied_bound(runs: Sequence[ReportRun]) -> Panel:
    """The guaranteed cosine over eta, which runs do not record; no line where nothing is guaranteed."""
    title = "Cosine that this LRE can guarantee"
    found = [(k, run, report) for k, run in enumerate(runs) if (report := last_fairness(run.rows)) is not None]
    if not found:
        return Missing(title, why_no_clipping(runs[-1]))
    if len(found) == 1:
        report = found[0][2]
        lines = [_bound(f"κ = {kappa:g}", report, kappa, k + 1) for k, kappa in enumerate(KAPPAS)]
    else:
        lines = [_bound(f"{run.name}, κ = 1", report, 1.0, colour_of(k)) for k, run, report in found]
    ends = [max(0.0, (1 - report.lre) / (1 + report.lre)) for _, _, report in found]
    end = f"{ends[0]:.2f}" if len(ends) == 1 else f"{min(ends):.2f} to {max(ends):.2f}"
    which = f"LRE {found[0][2].lre:.3f}" if len(found) == 1 else "the runs' LRE"
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
