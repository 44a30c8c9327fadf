"""The laboratory against the objectives' own autograd on all responses, against sampling, and against theory."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import fspo
from fspo import laboratory
from fspo.laboratory import Kind, Problem, Regime, near
from fspo.objectives import Objective, Totals
from fspo.objectives.batch import Batch
from helpers.batches import of_sums

SMALL = Problem(
    [Kind(1, near(0.9), 2.0, (1.0, 0.5)), Kind(3, near(0.7), 1.0, (1.0, 0.0)), Kind(6, near(0.2), 3.0, (1.0, -0.5))]
)
RULES: list[tuple[str, dict[str, Any]]] = [
    ("fspo", {"c_low": 0.05, "c_high": 0.04}),
    ("fspo", {"c_low": 0.05, "c_high": 0.04, "drift": "kl", "dual": None, "reference_length": 3.0}),
    ("fspo_gate", {"clip_rate": None, "c_low": 0.05, "c_high": 0.04}),
    ("rloo", {"clip_low": 0.05, "clip_high": 0.05}),
    ("gspo", {"clip_low": 0.02, "clip_high": 0.03}),
    ("luspo", {"clip_low": 0.02, "clip_high": 0.03}),
    ("length_family", {"c_low": 0.05, "c_high": 0.04}),
    ("length_family", {"ratio_exponent": 1, "gain_exponent": 0.5, "band_exponent": 0.2, "reference_length": 3.0}),
    ("length_family", {"drift": "bounded", "exponent_cap": 0.02, "c_high": 0.5}),
]
theta0 = np.array([0.3, -0.2])


def unclipped(**parameters: Any) -> Objective:
    return fspo.objectives.get("fspo", c_low=1e9, c_high=1e9, dual=None, **parameters)


class Enumeration:
    """Every binary sequence of every kind, with both rewards, as tensors that the torch objectives take."""

    def __init__(self, problem: Problem, theta: np.ndarray, deviation: bool) -> None:
        rows = [
            (j, bits, reward)
            for j, kind in enumerate(problem.kinds)
            for bits in itertools.product([0, 1], repeat=kind.length)
            for reward in ([None] if problem.graded else [0.0, 1.0])
        ]
        longest = int(problem.lengths.max())
        kinds = torch.tensor([j for j, _, _ in rows])
        self.features = torch.tensor(problem.features)[kinds]
        self.bits = torch.tensor([[*bits] + [0] * (longest - len(bits)) for _, bits, _ in rows], dtype=torch.bool)
        self.mask = torch.tensor([[1] * len(b) + [0] * (longest - len(b)) for _, b, _ in rows], dtype=torch.bool)
        self.old = self.logprobs(torch.tensor(theta)).detach()
        sequence = torch.where(self.mask, self.old, 0.0).sum(-1).exp()
        success = torch.from_numpy(np.array([problem.kinds[j].success(sum(b) / len(b)) for j, b, _ in rows]))
        reward = success if problem.graded else torch.tensor([r for _, _, r in rows], dtype=torch.float64)
        chance = 1.0 if problem.graded else torch.where(reward > 0, success, 1 - success)
        self.weight = sequence * chance
        mean = torch.zeros(len(problem.kinds)).double().index_add(0, kinds, self.weight * reward)
        self.advantage = reward - mean[kinds]
        if deviation:
            square = torch.zeros(len(problem.kinds)).double().index_add(0, kinds, self.weight * self.advantage**2)
            self.advantage = self.advantage / square.sqrt()[kinds]
        self.weight = self.weight * torch.tensor(problem.weights)[kinds]

    def logprobs(self, theta: torch.Tensor) -> torch.Tensor:
        logit = (self.features @ theta).unsqueeze(-1)
        return torch.where(self.bits, torch.nn.functional.logsigmoid(logit), torch.nn.functional.logsigmoid(-logit))

    def gradient(self, objective: Objective, theta: np.ndarray) -> tuple[np.ndarray, float, float]:
        """The objective's gradient in theta by autograd, its clip rate, and the root mean square over responses."""
        t = torch.tensor(theta, requires_grad=True)
        logprobs = self.logprobs(t)
        l = torch.where(self.mask, (logprobs - self.old).detach(), 0.0)
        S, L = l.sum(-1), self.mask.sum(-1)
        totals = Totals(1, *(float((self.weight * x).sum()) for x in (L, S)))
        batch = Batch.check(logprobs, self.old, self.advantage, self.mask, totals)
        parts, accepted = objective.per_response(batch)
        rows = torch.stack([torch.autograd.grad(part, t, retain_graph=True)[0] for part in parts])
        clipped = float((self.weight * (1 - accepted) * (self.advantage != 0)).sum())
        mean_square = float((self.weight * rows.square().sum(-1)).sum())
        return (self.weight.unsqueeze(-1) * rows).sum(0).numpy(), clipped, math.sqrt(mean_square)


@pytest.mark.parametrize("deviation", [False, True], ids=["", "deviation"])
@pytest.mark.parametrize("graded", [False, True], ids=["0 or 1", "graded"])
@pytest.mark.parametrize(("name", "parameters"), RULES, ids=str)
def test_a_rollout_is_the_autograd_of_the_objective_over_all_responses(
    name: str, parameters: dict[str, Any], graded: bool, deviation: bool
) -> None:
    objective, problem = fspo.objectives.get(name, **parameters), replace(SMALL, graded=graded)
    regime = Regime(updates=4, step=0.4, jitter=0, deviation=deviation)
    rollout = laboratory.run(problem, objective, theta0, regime)
    everything, theta, rates = Enumeration(problem, theta0, deviation), theta0, []
    size = 0.0
    for _ in range(regime.updates):
        gradient, rate, total = everything.gradient(objective, theta)
        size = size or total
        rates.append(rate)
        theta = theta + regime.step * gradient / size
    assert rollout.theta == pytest.approx(theta, rel=1e-10)
    assert rollout.clip_rate == pytest.approx(np.mean(rates[1:]), abs=1e-12)
    assert rollout.clip_rate > 0.01, "clipping must have acted"


@pytest.mark.parametrize("name", ["fspo", "rloo", "luspo", "gspo", "length_family"])
def test_moments_agree_with_sampling(name: str) -> None:
    """Jitter, long responses: the mean gradient, its variance and the clip rate of 400,000 sampled responses."""
    problem = Problem([Kind(40, near(0.6)), Kind(3000, near(0.4))])
    theta, n, sigma = np.array([0.1]), 200_000, 0.02
    ranges = {"clip_low": 0.1, "clip_high": 0.1} if name == "rloo" else {"clip_low": 0.001, "clip_high": 0.001}
    parameters = {"c_low": 0.02, "c_high": 0.02, "reference_length": 1} if name in ("fspo", "length_family") else ranges
    objective = fspo.objectives.get(name, **parameters)
    rollout = laboratory.run(problem, objective, theta, Regime(updates=2, step=0, jitter=sigma))
    first = laboratory.run(problem, objective, theta, Regime(updates=1, step=0, jitter=sigma))
    rng = np.random.default_rng(0)
    L = np.repeat(problem.lengths, n)
    p = 1 / (1 + math.exp(-theta[0]))
    k = rng.binomial(L.astype(int), p)
    targets = np.repeat([0.6, 0.4], n)
    reward = (rng.random(2 * n) < near(0)(k / L - targets)).astype(float)
    mean = np.repeat(problem.rewards(theta), n)
    S = torch.tensor(rng.normal(-(sigma**2) / 2 * L, sigma * np.sqrt(L)), requires_grad=True)
    totals = Totals(2 * n, float(L.sum()))
    surrogate = objective.surrogate(of_sums(S, torch.tensor(L), torch.tensor(reward - mean), totals))
    (slope,) = torch.autograd.grad(surrogate.value.sum(), S)
    samples = slope.numpy() * (k - L * p)
    unit = size_on_policy(problem, objective, theta)
    second = unit * (2 * rollout.move[0] - first.move[0])
    variance = unit**2 * (2 * rollout.variance - first.variance)
    assert samples.mean() == pytest.approx(second, abs=4.5 * samples.std() / math.sqrt(2 * n))
    assert samples.var() == pytest.approx(variance, rel=0.05)
    clipped = 1 - surrogate.accepted.numpy()
    for j, rate in enumerate(rollout.clip_rates):
        assert clipped[j * n : (j + 1) * n].mean() == pytest.approx(rate, abs=5e-3)
    assert rollout.clip_rate > 0.02


def size_on_policy(problem: Problem, objective: Objective, theta: np.ndarray) -> float:
    """The root mean square of a response's gradient, which is the laboratory's unit."""
    weighting, outcomes = objective.weighting(problem.lengths), problem.outcomes(theta)
    assert weighting is not None
    factor = np.broadcast_to(weighting.scale * weighting.gain, problem.lengths.shape)[outcomes.kind]
    advantage = outcomes.reward - problem.rewards(theta)[outcomes.kind]
    features = np.linalg.norm(problem.features, axis=1)[outcomes.kind]
    norms = factor * advantage * problem.scores(outcomes, theta) * features
    return math.sqrt(problem.weights @ problem.expected(outcomes, norms**2))


@settings(max_examples=15)
@given(
    lengths=st.lists(st.integers(8, 5000), min_size=2, max_size=5), updates=st.integers(1, 6),
    jitter=st.floats(0, 0.01), step=st.floats(0, 0.05), graded=st.booleans(),
)  # fmt: skip
def test_without_clipping_the_fixed_point_is_the_true_optimum(
    lengths: list[int], updates: int, jitter: float, step: float, graded: bool
) -> None:
    problem = laboratory.conflict(lengths, graded=graded)
    point = laboratory.fixed_point(problem, unclipped(), Regime(updates, step, jitter))
    assert point == pytest.approx(problem.optimum(), abs=1e-6)


def test_without_clipping_every_update_is_the_true_gradient_of_its_parameters() -> None:
    """Importance weights are exact however far the policy has moved."""
    regime = Regime(updates=5, step=0.4, jitter=0.01)
    before = laboratory.run(SMALL, unclipped(), theta0, regime).theta
    after = laboratory.run(SMALL, unclipped(), theta0, replace(regime, updates=6)).theta
    size = size_on_policy(SMALL, unclipped(), theta0)
    assert after - before == pytest.approx(regime.step * SMALL.gradient(before) / size, rel=1e-9)


@pytest.mark.parametrize("length", [1, 7, 1000, 32768])
@pytest.mark.parametrize("graded", [False, True])
def test_a_problem_by_hand_and_by_differences(length: int, graded: bool) -> None:
    problem = Problem([Kind(length, lambda share: share * share)], graded)
    theta = np.array([0.4])
    p = 1 / (1 + math.exp(-0.4))
    assert problem.value(theta) == pytest.approx(p * p + p * (1 - p) / length, rel=1e-10)
    difference = (problem.value(theta + 1e-5) - problem.value(theta - 1e-5)) / 2e-5
    assert problem.gradient(theta) == pytest.approx([difference], rel=1e-6)
    outcomes = problem.outcomes(theta)
    assert problem.expected(outcomes, np.ones_like(outcomes.reward)) == pytest.approx([1.0], abs=1e-10)


def test_the_optimum_is_the_best_of_a_grid() -> None:
    problem = laboratory.conflict([8, 64, 512, 32768])
    best = problem.value(problem.optimum())
    grid = [problem.value(np.array([t])) for t in np.linspace(-2, 2, 401)]
    assert best >= max(grid)
    assert best == pytest.approx(max(grid), abs=1e-5)


@pytest.mark.parametrize(("a", "g"), [(0.0, 0.0), (0.5, 0.0), (1.0, 0.0), (1.0, 1.0), (0.5, 0.5)])
def test_on_policy_a_kind_counts_as_its_length_to_the_power_g_minus_a(a: float, g: float) -> None:
    problem = laboratory.conflict([8, 128, 2048])
    rule = fspo.objectives.get("length_family", ratio_exponent=a, gain_exponent=g)
    weights = laboratory.effective_weights(problem, rule, np.array([0.2]), Regime(updates=1))
    expected = problem.lengths ** (g - a)
    assert weights == pytest.approx(expected / expected.mean(), rel=1e-9)


def test_a_clip_rate_is_met_and_shared_by_lengths_as_the_law_says() -> None:
    problem = laboratory.conflict([16, 256, 4096])
    theta, regime = problem.optimum(), Regime(updates=4, jitter=0.01)
    slopes = {}
    for name in ("fspo", "gspo", "rloo"):
        rule = laboratory.at_clip_rate(problem, fspo.objectives.get(name), theta, regime, 0.1)
        rollout = laboratory.run(problem, rule, theta, regime)
        assert rollout.clip_rate == pytest.approx(0.1, abs=1e-4)
        slopes[name] = rollout.clip_rates[-1] - rollout.clip_rates[0]
    assert slopes["gspo"] < -0.15 < slopes["fspo"] < 0.05 < 0.1 < slopes["rloo"]
    with pytest.raises(ValueError, match=r"no band clips 99\.0% of the responses"):
        laboratory.at_clip_rate(problem, fspo.objectives.get("gspo"), theta, regime, 0.99)


def test_rollouts_end_in_the_fixed_point() -> None:
    problem = laboratory.conflict([8, 512])
    rule, regime = fspo.objectives.get("fspo", c_low=0.02, c_high=0.02), Regime(updates=4, step=0.2, jitter=0.01)
    theta = np.array([1.0])
    for _ in range(300):
        theta = laboratory.run(problem, rule, theta, regime).theta
    assert theta == pytest.approx(laboratory.fixed_point(problem, rule, regime), abs=1e-4)
    several = replace(SMALL, kinds=[replace(k, features=(1.0, float(j % 2))) for j, k in enumerate(SMALL.kinds)])
    start = several.optimum()
    point = laboratory.fixed_point(several, rule, regime, start)
    assert np.abs(laboratory.run(several, rule, point, regime).move).max() < 1e-8


def test_losses_do_not_depend_on_a_constant_and_vanish_without_clipping() -> None:
    problem, regime = laboratory.conflict([8, 512]), Regime(updates=4, jitter=0.01)
    one, half = (
        laboratory.losses(problem, fspo.objectives.get("fspo", c_low=0.01, c_high=0.01, reference_length=r), regime)
        for r in (1.0, 2.0)
    )
    assert one == pytest.approx(half, rel=1e-6)
    assert one.bias > 1e-6
    free = laboratory.losses(problem, unclipped(), regime)
    assert free.bias == pytest.approx(0, abs=1e-9)
    # One update on-policy: the delta method by hand.
    once = laboratory.losses(problem, unclipped(), Regime(updates=1))
    theta = problem.optimum()
    outcomes = problem.outcomes(theta)
    advantage = outcomes.reward - problem.rewards(theta)[outcomes.kind]
    second = problem.weights @ problem.expected(outcomes, (advantage * problem.scores(outcomes, theta)) ** 2)
    curvature = (problem.gradient(theta + 1e-4) - problem.gradient(theta - 1e-4))[0] / 2e-4
    assert once.noise == pytest.approx(second / (2 * abs(curvature)), rel=1e-4)
    with pytest.raises(ValueError, match="problems of one parameter, not 2"):
        laboratory.losses(SMALL, unclipped(), regime)


def rollout_of(name: str) -> laboratory.RolloutResult:
    return laboratory.run(laboratory.conflict([8, 16]), fspo.objectives.get(name), np.zeros(1), Regime(updates=2))


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: Problem([]), "a problem needs kinds of prompts"),
        (lambda: Problem([Kind(0, near(0.5))]), "a length of at least 1"),
        (lambda: Problem([Kind(1, near(0.5)), Kind(1, near(0.5), features=(1, 2))]), "the same number of features"),
        (lambda: Regime(updates=0), "needs at least 1 update"),
        (lambda: Regime(jitter=-1), "a jitter of at least 0"),
        (lambda: rollout_of("grpo"), "grpo does not clip the ratio of whole responses"),
        (lambda: rollout_of("reinforce"), "reinforce does not clip the ratio of whole responses"),
        (lambda: rollout_of("vespo"), "vespo does not clip the ratio of whole responses"),
    ],
)
def test_bad_input_is_one_clear_sentence(make: Any, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        make()
