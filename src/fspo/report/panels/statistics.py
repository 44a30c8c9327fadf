"""What the last steps say: fairness, the run's own band, and every method's band at the same clip rate."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fspo import objectives
from fspo.fairness import Calibration, FairnessReport, calibrate, measure
from fspo.report import charts
from fspo.report.load import LENGTH_BINS, Records, Run
from fspo.report.text import number, short

Floats = NDArray[np.float64]
PER_TOKEN = ("gspo", "gspo_token", "luspo")  # a fixed range on exp(S / L)
LOWEST_RATE = 0.002  # below this nothing to speak of is clipped, and bands are compared at USUAL_RATE
USUAL_RATE = 0.1


def last_fairness(records: Records | None, bins: int | Sequence[float] = LENGTH_BINS) -> FairnessReport | None:
    """Clip rate by length over the last steps; None where no update was off-policy, or no answer has a gradient."""
    if records is None or not records.off_policy:
        return None
    rows = records.pulling
    return measure(rows["length"].to_numpy(), rows["accepted"].to_numpy(), bins) if len(rows) else None


@dataclass(frozen=True)
class RunBand:
    """The run's own band mu L - c_low L^H .. mu L + c_high L^H, where its objective has one."""

    mu: float
    c_low: float
    c_high: float
    exponent: float

    def bounds(self, L: Floats) -> tuple[Floats, Floats]:
        return self.mu * L - self.c_low * L**self.exponent, self.mu * L + self.c_high * L**self.exponent

    def __str__(self) -> str:
        power = "√L" if self.exponent == 0.5 else f"L^{self.exponent:g}"
        width = short(self.c_high) if self.c_low == self.c_high else f"({short(self.c_low)}, {short(self.c_high)})"
        return f"μL ± c{power}, μ = {short(self.mu)}, c = {width}"


def exponent(objective: dict[str, Any]) -> float:
    """H of an objective's width c L^H; 0 is a fixed range, and without a word it is a half."""
    given = number(objective.get("exponent"))
    return 0.5 if given is None else given


def run_band(run: Run) -> RunBand | None:
    """From the last steps' metrics where the trainer wrote it there, else from the configuration."""
    records, objective = run.records, run.objective
    name = str(objective.get("name"))
    if records is None or not name.startswith("fspo") or "studentized" in name:
        return None
    first, last = records.last_steps
    rows = [row for row in run.metrics if first <= row["step"] <= last]

    def measured(key: str) -> float | None:
        return charts.mean([number(row.get(key)) for row in rows])

    mu = measured("drift")
    if mu is None:
        drift = objective.get("drift", objectives.FSPO.model_fields["drift"].default if name == "fspo" else None)
        given = 0.0 if drift == "zero" else number(drift)
        mu = measured("mu") if given is None else given
    c_low, c_high = measured("c_low"), measured("c_high")
    if c_low is None or c_high is None:
        rate = number(objective.get("clip_rate"))
        if rate is not None and 0 < rate < 1:
            S, L = records.last["log_ratio"].to_numpy(), records.last["length"].to_numpy()
            c_low = c_high = calibrate(S, L, rate, drift="kl" if mu is None else mu, method="gaussian").c_high
        else:
            c_low, c_high = number(objective.get("c_low")), number(objective.get("c_high"))
    if mu is None or c_low is None or c_high is None:
        return None
    return RunBand(mu, c_low, c_high, exponent(objective))


def last_scale(run: Run) -> tuple[Calibration, Floats] | None:
    """Drift and scale of the last steps, and z around the run's own drift; None while S is 0 everywhere."""
    if run.records is None or not run.records.off_policy:
        return None
    S, L = run.records.last["log_ratio"].to_numpy(), run.records.last["length"].to_numpy()
    band = run_band(run)
    scale = calibrate(S, L, drift="kl" if band is None else band.mu)
    if scale.sigma < 1e-9:
        return None
    return scale, (S - scale.mu * L) / np.sqrt(L)


@dataclass(frozen=True)
class Rule:
    """One method's bounds of S by length."""

    label: str
    colour: int
    bounds: Callable[[Floats], tuple[Floats, Floats]]
    text: str  # its parameters


def rules(run: Run) -> tuple[Rule | None, list[Rule], float]:
    """The run's own rule, the others at the clip rate of the last steps' gradients, and that rate."""
    assert run.records is not None
    last, rows = run.records.last, run.records.pulling
    rate = clip_rate(run.records)
    if rate is None or rate < LOWEST_RATE:
        rate = USUAL_RATE
    own = own_rule(run)
    mu = calibrate(last["log_ratio"].to_numpy(), last["length"].to_numpy()).mu
    S, L, A = ((rows if len(rows) else last)[name].to_numpy() for name in ("log_ratio", "length", "advantage"))
    c = threshold(S - mu * L, np.sqrt(L), A, rate)
    fixed = threshold(np.expm1(np.clip(S, -50, 50)), np.ones_like(L), A, rate)
    mean = threshold(np.expm1(np.clip(S / L, -50, 50)), np.ones_like(L), A, rate)
    band = RunBand(mu, c, c, 0.5)
    others = [
        Rule("FSPO", 3, band.bounds, f"FSPO {band}"),
        Rule("fixed range", 5, lambda L: log_bounds(fixed, fixed, np.ones_like(L)), f"fixed range ε = {short(fixed)}"),
        Rule("GSPO", 4, lambda L: log_bounds(mean, mean, L), f"GSPO ε = {short(mean)}"),
    ]
    return own, [rule for rule in others if own is None or rule.label != own.label], rate


def clip_rate(records: Records) -> float | None:
    """Of the gradients of the last steps; None where there is none."""
    accepted = records.pulling["accepted"]
    return float(1 - accepted.mean()) if len(accepted) else None  # type: ignore[operator]


def own_rule(run: Run) -> Rule | None:
    """The rule that the run clipped by, where it is one on S and L."""
    band = run_band(run)
    if band is not None:
        return Rule("FSPO", 3, band.bounds, f"FSPO {band}")
    name = str(run.objective.get("name"))
    if name not in (*PER_TOKEN, "rloo"):
        return None
    low, high = fixed_range(run.objective)
    text = f"ε = {short(low)}" if low == high else f"ε = ({short(low)}, {short(high)})"
    if name == "rloo":
        return Rule("fixed range", 5, lambda L: log_bounds(low, high, np.ones_like(L)), f"fixed range {text}")
    return Rule("GSPO", 4, lambda L: log_bounds(low, high, L), f"GSPO {text}")


def fixed_range(objective: dict[str, Any]) -> tuple[float, float]:
    """clip_low and clip_high of an objective that has them, its own defaults where they are not given."""
    fields = objectives.REGISTRY[str(objective["name"])].model_fields
    low, high = (number(objective.get(key, fields[key].default)) or 0.0 for key in ("clip_low", "clip_high"))
    return low, high


def log_bounds(low: float, high: float, scale: Floats) -> tuple[Floats, Floats]:
    """Bounds of S where exp(S / scale) is held in 1 - low .. 1 + high."""
    floor = np.log1p(-low) if low < 1 else -np.inf
    return floor * scale, np.log1p(high) * scale


def threshold(deviation: Floats, scale: Floats, advantage: Floats, rate: float) -> float:
    """The half-width that clips `rate` of the rows: outwards by the sign of the advantage, both ways without any."""
    if not np.nan_to_num(advantage).any():
        outward = np.abs(deviation) / scale
    else:
        outward = np.sign(np.nan_to_num(advantage)) * deviation / scale
    return max(1e-12, float(np.quantile(outward, 1 - rate)))
