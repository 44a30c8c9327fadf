"""Every method of the library on the same answers, with its range set so that all clip the same share.

A method that clips has a statistic t for each answer (or token), in units of its default range: it clips where t > k.
The k at which a wanted share is clipped is a quantile of t, so nothing has to be searched for; k times the default
range is the range. A method that bends weights softly has one scale, found by root search.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from scipy.optimize import brentq

from fspo import objectives
from fspo.auditing.sample import Array
from fspo.fairness.measure import FairnessReport
from fspo.objectives.token_clip import TokenClip


@dataclass(frozen=True)
class Answers:
    """The sampled answers: S, L, the sign of A (all zeros: unknown), token log-ratios if known, and the drift."""

    log_ratio: Array
    lengths: Array
    sign: Array
    tokens: Array | None
    mu: float

    @property
    def pulls(self) -> Array:
        """The answers that have a gradient: all, where advantages are not known."""
        return self.sign != 0 if self.sign.any() else np.ones(len(self.sign), bool)

    @property
    def starts(self) -> Array:
        L = self.lengths.astype(np.intp)
        return np.cumsum(L) - L

    def per_token(self, values: Array) -> Array:
        return np.repeat(values, self.lengths.astype(np.intp))

    def token_mean(self, values: Array) -> Array:
        return np.add.reduceat(values, self.starts) / self.lengths


@dataclass(frozen=True)
class Comparison:
    """One method at the common clip rate."""

    name: str
    parameters: dict[str, float] = field(default_factory=dict)
    accepted: Array | None = None
    note: str = ""
    report: FairnessReport | None = None


def compare(answers: Answers, clip_rate: float) -> list[Comparison]:
    """Each method of the library at this clip rate of the answers that have a gradient."""
    return [at_rate(name, answers, clip_rate) for name in objectives.names()]


def at_rate(name: str, answers: Answers, clip_rate: float) -> Comparison:
    """One method at this clip rate."""
    if name == "reinforce":
        return Comparison(name, note="has no ratio and clips nothing")
    objective = objectives.get(name)
    if name in SOFT:
        return SOFT[name](name, objective, answers, clip_rate)
    tokens = isinstance(objective, TOKEN_RULES)
    if (tokens or name == "fspo_studentized") and answers.tokens is None:
        return Comparison(name, note="needs per-token log-probs")
    x, low, high = _statistic(name, objective, answers)
    t = _outward(x, answers.per_token(answers.sign) if tokens else answers.sign, low, high)
    if tokens:
        k = _threshold(t, clip_rate, answers.per_token(answers.pulls / answers.lengths))
    else:
        k = _threshold(t[answers.pulls], clip_rate, None)
    if k < 0:
        return Comparison(name, note=f"cannot clip {clip_rate:.1%} with any range")
    outside = (t > k).astype(np.float64)
    accepted = 1 - (answers.token_mean(outside) if tokens else outside)
    return Comparison(name, _parameters(name, k * low, k * high, k, answers.mu), accepted)


TOKEN_RULES = (TokenClip, objectives.GMPO)


def _statistic(name: str, objective: Any, a: Answers) -> tuple[Array, float, float]:
    """What the method looks at, and its default half-widths around 0."""
    if name == "fspo_adaptive":  # its bounds are quantiles: it looks at the rank, and a half-width of 1 clips nothing
        z = (a.log_ratio - a.mu * a.lengths) / np.sqrt(a.lengths)
        rank = np.empty(len(z))
        rank[np.argsort(z)] = np.arange(len(z))
        return 2 * (rank + 0.5) / len(z) - 1, 1.0, 1.0
    if name in ("fspo", "fspo_studentized"):
        square = a.lengths
        if name == "fspo_studentized":
            square = np.add.reduceat((a.tokens - a.mu) ** 2, a.starts)  # type: ignore[operator]
        return (a.log_ratio - a.mu * a.lengths) / np.sqrt(square), objective.c_low, objective.c_high
    if name == "gmpo":
        return a.tokens, objective.clip_low, objective.clip_high  # type: ignore[return-value]
    low, high = -math.log1p(-objective.clip_low), math.log1p(objective.clip_high)
    if isinstance(objective, TOKEN_RULES):
        return a.tokens, low, high  # type: ignore[return-value]
    return (a.log_ratio if name == "rloo" else a.log_ratio / a.lengths), low, high


def _parameters(name: str, low: float, high: float, k: float, mu: float) -> dict[str, float]:
    if name == "fspo_adaptive":
        return {"clip_rate": 1 - k}
    if name in ("fspo", "fspo_studentized"):
        return {"c_low": low, "c_high": high, "drift": mu}
    if name == "gmpo":
        return {"clip_low": low, "clip_high": high}
    return {"clip_low": -math.expm1(-low), "clip_high": math.expm1(high)}


def _outward(x: Array, sign: Array, low: float, high: float) -> Array:
    """How far out x lies on the side where clipping acts: above for A > 0, below for A < 0, either if unknown."""
    up, down = x / high, -x / low
    if not sign.any():
        return np.maximum(up, down)
    return np.where(sign > 0, up, np.where(sign < 0, down, -np.inf))


def _threshold(t: Array, rate: float, weights: Array | None) -> float:
    """k such that the share `rate` (of the weights) has t > k."""
    if weights is None:
        place = len(t) - 1 - round(rate * len(t))
        return float(np.partition(t, place)[place])
    order = np.argsort(t)
    passed = np.cumsum(weights[order])
    return float(t[order[min(len(t) - 1, int(np.searchsorted(passed, (1 - rate) * passed[-1])))]])


def _soft(
    name: str, a: Answers, accepted: Callable[[float], Array], rate: float, parameters: Callable[[float], Any]
) -> Comparison:
    """The scale, between 1e-6 and 1e6, at which the mean acceptance is 1 - rate."""
    pulls = a.pulls

    def miss(log_scale: float) -> float:
        return float(accepted(math.exp(log_scale))[pulls].mean()) - (1 - rate)

    ends = (math.log(1e-6), math.log(1e6))
    if miss(ends[0]) * miss(ends[1]) > 0:
        return Comparison(name, note=f"cannot clip {rate:.1%} with any scale")
    scale = math.exp(brentq(miss, *ends, xtol=1e-3))
    return Comparison(name, parameters(scale), accepted(scale))


def _vespo(name: str, objective: Any, a: Answers, rate: float) -> Comparison:
    log_w = np.clip(a.log_ratio, math.log(1e-8), objective.exponent_cap)
    positive = a.sign >= 0
    power = np.where(positive, objective.k_pos, objective.k_neg) - 1
    decay = np.where(positive, objective.lambda_pos, objective.lambda_neg)
    bend = np.maximum(decay * np.expm1(log_w) - power * log_w, 0)  # - log of the share of the gradient that is left
    keys = ("k_pos", "lambda_pos", "k_neg", "lambda_neg")

    def parameters(scale: float) -> dict[str, float]:
        values = {key: getattr(objective, key) for key in keys}
        return {key: 1 + scale * (v - 1) if key[0] == "k" else scale * v for key, v in values.items()}

    return _soft(name, a, lambda scale: np.exp(-scale * bend), rate, parameters)


def _cispo(name: str, objective: Any, a: Answers, rate: float) -> Comparison:
    if a.tokens is None:
        return Comparison(name, note="needs per-token log-probs")
    inverse = np.exp(-np.minimum(a.tokens, objective.exponent_cap))
    return _soft(
        name, a, lambda high: a.token_mean(np.minimum(1, high * inverse)), rate, lambda high: {"ratio_high": high}
    )


def _sapo(name: str, objective: Any, a: Answers, rate: float) -> Comparison:
    if a.tokens is None:
        return Comparison(name, note="needs per-token log-probs")
    off = np.expm1(np.minimum(a.tokens, objective.exponent_cap))
    off *= a.per_token(np.where(a.sign > 0, objective.tau_pos, objective.tau_neg))

    def accepted(scale: float) -> Array:
        # 4 g (1 - g) of the gate g = sigmoid(x)
        return a.token_mean(1 / np.cosh(np.minimum(np.abs(scale * off) / 2, 300)) ** 2)

    keys = ("tau_pos", "tau_neg")
    return _soft(name, a, accepted, rate, lambda scale: {key: scale * getattr(objective, key) for key in keys})


SOFT = {"vespo": _vespo, "cispo": _cispo, "sapo": _sapo}
