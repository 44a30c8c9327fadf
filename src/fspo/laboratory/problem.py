"""Problems whose expectations are finite sums: responses of L binary tokens, rewarded by their count of ones.

A kind of prompt j has responses of L_j tokens. Every token is 1 with the probability p_j = sigmoid(x_j . theta),
independently of the others, so that a response enters only through its count k ~ Binomial(L_j, p_j), and

    S = k log(p / q) + (L - k) log((1 - p) / (1 - q)),      dS / d logit = k - L p

for a current probability p and one of q when it was sampled. The reward is success(k / L), or 1 with that probability
and else 0. The true objective is the expected reward of a prompt, sum_j weight_j E[R_j].
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.special import expit, gammaln, log_expit

Floats = NDArray[np.float64]

WINDOW = 8.0  # standard deviations of k on either side; what lies beyond has a probability below 1e-14


@dataclass(frozen=True)
class Kind:
    """A kind of prompt."""

    length: int  # tokens of every response to it
    success: Callable[[Any], Any]  # the reward, or its probability, as a function of k / L; in [0, 1]
    weight: float = 1.0  # share of the prompts; shares are divided by their sum
    features: tuple[float, ...] = (1.0,)  # x: the logit of its tokens is x . theta


@dataclass(frozen=True)
class Outcomes:
    """All responses of all kinds, one row per kind, count and reward."""

    kind: NDArray[np.intp]
    count: Floats  # k
    reward: Floats
    probability: Floats  # sums to 1 over the rows of a kind


@dataclass(frozen=True)
class Problem:
    """Kinds of prompts that share the parameters theta. `graded` rewards are success itself, others are 0 or 1."""

    kinds: Sequence[Kind]
    graded: bool = False

    def __post_init__(self) -> None:
        if not self.kinds or any(kind.length < 1 or kind.weight <= 0 for kind in self.kinds):
            raise ValueError("a problem needs kinds of prompts with a length of at least 1 and a weight above 0")
        if len({len(kind.features) for kind in self.kinds}) > 1:
            raise ValueError("all kinds of prompts need the same number of features")

    @cached_property
    def lengths(self) -> Floats:
        return np.array([kind.length for kind in self.kinds], np.float64)

    @cached_property
    def weights(self) -> Floats:
        weights = np.array([kind.weight for kind in self.kinds], np.float64)
        return np.asarray(weights / weights.sum())

    @cached_property
    def features(self) -> Floats:
        return np.array([kind.features for kind in self.kinds], np.float64)

    def logits(self, theta: Floats) -> Floats:
        """(kinds,) the logit of a token of each kind."""
        return np.asarray(self.features @ theta)

    def outcomes(self, theta: Floats) -> Outcomes:
        """The responses that the policy gives, with their rewards."""
        logits = self.logits(theta)
        counts = [_window(kind.length, float(p)) for kind, p in zip(self.kinds, expit(logits), strict=True)]
        kind = np.repeat(np.arange(len(counts)), [len(k) for k in counts])
        k, L, logit = np.concatenate(counts), self.lengths[kind], logits[kind]
        log_p = (
            gammaln(L + 1) - gammaln(k + 1) - gammaln(L - k + 1) + k * log_expit(logit) + (L - k) * log_expit(-logit)
        )
        p = np.exp(log_p)
        shares = [np.asarray(one.success(row / one.length)) for one, row in zip(self.kinds, counts, strict=True)]
        success = np.concatenate(shares).astype(np.float64)
        if self.graded:
            return Outcomes(kind, k, success, p)
        reward = np.repeat([1.0, 0.0], len(k))
        return Outcomes(np.tile(kind, 2), np.tile(k, 2), reward, np.concatenate([p * success, p * (1 - success)]))

    def expected(self, outcomes: Outcomes, values: Floats) -> Floats:
        """(kinds,) the mean of `values`, one per response, over each kind."""
        return np.asarray(np.bincount(outcomes.kind, outcomes.probability * values, len(self.kinds)), np.float64)

    def scores(self, outcomes: Outcomes, theta: Floats) -> Floats:
        """The derivative of each response's log-probability in the logit of its kind, k - L p."""
        mean = self.lengths * expit(self.logits(theta))
        return np.asarray(outcomes.count - mean[outcomes.kind])

    def rewards(self, theta: Floats) -> Floats:
        """(kinds,) the expected reward of each kind."""
        outcomes = self.outcomes(theta)
        return self.expected(outcomes, outcomes.reward)

    def value(self, theta: Floats) -> float:
        """The true objective."""
        return float(self.weights @ self.rewards(theta))

    def pulls(self, theta: Floats) -> Floats:
        """(kinds,) the derivative of each kind's expected reward in its logit."""
        outcomes = self.outcomes(theta)
        return self.expected(outcomes, outcomes.reward * self.scores(outcomes, theta))

    def gradient(self, theta: Floats) -> Floats:
        """The gradient of the true objective."""
        return np.asarray((self.weights * self.pulls(theta)) @ self.features)

    def optimum(self) -> Floats:
        """The parameters that maximise the true objective."""
        start = np.zeros(self.features.shape[1])
        solution = minimize(lambda t: -self.value(t), start, jac=lambda t: -self.gradient(t), method="BFGS", tol=1e-12)
        return np.asarray(solution.x)


def _window(length: int, p: float) -> Floats:
    """The counts of ones within WINDOW standard deviations of the mean."""
    reach = WINDOW * math.sqrt(length * p * (1 - p)) + WINDOW
    first, last = max(0, math.floor(length * p - reach)), min(length, math.ceil(length * p + reach))
    return np.arange(first, last + 1, dtype=np.float64)


def near(target: float) -> Callable[[Any], Any]:
    """A reward that is 1 where the share of ones is `target` and falls off as a Gaussian of width 0.25."""
    return lambda share: np.exp(-0.5 * ((share - target) / 0.25) ** 2)


def conflict(lengths: Sequence[int], graded: bool = False) -> Problem:
    """Prompts of equal weight that share one parameter; the shorter half wants more ones, the longer half fewer.

    An update that counts lengths unequally therefore moves the optimum.
    """
    ordered = sorted(lengths)
    half = len(ordered) / 2
    kinds = [Kind(length, near(0.65 if index < half else 0.35)) for index, length in enumerate(ordered)]
    return Problem(kinds, graded)
