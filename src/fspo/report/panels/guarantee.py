"""The LRE through the steps, and what it can and cannot guarantee about the direction of the update."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from fspo.fairness import FairnessReport, cosine_bound
from fspo.report import charts
from fspo.report.charts import Series
from fspo.report.load import Run
from fspo.report.panels.parts import Missing, Panel, Plot, colour_of
from fspo.report.panels.rows import known, overlay, why_not
from fspo.report.panels.statistics import last_fairness
from fspo.report.text import number, short

KAPPAS = (1.0, 1.5, 2.0)


def guarantee(runs: Sequence[Run]) -> list[Panel]:
    return [lre_curve(runs), implied_bound(runs), measured_cosine(runs)]


def lre_curve(runs: Sequence[Run]) -> Panel:
    title = "Length Reweighting Error"
    lines = overlay(runs, "lre", "LRE", colour=4, interval="lre_interval")
    if not lines:
        return Missing(title, "No step has an LRE: it needs updates in which something was clipped.")
    values = known(lines)
    svg = charts.line(
        title, f"Between {short(min(values))} and {short(max(values))}; 0 is fair.", lines, y_label="LRE (worst bin)"
    )  # fmt: skip
    note = "Each step alone: a step has few answers a bin, so noise lifts it above 0."
    return Plot(title, svg, note + (" The band is its interval." if len(runs) == 1 else ""))


def implied_bound(runs: Sequence[Run]) -> Panel:
    """The guaranteed cosine over eta, which no run records: where the line ends, nothing is guaranteed."""
    title = "Cosine that this LRE can guarantee"
    found = [(k, run, report) for k, run in enumerate(runs) if (report := last_fairness(run.records)) is not None]
    if not found:
        return Missing(title, why_not(runs[-1]))
    lines = []
    if len(found) == 1:
        report = found[0][2]
        lines = [_bound(f"κ = {kappa:g}", report, kappa, k + 1) for k, kappa in enumerate(KAPPAS)]
    else:
        lines = [_bound(f"{run.name}, κ = 1", report, 1.0, colour_of(k)) for k, run, report in found]
    ends = [max(0.0, (1 - report.lre) / (1 + report.lre)) for _, _, report in found]
    end = f"{ends[0]:.2f}" if len(ends) == 1 else f"{min(ends):.2f} to {max(ends):.2f}"
    which = f"LRE {found[0][2].lre:.3f}" if len(found) == 1 else "the runs' LRE"
    said = (
        f"With {which} over the last steps, even in the kindest case (κ = 1) nothing is guaranteed once η passes {end}."
    )
    svg = charts.line(title, said, lines, "η", "guaranteed cosine", top=1.0, whole_x=False)
    note = (
        " η is how much clipping picks by gradient inside a bin, κ how far the bins' gradients cancel; both need "
        "gradients of each bin, which a run does not record. On a small transformer η came out between 0.7 and 1 "
        "(docs/method.md): read this as no guarantee unless you measure η."
    )
    return Plot(title, svg, said + note)


def _bound(label: str, report: FairnessReport, kappa: float, colour: int) -> Series:
    shares, rates = [b.share for b in report.bins], [b.acceptance for b in report.bins]
    eta = np.linspace(0, 1, 201)
    # An eta of exactly 0 would give the tighter bound of that case, and a jump.
    bounds = [cosine_bound(shares, rates, [1.0] * len(rates), 1 / kappa, max(1e-9, float(e))).cosine for e in eta]
    return Series(label, list(eta), [None if b < 0 else b for b in bounds], colour=colour)


def measured_cosine(runs: Sequence[Run]) -> Panel:
    title = "Measured cosine of the clipped and the true update"
    lines = overlay([replace(run, metrics=run.cosine) for run in runs], "measured", "measured", smooth=False)
    if not lines:
        return Missing(
            title,
            "Not recorded: it takes the gradients of every bin of length. `fspo train log.cosine=10` measures it every "
            "10 steps.",
        )
    values = known(lines)
    said = f"Between {short(min(values))} and {short(max(values))}."
    if len(runs) == 1:
        bounds = [number(row.get("bound")) for row in runs[0].cosine]
        held = [None if b is None or b <= -1 else b for b in bounds]
        said += f" The bound said nothing in {held.count(None)} of {len(held)} measurements."
        if any(v is not None for v in held):
            steps = [row["step"] for row in runs[0].cosine]
            lines.append(Series("guaranteed", steps, held, colour=4, dashed=True))
    svg = charts.line(title, said, lines, y_label="cosine", top=1.0)
    note = (
        " Of the last update of a step, with the unclipped update of whole answers: a method that weighs tokens or "
        "answers in another way is turned even where nothing is clipped."
    )
    return Plot(title, svg, said + note)
