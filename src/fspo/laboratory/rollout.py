"""Clipped updates without sampling noise: what K updates on one rollout do, where they stop, what they optimise.

The objective of a response is f(S) = gain exp(scale S) A, clipped to a band on S where that makes it smaller. All three
come from the objective itself (`weighting`, `band`), at the exact sums over the responses of the rollout. The expected
gradient of an update in the logit of a kind is

    sum over k of P_old(k) E[ f'(S + noise) ] (k - L p)

S has a part that the shared parameters make, known for each k, and noise from all other parameters of a model: Gaussian
with variance v = jitter^2 u L after u updates and mean -v / 2, independent of the reward. The expectation over it is
closed (a truncated lognormal mean), so a rollout is a deterministic map of the parameters, whose fixed point can be
solved for. There the shared parameters do not move, so that without jitter nothing would be clipped.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from scipy.optimize import brentq, root
from scipy.special import log_expit, ndtr

from fspo import ratios
from fspo.laboratory.problem import Floats, Outcomes, Problem
from fspo.objectives import Objective, Totals

DIFFERENCE = 1e-3  # of theta, for derivatives
NARROWEST = 1e-8  # smallest factor of a band in the search for a clip rate


@dataclass(frozen=True)
class Regime:
    """How a rollout is trained on.

    `step` is the learning rate of theta, for gradients in units of the root mean square of a response's gradient
    on-policy, so that all rules move alike. `jitter` is the scale of a token's log-ratio that one update adds through
    all other parameters. With `deviation` the advantage is divided by the deviation of a kind's rewards.
    """

    updates: int = 16
    step: float = 0.01
    jitter: float = 0.005
    deviation: bool = False

    def __post_init__(self) -> None:
        if self.updates < 1 or self.step < 0 or self.jitter < 0:
            raise ValueError(f"{self} needs at least 1 update, and a step and a jitter of at least 0")


@dataclass(frozen=True)
class RolloutResult:
    """What K updates did."""

    theta: Floats  # after them
    move: Floats  # of theta, in units of the step: the mean direction of an update
    pulls: Floats  # (kinds,) the gradient in the logit of each kind, mean over updates
    variance: float  # of the update of one response, summed over the parameters; mean over updates
    clip_rates: Floats  # (kinds,) share of the responses of off-policy updates whose gradient was removed
    clip_rate: float  # of all prompts


def run(problem: Problem, rule: Objective, theta: Floats, regime: Regime) -> RolloutResult:
    """Sample from theta and make all updates of a rollout, with exact expectations."""
    outcomes = problem.outcomes(theta)
    advantage = _advantages(problem, outcomes, regime.deviation)
    size, current = 0.0, theta
    pulls, variances, clipped = [], [], []
    for update in range(regime.updates):
        v = regime.jitter**2 * update * problem.lengths[outcomes.kind]
        S = log_ratio(problem, outcomes, current, theta) - v / 2
        slope, square, lost = _slopes(rule, problem, outcomes, S, v, advantage)
        score = problem.scores(outcomes, current)
        pull, squares = problem.expected(outcomes, slope * score), problem.expected(outcomes, square * score**2)
        square_norm = float((problem.weights * squares) @ (problem.features**2).sum(1))
        size = size or math.sqrt(square_norm) or 1.0
        moved = (problem.weights * pull / size) @ problem.features
        pulls.append(pull / size)
        variances.append(square_norm / size**2 - moved @ moved)
        clipped.append(problem.expected(outcomes, lost * ratios.has_gradient(advantage)))
        current = current + regime.step * moved
    rates, mean = np.mean(clipped[1:] or [0 * pull], 0), np.mean(pulls, 0)
    move = (problem.weights * mean) @ problem.features
    return RolloutResult(current, move, mean, float(np.mean(variances)), rates, float(problem.weights @ rates))


def log_ratio(problem: Problem, outcomes: Outcomes, theta: Floats, old: Floats) -> Floats:
    """S of each response, between the parameters now and when it was sampled."""
    new, before = problem.logits(theta), problem.logits(old)
    ones, zeros = log_expit(new) - log_expit(before), log_expit(-new) - log_expit(-before)
    kind, k = outcomes.kind, outcomes.count
    return np.asarray(k * ones[kind] + (problem.lengths[kind] - k) * zeros[kind])


def fixed_point(problem: Problem, rule: Objective, regime: Regime, start: Floats | None = None) -> Floats:
    """The parameters that the updates of a rollout do not change."""

    def move(theta: Any) -> Floats:
        return run(problem, rule, np.atleast_1d(theta), regime).move

    start = problem.optimum() if start is None else start
    if len(start) == 1:
        ends = [float(start[0]) + sign * 4.0 for sign in (-1, 1)]
        if move(ends[0])[0] * move(ends[1])[0] < 0:
            return np.array([brentq(lambda t: float(move(t)[0]), *ends, xtol=1e-10)])
    solution = root(move, start, tol=1e-10)
    if not solution.success:
        raise ValueError(f"no fixed point was found from theta = {start}: {solution.message}")
    return np.asarray(solution.x)


def effective_weights(problem: Problem, rule: Objective, theta: Floats, regime: Regime) -> Floats:
    """(kinds,) how much each kind counts: its pull under the rule over its pull in the true objective, with mean 1.

    At theta the rule climbs sum_j weight_j effective_j E[R_j]. The shared parameters are held there.
    """
    ratio = run(problem, rule, theta, replace(regime, step=0.0)).pulls / problem.pulls(theta)
    return np.asarray(ratio / (problem.weights @ ratio))


def at_clip_rate(problem: Problem, rule: Objective, theta: Floats, regime: Regime, clip_rate: float) -> Objective:
    """The rule with the band that clips this share of the off-policy responses of a rollout from theta."""

    def scaled(log_k: float) -> Objective:
        result = rule.scaled(math.exp(log_k))
        if result is None:
            raise ValueError(f"{rule.name} has no width to set: take the same rule with a given band")
        return result

    def miss(log_k: float) -> float:
        return run(problem, scaled(log_k), theta, regime).clip_rate - clip_rate

    narrow = wide = 0.0
    while miss(wide) > 0:
        wide += math.log(4)
    while miss(narrow) < 0:
        narrow -= math.log(4)
        if narrow < math.log(NARROWEST):
            raise ValueError(f"no band clips {clip_rate:.1%} of the responses: ask for less, or more updates or jitter")
    return scaled(brentq(miss, narrow, wide, xtol=1e-6))


class Losses(NamedTuple):
    """Expected reward that a rule loses: where its updates stop, and by the noise of N responses, `noise` / N."""

    bias: float
    noise: float


def losses(problem: Problem, rule: Objective, regime: Regime) -> Losses:
    """What the rule's fixed point costs, and what each response's noise adds, for problems of one parameter.

    The fixed point of N responses has the variance V / (N M^2), V of one response's update, M the derivative of the
    mean update in theta. It costs half the curvature of the true objective times that variance.
    """
    if problem.features.shape[1] != 1:
        raise ValueError(f"losses are of problems of one parameter, not {problem.features.shape[1]}")
    point = fixed_point(problem, rule, regime)
    ends = [point - DIFFERENCE, point + DIFFERENCE]
    curvature, slope = (
        float((f(ends[1]) - f(ends[0]))[0]) / (2 * DIFFERENCE)
        for f in (problem.gradient, lambda theta: run(problem, rule, theta, regime).move)
    )
    noise = abs(curvature) / 2 * run(problem, rule, point, regime).variance / slope**2
    return Losses(problem.value(problem.optimum()) - problem.value(point), noise)


def _advantages(problem: Problem, outcomes: Outcomes, deviation: bool) -> Floats:
    """Rewards minus their exact mean; and over their deviation where it is not zero."""
    advantage = outcomes.reward - problem.expected(outcomes, outcomes.reward)[outcomes.kind]
    if deviation:
        square = problem.expected(outcomes, advantage**2)
        advantage = advantage / np.sqrt(np.where(square > 0, square, 1.0))[outcomes.kind]
    return np.asarray(advantage)


def _slopes(
    rule: Objective, problem: Problem, outcomes: Outcomes, S: Floats, v: Floats, advantage: Floats
) -> tuple[Floats, Floats, Floats]:
    """E[f'(S + noise)] and E[f'(S + noise)^2] of each response, and the probability that its gradient is removed."""
    L = problem.lengths
    mean = float(problem.weights @ problem.expected(outcomes, S))
    totals = Totals(1, float(problem.weights @ L), mean)
    band, weighting = rule.band(L, totals), rule.weighting(L)
    if band is None or weighting is None:
        raise ValueError(
            f"{rule.name} does not clip the ratio of whole responses: take one that does, such as fspo or gspo"
        )
    centre, below, above, dual, scale, gain = (
        np.broadcast_to(np.asarray(value, np.float64), L.shape)[outcomes.kind] for value in (*band, *weighting)
    )
    top = np.where(advantage > 0, centre + above, np.where(advantage < 0, centre + dual, np.inf))
    top = np.minimum(top, rule.exponent_cap / scale)
    bottom = np.where(advantage < 0, centre - below, -np.inf)
    if not v.any():
        inside = np.where((bottom > S) | (top < S), 0.0, 1.0)
        moments = [np.exp(power * np.minimum(scale * S, rule.exponent_cap)) * inside for power in (1, 2)]
    else:
        deviation = np.sqrt(v)

        def moment(power: int) -> Floats:
            """E[exp(power scale x)] over the x in the band, for x ~ Normal(S, v)."""
            shift = power * scale * v
            mass = ndtr((top - S - shift) / deviation) - ndtr((bottom - S - shift) / deviation)
            return np.asarray(np.exp(power * scale * (S + shift / 2)) * mass)

        inside, *moments = (moment(power) for power in (0, 1, 2))
    factor = gain * scale * advantage
    return factor * moments[0], factor**2 * moments[1], 1 - inside
