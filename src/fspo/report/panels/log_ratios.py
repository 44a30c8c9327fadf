"""The log-ratio S against the length, with the band of each method, and its scaled form z."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import polars as pl

from fspo.fairness import scaling_law
from fspo.pages import charts
from fspo.pages.charts import Points, Series
from fspo.pages.plots import Missing, Panel, Plot
from fspo.ratios import Floats
from fspo.report.panels.bands import (
    DrawnBand,
    clip_rate,
    comparison_rate,
    last_scale,
    own_objective,
    own_rule,
    rules_at,
)
from fspo.report.panels.phrases import between, of_run, why_no_clipping
from fspo.report.report_run import ReportRun
from fspo.report.row_summary import RowSummary
from fspo.text import percent, short

SCATTER_POINTS = 2000


def log_ratios(runs: Sequence[ReportRun]) -> list[Panel]:
    return [panel for run in runs for panel in (_scatter(run, runs), _z_histogram(run, runs))]


def _scatter(run: ReportRun, runs: Sequence[ReportRun]) -> Panel:
    title = of_run("Log-ratio S against length L", run, runs)
    scale, rows = last_scale(run), run.rows
    if scale is None or rows is None:
        return Missing(title, why_no_clipping(run))
    some = rows.last.sample(SCATTER_POINTS, seed=0) if len(rows.last) > SCATTER_POINTS else rows.last
    groups = []
    for label, colour, part in (
        ("kept", 1, some.filter(pl.col("accepted") > 0.5)),
        ("clipped", 2, some.filter(pl.col("accepted") <= 0.5)),
    ):
        groups.append(Points(label, part["length"].to_list(), part["log_ratio"].to_list(), colour))
    longest = float(rows.last["length"].max())  # type: ignore[arg-type]
    L = np.linspace(0, charts.span([longest], True, whole=True)[1], 81)
    own = own_rule(run)
    rate = comparison_rate(rows)
    found, notes = rules_at(rows, rate)
    others = [rule for rule in found if own is None or rule.objective.name != own.objective.name]
    svg = charts.scatter(
        title,
        f"{len(some):,} answers of {between(rows.last_steps)}; drift {short(scale.mu)} per token, scale "
        f"{short(scale.sigma)}.",
        groups,
        _curves(own, L, f"{own.name}, the run's band", False) if own else [],
        [line for rule in others for line in _curves(rule, L, rule.name, True)],
        "answer length L (tokens)",
        "S = log π − log π_old",
    )
    said = f"Solid: the run's range, {own.text}." if own else _why_no_band(run)
    return Plot(title, svg, f"{said} {_caption(others, notes, rate, len(some), rows)}")


def _curves(rule: DrawnBand, L: Floats, label: str, dashed: bool) -> list[Series]:
    low, high = rule.bounds(L)
    return [
        Series(label, list(L), [float(v) for v in high], colour=rule.colour, dashed=dashed),
        Series("", list(L), [float(v) for v in low], colour=rule.colour, dashed=dashed),
    ]


def _why_no_band(run: ReportRun) -> str:
    if own_objective(run) is None:
        reason = "The run's objective is not known here, so its range is not drawn"
        return f"{reason}: --trust imports it." if ":" in str(run.objective.get("name")) else f"{reason}."
    return f"{run.objective['name']} has no range of S that depends on the length alone."


def _caption(others: Sequence[DrawnBand], notes: Sequence[str], rate: float, drawn: int, rows: RowSummary) -> str:
    at = f"the run's clip rate, {percent(rate)}" if rate == clip_rate(rows) else percent(rate)
    text = f"Dashed: other methods set to {at}, on these answers: {'; '.join(rule.text for rule in others)}. "
    text += "".join(f"{note}. " for note in notes)
    text += "An answer outside is clipped only if its advantage would push it further out."
    return text + (f" {drawn:,} of {len(rows.last):,} answers drawn." if drawn < len(rows.last) else "")


def _z_histogram(run: ReportRun, runs: Sequence[ReportRun]) -> Panel:
    title = of_run("Scaled log-ratio z = (S − μL) / √L", run, runs)
    scale, rows = last_scale(run), run.rows
    if scale is None or rows is None:
        return Missing(title, why_no_clipping(run))
    sigma, z = scale.sigma, scale.z
    reach = min(5 * sigma, float(np.abs(z).max()) * 1.02)
    counts, edges = np.histogram(z, bins=40, range=(-reach, reach))
    x = np.linspace(-reach, reach, 121)
    density = np.exp(-0.5 * (x / sigma) ** 2) / (sigma * math.sqrt(2 * math.pi))
    heights = density * len(z) * (edges[1] - edges[0])
    curve = Series(f"Gaussian, σ = {short(sigma)}", list(x), list(heights), colour=2)
    own = own_rule(run)
    level = own.level if own is not None else None
    marks = [("±c", -level.c_low), ("±c", level.c_high)] if level is not None else []
    beyond = float(np.mean(np.abs(z) > 2 * sigma))
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
        law = scaling_law(rows.last["log_ratio"].to_numpy(), rows.last["length"].to_numpy())
    except ValueError:
        pass  # too few answers, or one length only: there is no exponent to estimate
    else:
        caption += (
            f"The spread of S grows as L to the power {law.exponent:.2f} "
            f"({law.interval[0]:.2f} to {law.interval[1]:.2f}); the √L band expects 0.5."
        )
    return Plot(title, svg, caption)
