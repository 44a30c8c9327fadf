"""Sampler against trainer: how many answers does a mismatch rule drop, by length?

With d_t = log pi_old - log pi_sampler and D = sum d_t over the L trained tokens of an answer. A rule drops an answer
whatever its advantage, so every row counts.

    TRL           exp(D) <= 3                          its default, vllm_importance_sampling_mode="sequence_mask"
    two-sided     1/3 <= exp(D) <= 3
    geometric     0.999 <= exp(D / L) <= 1.001         verl's rollout_rs="seq_mean_k1"
    sqrt(L)       |D - mu L| <= c sqrt(L), weight 1    c chosen so that a given share is dropped
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from fspo import fairness
from fspo.audits.methods import Rule
from fspo.fairness import FEW, Bins, FairnessReport, report_of_bins
from fspo.objectives import Responses
from fspo.text import percent

HIGH = 3.0
GEOMETRIC = 1e-3
RATES = (0.01, 0.1)  # least and most that the sqrt(L) rule is set to drop


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
            f"them. TRL's rule (mask above {HIGH:g}) drops {percent(trl.clip_rate)} of the answers"
        )
        if any(b.count < FEW for b in trl.bins) or len(trl.bins) < 2:
            return f"{start}; too few rows to tell by length"
        said = f"{start}: {_ends(trl)}"
        return said if self.c is None else f"{said}; |D - mu L| <= {self.c:g} sqrt(L) {_ends(self.rules[-1].report)}"


def _ends(report: FairnessReport) -> str:
    short, long = report.bins[0], report.bins[-1]
    return f"{percent(short.clip_rate)} of length {short.label} and {percent(long.clip_rate)} of {long.label}"


def mismatch(responses: Responses, bins: Bins, confidence: float) -> MismatchAudit:
    """The rules on sampled rows in bins of length; the sqrt(L) rule drops what the two-sided one does, within RATES."""
    D, L, mu = responses.log_ratio, responses.lengths, responses.mu
    high, mean = math.log(HIGH), D / L
    accepted = {
        "TRL": high >= D,
        "two-sided": np.abs(D) <= high,
        "geometric": (mean >= math.log1p(-GEOMETRIC)) & (mean <= math.log1p(GEOMETRIC)),
    }
    rate = float(np.clip(1 - accepted["two-sided"].mean(), *RATES))
    z, c = np.abs(D - mu * L) / np.sqrt(L), None
    if len(D) >= fairness.rows_needed(rate, confidence):
        width = fairness.outer_value(z, rate * (len(D) + 1))
        c = float(f"{width:.4g}") if width else None
    if c is not None:
        accepted["sqrt(L)"] = z <= c
    rules = [Rule(name, report_of_bins(bins, 1.0 - kept, confidence=confidence)) for name, kept in accepted.items()]
    weights = bins.sum(np.where(accepted["TRL"], np.exp(np.minimum(D, high)), 0.0)) / bins.sum()
    return MismatchAudit(rules, mu, c, rate, weights.tolist(), {} if c is None else snippets(mu, c))


def weight_note(audit: MismatchAudit) -> str:
    """What TRL's weights do to long answers, beside dropping them."""
    bins = audit.rules[0].report.bins
    return (
        f"TRL's rule also weights what it keeps by exp(D): its mean weight is {audit.weights[0]:.2f} at length "
        f"{bins[0].label} and {audit.weights[-1]:.2f} at {bins[-1].label}. The sqrt(L) rule keeps the weight 1."
    )


def snippets(mu: float, c: float) -> dict[str, str]:
    """The sqrt(L) rule as settings of each trainer that samples with another engine."""
    loss = "actor_rollout_ref.actor.policy_loss.objective.mismatch"
    arguments = f'{{"mismatch": {{"c": {c:g}, "drift": {mu:g}}}}}'
    return {
        "TRL": f'FSPOConfig(\n    objective="fspo",\n    objective_args={arguments},\n)',
        "verl, beside the settings of fspo": f"+{loss}.c={c:g} \\\n+{loss}.drift={mu:g}",
    }
