"""The log-ratio S against the length, with the run's own band and other methods' bands at the same clip rate.

Bands come from the objectives: an objective that another package registers is drawn like the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

from fspo import objectives, ratios
from fspo.fairness import scaling_law
from fspo.objectives import Objective, Totals
from fspo.pages import charts
from fspo.pages.charts import Points, Series
from fspo.pages.document import Missing, Panel, Plot
from fspo.ratios import Floats
from fspo.report.report_run import ReportRun, RowSummary
from fspo.report.series import between, of_run, why_no_clipping
from fspo.text import percent, short

SCATTER_POINTS = 2000


def log_ratios(runs: Sequence[ReportRun]) -> list[Panel]:
    return [_scatter(run, runs) for run in runs]


def _scatter(run: ReportRun, runs: Sequence[ReportRun]) -> Panel:
    title = of_run("Log-ratio S against length L", run, runs)
    rows = run.rows
    if rows is None or not rows.off_policy:
        return Missing(title, why_no_clipping(run))
    responses = rows.last_responses
    sigma = ratios.scale(responses.log_ratio, responses.lengths, responses.mu)
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
    rate = rows.comparison_rate
    rules, notes = rules_at(rows, rate)
    others = [rule for rule in rules if own is None or rule.objective.name != own.objective.name]
    svg = charts.scatter(
        title,
        f"{len(some):,} answers of {between(rows.last_steps)}; drift {short(responses.mu)} per token, scale "
        f"{short(sigma)}.",
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
        Series(label, list(L), [float(v) for v in high], colour=rule.objective.color, dashed=dashed),
        Series("", list(L), [float(v) for v in low], colour=rule.objective.color, dashed=dashed),
    ]


def _why_no_band(run: ReportRun) -> str:
    if own_objective(run) is None:
        reason = "The run's objective is not known here, so its range is not drawn"
        return f"{reason}: --trust imports it." if ":" in str(run.objective.get("name")) else f"{reason}."
    return f"{run.objective['name']} has no range of S that depends on the length alone."


def _caption(others: Sequence[DrawnBand], notes: Sequence[str], rate: float, drawn: int, rows: RowSummary) -> str:
    at = f"the run's clip rate, {percent(rate)}" if rate == rows.clip_rate else percent(rate)
    text = f"Dashed: other methods set to {at}, on these answers: {'; '.join(rule.text for rule in others)}. "
    text += "".join(f"{note}. " for note in notes)
    text += "An answer outside is clipped only if its advantage would push it further out."
    text += f" {drawn:,} of {len(rows.last):,} answers drawn." if drawn < len(rows.last) else ""
    return text + _scaling(rows)


def _scaling(rows: RowSummary) -> str:
    """How the spread of S grows with the length; nothing where it cannot be estimated."""
    try:
        law = scaling_law(rows.last["log_ratio"].to_numpy(), rows.last["length"].to_numpy())
    except ValueError:  # too few answers, or one length only
        return ""
    return (
        f" The spread of S grows as L to the power {law.exponent:.2f} ({law.interval[0]:.2f} to "
        f"{law.interval[1]:.2f}); the √L band expects 0.5."
    )


@dataclass(frozen=True)
class DrawnBand:
    """An objective and the rows it is applied to: the bounds of S by length."""

    name: str
    objective: Objective
    totals: Totals

    @property
    def text(self) -> str:
        """The name and the parameters of the range."""
        parameters = self.objective.clip_parameters.items()
        values = [f"{key} = {v:.3g}" if isinstance(v, float) else f"{key} = {v}" for key, v in parameters]
        return f"{self.name} ({', '.join(values)})" if values else self.name

    def bounds(self, L: Floats) -> tuple[Floats, Floats]:
        """The lower and the upper bound of S at each length."""
        band = self.objective.band(L, self.totals)
        assert band is not None
        centre, below, above = (np.broadcast_to(np.asarray(v, np.float64), L.shape) for v in band[:3])
        return centre - below, centre + above


def own_objective(run: ReportRun) -> Objective | None:
    """The run's objective with the band that its last steps recorded; None if it is not one of this installation.

    A folder that came from elsewhere may name `module:Class`, which is not imported.
    """
    name = run.objective.get("name")
    if not isinstance(name, str) or not objectives.known(name):
        return None
    try:
        objective = objectives.get(**run.objective)
    except (TypeError, ValueError):  # parameters of another version, or not parameters at all
        return None
    return objective.recorded(_last_means(run))


def own_rule(run: ReportRun) -> DrawnBand | None:
    """The rule that the run clipped by, where it is a range of S that depends on the length alone."""
    objective = own_objective(run)
    if run.rows is None or objective is None or objective.clips_tokens or objective.needs_tokens:
        return None
    rule = DrawnBand(run.objective["name"], objective, run.rows.last_responses.totals)
    try:
        return None if objective.band(np.ones(1), rule.totals) is None else rule
    except Exception:
        if not objectives.is_foreign(objective):
            raise
        return None


def rules_at(rows: RowSummary, rate: float) -> tuple[list[DrawnBand], list[str]]:
    """The length laws with the ranges that clip this share of the last rows; and why one of them cannot."""
    rules, notes = [], []
    for name in objectives.LENGTH_LAWS:
        at_rate = rows.at_clip_rate(name, rate)
        if at_rate.objective is None:
            notes.append(f"{name} {at_rate.note}")
        else:
            rules.append(DrawnBand(name, at_rate.objective, rows.last_responses.totals))
    return rules, notes


def _last_means(run: ReportRun) -> dict[str, float]:
    """Means of the metrics of the last steps, those of the objective included."""
    values: dict[str, list[float | None]] = {}
    for line in run.last_metrics:
        for key, value in line.model_dump().items():
            if isinstance(value, float):
                values.setdefault(key, []).append(value)
    return {key: mean for key, column in values.items() if (mean := charts.mean(column)) is not None}
