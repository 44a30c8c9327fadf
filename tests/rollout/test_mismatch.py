"""Correction for a sampler whose log-probs differ from the trainer's, from the sampler's report to the update."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from fspo import objectives, tasks
from fspo.config import TrainConfig
from fspo.model.forward import logprobs
from fspo.model.loading import Policy, load
from fspo.objectives import Mismatch
from fspo.rollout.generate import Rollout, generate
from fspo.rollout.lanes import Watch
from fspo.rollout.samplers import Sampler
from fspo.tasks import Scorer
from fspo.training.experience import Experience, collect
from fspo.training.old_logprobs import logprob_table, policy_logprobs
from fspo.training.update import Learner, Update
from helpers.policies import make

RULES: list[dict[str, Any]] = [
    {"level": "sequence", "mode": "mask", "low": 0.8, "high": 1.2},
    {"level": "sequence", "mode": "truncate", "c": 0.05},
    {"level": "token", "mode": "truncate", "low": 0.9, "high": 1.1},
]


class NoisySampler:
    """The local sampler, reporting log-probs with an error as another engine would."""

    def __init__(self, policy: Policy, error: float) -> None:
        self.policy, self.error = policy, error
        self.reported: dict[tuple[int, ...], list[float]] = {}

    def sync(self, policy: Policy) -> None:
        self.policy = policy

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        n: int,
        *,
        max_new_tokens: int,
        temperature: float,
        seed: int,
        places: Sequence[int] | None = None,
        watch: Watch | None = None,
    ) -> Rollout:
        rollout = generate(self.policy, prompts, n, max_new_tokens=max_new_tokens, temperature=temperature, seed=seed)
        with torch.no_grad():
            exact = logprobs(self.policy, rollout.batch(), temperature).logprobs
        noise = self.error * torch.randn(exact.shape, generator=torch.Generator().manual_seed(seed))
        rows = [row[: len(c)] for row, c in zip((exact + noise).tolist(), rollout.completions, strict=True)]
        for g, completion, row in zip(rollout.group, rollout.completions, rows, strict=True):
            self.reported.setdefault((*prompts[g], -1, *completion), row)
        return replace(rollout, logprobs=rows)


def settings(mismatch: dict[str, Any] | None, **rollout: Any) -> TrainConfig:
    return TrainConfig(
        model={"path": "tiny:2x64"},
        task={"name": "sort", "graded": True, "n_min": 2, "n_max": 6, "letters": 3},
        objective={"name": "fspo", "c_low": 2.0, "c_high": 2.0, "mismatch": mismatch},
        rollout={"engine": "vllm", "prompts": 6, "group": 8, "max_new_tokens": 12, **rollout},
        update={"epochs": 1, "minibatches": 2, "token_budget": 100, "lr": 1e-6},
    )


def collected(policy: Policy, sampler: Sampler, config: TrainConfig) -> Experience:
    task = tasks.get(config.task)
    with Scorer(task) as scorer:
        return collect(policy, sampler, task, scorer, config, 1, 0)[0]


def learnt(config: TrainConfig) -> tuple[Experience, Tensor, list[Update], float]:
    """A step with the noisy sampler: its rollout, pi_old's log-probs, its updates, and how far the weights moved."""
    policy = load("tiny:2x64")
    experience = collected(policy, NoisySampler(policy, 0.1), config)
    generator = torch.Generator().manual_seed(0)  # an untrained policy earns the same reward nearly everywhere
    experience.advantages = torch.randn(len(experience.group), generator=generator).tolist()
    old = policy_logprobs(policy, experience.batch, 1.0, 10_000)
    before = torch.cat([p.detach().flatten().clone() for p in policy.trainable()])
    updates = Learner(policy, objectives.get(**config.objective), config).learn(experience, 1)
    after = torch.cat([p.detach().flatten() for p in policy.trainable()])
    return experience, old, updates, float((after - before).abs().max())


def weights(rule: Mismatch, experience: Experience, old: Tensor) -> tuple[Tensor, Tensor]:
    """What `Mismatch.weights` gives every answer, (N,), and the share of it that the rule changed."""
    assert experience.sampler_logprobs is not None
    mask = ~torch.isnan(old)
    found, outside = rule.weights(old, logprob_table(experience.sampler_logprobs, old.shape[1], old), mask)
    if found.dim() == 2:
        lengths = mask.sum(-1)
        found, outside = (torch.where(mask, t, 0).sum(-1) / lengths for t in (found, outside.double()))
    return found.double(), outside.double()


@pytest.mark.parametrize("dynamic", [0, 2])
def test_a_rollout_keeps_the_log_probs_that_the_sampler_reported(dynamic: int) -> None:
    """Also where groups without variance are replaced by new prompts."""
    policy = load("tiny:2x64")
    sampler = NoisySampler(policy, 0.1)
    experience = collected(policy, sampler, settings(RULES[0], dynamic=dynamic))
    assert experience.sampler_logprobs is not None
    keys = [(*experience.prompts[g], -1, *c) for g, c in zip(experience.group, experience.completions, strict=True)]
    assert experience.sampler_logprobs == [sampler.reported[key] for key in keys]
    again = Experience.from_json(experience.to_json(), policy.device)
    assert again.sampler_logprobs == experience.sampler_logprobs


@pytest.mark.parametrize("rule", RULES)
def test_updates_are_weighted_as_the_rule_says(rule: dict[str, Any]) -> None:
    """Nothing is clipped by so wide a band, so the loss is minus the mean of w exp(S) A."""
    experience, old, updates, moved = learnt(settings(rule))
    w, outside = weights(Mismatch(**rule), experience, old)
    A = torch.tensor(experience.advantages, dtype=torch.float64)
    assert 0 < outside.mean() < 1
    assert len(updates) == 2
    assert moved > 0
    for update in updates:
        rows = update.members
        assert update.accepted.tolist() == [1.0] * len(rows)
        expected = -(w[rows] * update.log_ratio.exp() * A[rows]).mean()
        unweighted = -(update.log_ratio.exp() * A[rows]).mean()
        assert update.metrics["loss"] == pytest.approx(float(expected), abs=1e-6)
        assert abs(float(expected - unweighted)) > 1e-3
        assert update.metrics["mismatch_outside"] == pytest.approx(float(outside[rows].mean()))


def test_without_the_option_the_log_probs_of_the_sampler_change_nothing() -> None:
    experience, _, updates, _ = learnt(settings(None))
    A = torch.tensor(experience.advantages, dtype=torch.float64)
    for update in updates:
        assert "mismatch_outside" not in update.metrics
        expected = -(update.log_ratio.exp() * A[update.members]).mean()
        assert update.metrics["loss"] == pytest.approx(float(expected), abs=1e-6)


def test_answers_that_the_rule_drops_have_no_gradient() -> None:
    _, _, updates, moved = learnt(settings({"level": "sequence", "mode": "mask", "high": 1e-3}))
    assert [update.metrics["mismatch_outside"] for update in updates] == pytest.approx([1.0, 1.0])
    assert [update.metrics["grad_norm"] for update in updates] == [0.0, 0.0]
    assert moved == 0.0


def test_the_option_needs_a_sampler_of_another_engine() -> None:
    objective = {"name": "fspo", "mismatch": {"level": "sequence", "c": 0.1}}
    config = TrainConfig(objective=objective, rollout={"engine": "vllm"})
    assert objectives.get(**config.objective).mismatch == Mismatch(level="sequence", c=0.1)
    with pytest.raises(ValueError, match=r"leave it out, or set rollout\.engine=vllm") as caught:
        TrainConfig(objective=objective, rollout={"engine": "local"})
    assert "\n" not in str(caught.value)


def test_the_local_sampler_reports_no_log_probs() -> None:
    assert generate(make("qwen3"), [[5, 6]], 2, max_new_tokens=3).logprobs is None
