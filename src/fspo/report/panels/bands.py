"""The clipping of the last steps: its fairness, the run's own band, and other methods' bands at the same clip rate.

What a method clips is asked of its objective; nothing here knows a method by its name.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from fspo import objectives, ratios
from fspo.fairness import FairnessReport, measure
from fspo.objectives import Objective, Responses, Totals
from fspo.pages import charts
from fspo.pages.plots import LAW_COLOURS
from fspo.ratios import Floats
from fspo.report.report_run import ReportRun
from fspo.report.row_summary import LENGTH_BINS, RowSummary

LOWEST_RATE = 0.002  # a run that clips less is compared with other methods at USUAL_RATE
USUAL_RATE = 0.1
OTHER_COLOUR = 6


def last_fairness(rows: RowSummary | None, bins: int | Sequence[float] = LENGTH_BINS) -> FairnessReport | None:
    """Clip rate by length over the last steps; None where no update was off-policy, or no response has a gradient."""
    if rows is None or not rows.off_policy:
        return None
    table = rows.last_with_gradient
    return measure(table["length"].to_numpy(), table["accepted"].to_numpy(), bins) if len(table) else None


def clip_rate(rows: RowSummary) -> float | None:
    """The share of the last steps' gradients that clipping removed; None where there is no gradient."""
    accepted = rows.last_with_gradient["accepted"].to_numpy()
    return float(1 - accepted.mean()) if len(accepted) else None


def last_responses(rows: RowSummary) -> Responses:
    """The rows of the last steps, as objectives take them."""
    S, L = rows.last["log_ratio"].to_numpy(), rows.last["length"].to_numpy()
    sign = np.sign(np.nan_to_num(rows.last["advantage"].to_numpy()))
    return Responses(S, L, sign, mu=ratios.drift(S, L))


class LevelBand(NamedTuple):
    """A band mu L - c_low sqrt(L) .. mu L + c_high sqrt(L), which has the same bounds of z at every length."""

    mu: float
    c_low: float
    c_high: float


@dataclass(frozen=True)
class DrawnBand:
    """An objective and the rows it is applied to: the bounds of S by length."""

    name: str
    objective: Objective
    totals: Totals

    @property
    def colour(self) -> int:
        return dict(zip(objectives.LENGTH_LAWS, LAW_COLOURS, strict=True)).get(self.objective.name, OTHER_COLOUR)

    @property
    def text(self) -> str:
        """The name and the parameters of the range."""
        parameters = self.objective.clip_parameters.items()
        values = [f"{key} = {v:.3g}" if isinstance(v, float) else f"{key} = {v}" for key, v in parameters]
        return f"{self.name} ({', '.join(values)})" if values else self.name

    def bounds(self, L: Floats) -> tuple[Floats, Floats]:
        """The lower and the upper bound of S at each length."""
        centre, below, above = self._band(L)
        return centre - below, centre + above

    @cached_property
    def level(self) -> LevelBand | None:
        L = np.array([1.0, 100.0, 10_000.0])
        centre, below, above = self._band(L)
        scaled = [centre / L, below / np.sqrt(L), above / np.sqrt(L)]
        if not all(np.isfinite(v).all() and np.allclose(v, v[0], rtol=1e-9, atol=0) for v in scaled):
            return None
        return LevelBand(*(float(v[0]) for v in scaled))

    def _band(self, L: Floats) -> tuple[Floats, Floats, Floats]:
        band = self.objective.band(L, self.totals)
        assert band is not None
        centre, below, above = (np.broadcast_to(np.asarray(v, np.float64), L.shape) for v in band[:3])
        return centre, below, above


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
    totals = last_responses(run.rows).totals
    # Rows have no tokens to take the mean of exp(l) - 1 - l from; it estimates the same drift as the mean of l.
    rule = DrawnBand(run.objective["name"], objective, totals)
    try:
        return None if objective.band(np.ones(1), rule.totals) is None else rule
    except Exception:
        if not objectives.is_foreign(objective):
            raise
        return None


def comparison_rate(rows: RowSummary) -> float:
    """The clip rate at which methods are compared: the run's own, unless it clipped next to nothing."""
    rate = clip_rate(rows)
    return USUAL_RATE if rate is None or rate < LOWEST_RATE else rate


def rules_at(rows: RowSummary, rate: float) -> tuple[list[DrawnBand], list[str]]:
    """The length laws with the ranges that clip this share of the last rows; and why one of them cannot."""
    responses = last_responses(rows)
    found, notes = [], []
    for name in objectives.LENGTH_LAWS:
        at_rate = objectives.get(name).at_clip_rate(responses, rate)
        if at_rate.objective is None:
            notes.append(f"{name} {at_rate.note}")
        else:
            found.append(DrawnBand(name, at_rate.objective, responses.totals))
    return found, notes


class Scale(NamedTuple):
    """Drift and scale of the last steps, and z = (S - mu L) / sqrt(L) of their rows."""

    mu: float
    sigma: float
    z: Floats


def last_scale(run: ReportRun) -> Scale | None:
    """Around the centre of the run's own band if that is level in z, else around the drift; None while S is 0."""
    if run.rows is None or not run.rows.off_policy:
        return None
    rule = own_rule(run)
    rows = last_responses(run.rows)
    mu = rows.mu if rule is None or rule.level is None else rule.level.mu
    sigma = ratios.scale(rows.log_ratio, rows.lengths, mu)
    return Scale(mu, sigma, (rows.log_ratio - mu * rows.lengths) / np.sqrt(rows.lengths)) if sigma else None


def _last_means(run: ReportRun) -> dict[str, float]:
    """Means of the metrics of the last steps, those of the objective included."""
    values: dict[str, list[float | None]] = {}
    for line in run.last_metrics:
        for key, value in line.model_dump().items():
            if isinstance(value, float):
                values.setdefault(key, []).append(value)
    return {key: mean for key, found in values.items() if (mean := charts.mean(found)) is not None}
