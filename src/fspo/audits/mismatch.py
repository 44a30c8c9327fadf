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
from fspo.audits.methods import Report, Rule
from fspo.fairness import FEW
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
        short, long = trl.bins[0], trl.bins[-1]
        ends = f"{percent(short.clip_rate)} of length {short.label}, {percent(long.clip_rate)} of {long.label}"
        if self.c is None:
            return f"{start}: {ends}"
        return f"{start}: {ends}; |D - mu L| <= {self.c:g} sqrt(L) drops {percent(self.drop_rate)} at every length"


def mismatch(responses: Responses, report: Report, confidence: float) -> MismatchAudit:
    """The rules on sampled rows; the sqrt(L) rule drops what the two-sided one does, within RATES."""
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
    rules = [Rule(name, report(kept.astype(np.float64))) for name, kept in accepted.items()]
    return MismatchAudit(rules, mu, c, rate, {} if c is None else snippets(mu, c))


def snippets(mu: float, c: float) -> dict[str, str]:
    """The sqrt(L) rule as settings of each trainer that samples with another engine."""
    loss = "actor_rollout_ref.actor.policy_loss.objective.mismatch"
    arguments = f'{{"mismatch": {{"c": {c:g}, "drift": {mu:g}}}}}'
    return {
        "TRL": f'FSPOConfig(objective="fspo",\n           objective_args={arguments})',
        "verl, beside the settings of fspo": f"+{loss}.c={c:g} \\\n+{loss}.drift={mu:g}",
    }
