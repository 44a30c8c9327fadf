"""The log-ratio S against the length, with every method's band, and its scaled form z."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import polars as pl

from fspo.fairness import scaling_law
from fspo.report import charts
from fspo.report.charts import Points, Series
from fspo.report.load import Records, Run
from fspo.report.panels.parts import Missing, Panel, Plot, of_run
from fspo.report.panels.rows import between, why_not
from fspo.report.panels.statistics import Floats, Rule, clip_rate, last_scale, rules, run_band
from fspo.report.text import percent, short

SCATTER_POINTS = 2000


def ratios(runs: Sequence[Run]) -> list[Panel]:
    return [panel for run in runs for panel in (scatter(run, runs), z_histogram(run, runs))]


def scatter(run: Run, runs: Sequence[Run]) -> Panel:
    title = of_run("Log-ratio S against length L", run, runs)
    scale = last_scale(run)
    if scale is None or run.records is None:
        return Missing(title, why_not(run))
    rows = run.records.last
    some = rows.sample(SCATTER_POINTS, seed=0) if len(rows) > SCATTER_POINTS else rows
    groups = []
    for label, colour, part in (
        ("kept", 1, some.filter(pl.col("accepted") > 0.5)),
        ("clipped", 2, some.filter(pl.col("accepted") <= 0.5)),
    ):
        groups.append(Points(label, part["length"].to_list(), part["log_ratio"].to_list(), colour))
    L = np.linspace(0, charts.span([float(rows["length"].max())], True, whole=True)[1], 81)  # type: ignore[arg-type]
    own, others, rate = rules(run)
    curves = _curves(own, L, f"{own.label}, the run's band", False) if own else []
    dashed = [line for rule in others for line in _curves(rule, L, rule.label, True)]
    svg = charts.scatter(
        title,
        f"{len(some):,} answers of {between(run.records.last_steps)}; drift {short(scale[0].mu)} a token, scale "
        f"{short(scale[0].sigma)}.",
        groups,
        curves,
        dashed,
        "answer length L (tokens)",
        "S = log π − log π_old",
    )
    return Plot(title, svg, _caption(own, others, rate, len(some), run.records))


def _curves(rule: Rule, L: Floats, label: str, dashed: bool) -> list[Series]:
    low, high = rule.bounds(L)
    return [
        Series(label, list(L), [float(v) for v in high], colour=rule.colour, dashed=dashed),
        Series("", list(L), [float(v) for v in low], colour=rule.colour, dashed=dashed),
    ]


def _caption(own: Rule | None, others: Sequence[Rule], rate: float, drawn: int, records: Records) -> str:
    table = records.last
    at = f"the run's clip rate, {percent(rate)}" if rate == clip_rate(records) else percent(rate)
    text = f"Solid: the run's rule, {own.text}. " if own else "This objective has no band in S. "
    text += f"Dashed: other methods set to {at}, on these answers: {'; '.join(rule.text for rule in others)}. "
    text += "An answer outside is clipped only if its advantage would push it further out."
    return text + (f" {drawn:,} of {len(table):,} answers drawn." if drawn < len(table) else "")


def z_histogram(run: Run, runs: Sequence[Run]) -> Panel:
    title = of_run("Scaled log-ratio z = (S − μL) / √L", run, runs)
    scale = last_scale(run)
    if scale is None or run.records is None:
        return Missing(title, why_not(run))
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
    return Plot(title, svg, caption)
