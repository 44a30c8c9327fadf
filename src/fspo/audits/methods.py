"""Rules on audited responses: the library's objectives at one clip rate, the run's own rule, and mismatch rules.

A mismatch rule is about sampler and trainer: with d_t = log pi_old - log pi_sampler and D = sum d_t over the L trained
tokens of an answer, it drops an answer whatever its advantage, so every row counts.

    TRL           exp(D) <= 3                          its default, vllm_importance_sampling_mode="sequence_mask"
    verl          1/2 <= exp(D) <= 2                   its preset with rollout_rs="seq_sum_k1"
    geometric     0.999 <= exp(D / L) <= 1.001         its preset with rollout_rs="seq_mean_k1"
    sqrt(L)       |D - mu L| <= c sqrt(L), weight 1    c chosen so that a given share is dropped
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fspo import objectives
from fspo.audits.columns import Array
from fspo.fairness import FairnessReport
from fspo.fairness.bins import Bins
from fspo.fairness.measure import FEW, report_of_bins
from fspo.fairness.robust_band import outer_value, rows_needed
from fspo.files import yaml_value
from fspo.objectives import Objective, Responses
from fspo.text import percent

TRL_HIGH = 3.0
VERL_HIGH = 2.0
GEOMETRIC = 1e-3
RATES = (0.01, 0.1)  # least and most that the sqrt(L) rule is set to drop

Report = Callable[[Array], FairnessReport]
"""What a rule accepts of each response -> the report of its clipping."""


@dataclass(frozen=True)
class Rule:
    """A rule and what it clips."""

    name: str
    report: FairnessReport


@dataclass(frozen=True)
class Comparison:
    """A method at the common clip rate: its range and its report, or a note why it has none."""

    name: str
    parameters: dict[str, Any] = field(default_factory=dict)
    note: str = ""
    report: FairnessReport | None = None


# --- objectives ------------------------------------------------------------------------------------------------------


def compare(
    responses: Responses, clip_rate: float, report: Report, names: Sequence[str] | None = None
) -> list[Comparison]:
    """Objectives, all or those named, with the range that clips this share of the responses that have a gradient."""
    return [_at_rate(name, responses, clip_rate, report) for name in (objectives.names() if names is None else names)]


def _at_rate(name: str, responses: Responses, clip_rate: float, report: Report) -> Comparison:
    try:
        objective = objectives.get(name)
    except ValueError as error:  # of another package: broken, or with a parameter that has no default
        return Comparison(name, note=str(error))
    try:
        with np.errstate(over="ignore"):
            ranged = objective.at_clip_rate(responses, clip_rate)
    except OverflowError:
        return Comparison(name, note="the log-ratios are so large that its range would be infinite")
    except Exception as error:
        if not objectives.is_foreign(objective):
            raise
        return Comparison(name, note=f"its range could not be found ({type(error).__name__}: {error})")
    if ranged.objective is None or ranged.accepted is None:
        return Comparison(name, note=ranged.note)
    return Comparison(name, ranged.objective.clip_parameters, report=report(ranged.accepted))


def parse_rule(text: str) -> Objective:
    """The objective of `name` or `name:parameter=value,...`; the name may be `module:Class`."""
    name, _, settings = text.rpartition(":")
    if "=" not in settings and not objectives.known(name):  # no parameters: all of the text is the name
        name, settings = text, ""
    parameters: dict[str, Any] = {}
    for part in filter(None, settings.split(",")):
        key, equals, value = (piece.strip() for piece in part.partition("="))
        if not equals:
            raise ValueError(f"--rule {text!r}: {part!r} is not of the form parameter=value")
        parameters[key] = yaml_value(value)
    return objectives.get(name.strip(), **parameters)


# --- sampler against trainer ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class MismatchAudit:
    """What each rule drops by length. `c` is None where the rows are too few to choose it."""

    rules: list[Rule]
    mu: float
    c: float | None
    drop_rate: float  # that c was chosen for
    weights: list[float]  # by bin of length: the mean of exp(D) that TRL's rule leaves, 1 if nothing were lost
    snippets: dict[str, str]

    @property
    def sentence(self) -> str:
        """The verdict about sampler and trainer."""
        trl = self.rules[0].report
        start = (
            "these are log-probs of sampler and trainer, a mismatch and not policy drift, so no clip band follows from "
            f"them. TRL's rule (mask above {TRL_HIGH:g}) drops {percent(trl.clip_rate)} of the answers"
        )
        if any(b.count < FEW for b in trl.bins) or len(trl.bins) < 2:
            return f"{start}; too few rows to tell by length"
        said = f"{start}: {_ends(trl)}"
        if self.c is None:
            return said
        sqrt = self.rules[-1].report
        return f"{said}. |D - mu L| <= {self.c:g} sqrt(L) drops {percent(sqrt.clip_rate)}: {_ends(sqrt)}"

    @property
    def weight_note(self) -> str:
        """What TRL's weights do to long answers, beside dropping them."""
        bins = self.rules[0].report.bins
        return (
            f"TRL's rule also weights what it keeps by exp(D): its mean weight is {self.weights[0]:.2f} at length "
            f"{bins[0].label} and {self.weights[-1]:.2f} at {bins[-1].label}. The sqrt(L) rule keeps the weight 1."
        )


def _ends(report: FairnessReport) -> str:
    short, long = report.bins[0], report.bins[-1]
    return f"{percent(short.clip_rate)} of length {short.label} and {percent(long.clip_rate)} of {long.label}"


def mismatch_rules(responses: Responses, bins: Bins) -> MismatchAudit:
    """The rules on sampled rows in bins of length; the sqrt(L) rule drops what verl's does, within RATES."""
    D, L, mu = responses.log_ratio, responses.lengths, responses.mu
    high, mean = math.log(TRL_HIGH), D / L
    accepted = {
        "TRL": high >= D,
        "verl": np.abs(D) <= math.log(VERL_HIGH),
        "geometric": (mean >= math.log1p(-GEOMETRIC)) & (mean <= math.log1p(GEOMETRIC)),
    }
    rate = float(np.clip(1 - accepted["verl"].mean(), *RATES))
    z, c = np.abs(D - mu * L) / np.sqrt(L), None
    if len(D) >= rows_needed(rate):
        width = outer_value(z, rate * (len(D) + 1))
        c = float(f"{width:.4g}") if width else None
    if c is not None:
        accepted["sqrt(L)"] = z <= c
    rules = [Rule(name, report_of_bins(bins, 1.0 - kept)) for name, kept in accepted.items()]
    weights = bins.sum(np.where(accepted["TRL"], np.exp(np.minimum(D, high)), 0.0)) / bins.sum()
    return MismatchAudit(rules, mu, c, rate, weights.tolist(), {} if c is None else _mismatch_settings(mu, c))


def _mismatch_settings(mu: float, c: float) -> dict[str, str]:
    """The sqrt(L) rule as settings of each trainer that samples with another engine."""
    loss = "actor_rollout_ref.actor.policy_loss.objective.mismatch"
    arguments = f'{{"mismatch": {{"c": {c:g}, "drift": {mu:g}}}}}'
    return {
        "TRL": f'FSPOConfig(\n    objective="fspo",\n    objective_args={arguments},\n)',
        "verl, beside the settings of fspo": f"+{loss}.c={c:g} \\\n+{loss}.drift={mu:g}",
    }
