"""Correction for a sampler whose log-probs differ from the trainer's, from the sampler's report to the update."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from fspo import objectives, tasks
from fspo.config import TrainConfig
from fspo.model.answers import Answers
from fspo.model.loading import load
from fspo.objectives import Mismatch
from fspo.runs.recorder import Update
from fspo.tasks.scoring import Scorer
from fspo.training.collect import collect
from fspo.training.loop import train
from fspo.training.processes import Team
from fspo.training.update import Learner, policy_logprobs

RULES: list[dict[str, Any]] = [
    {"level": "sequence", "mode": "mask", "low": 0.8, "high": 1.2},
    {"level": "sequence", "mode": "mask", "c": 0.05},
    {"level": "token", "mode": "truncate", "low": 0.9, "high": 1.1},
]


def settings(mismatch: dict[str, Any] | None) -> TrainConfig:
    return TrainConfig(
        model={"path": "tiny:2x64"},
        task={"name": "sort", "graded": True, "n_min": 2, "n_max": 6, "letters": 3},
        objective={"name": "fspo", "c_low": 2.0, "c_high": 2.0, "mismatch": mismatch},
        rollout={"prompts": 6, "group": 8, "max_new_tokens": 12},
        update={"epochs": 1, "minibatches": 2, "token_budget": 100, "lr": 1e-6},
    )


def learnt(config: TrainConfig) -> tuple[Answers, Tensor, list[Update], float]:
    """A step on answers whose sampler reported log-probs with an error, as another engine would: its answers, pi_old's
    log-probs, its updates, and how far the weights moved."""
    policy, task = load("tiny:2x64"), tasks.get(config.task)
    with Scorer(task) as scorer:
        answers = collect(policy, task, scorer, config, 1, 0, Team())[0]
    generator = torch.Generator().manual_seed(0)  # an untrained policy earns the same reward nearly everywhere
    answers.advantages = torch.randn(len(answers), generator=generator).tolist()
    old = policy_logprobs(policy, answers, 1.0, 10_000)
    noisy = old + 0.1 * torch.randn(old.shape, generator=generator)
    answers.sampler_logprobs = [row[:n] for row, n in zip(noisy.tolist(), answers.lengths, strict=True)]
    again = Answers.from_json(answers.to_json(), policy.device)
    assert again.sampler_logprobs == answers.sampler_logprobs
    before = torch.cat([p.detach().flatten().clone() for p in policy.trainable()])
    updates = Learner(policy, objectives.get(**config.objective), config).learn(answers, 1)
    after = torch.cat([p.detach().flatten() for p in policy.trainable()])
    return answers, old, updates, float((after - before).abs().max())


def weights(rule: Mismatch, answers: Answers, old: Tensor) -> tuple[Tensor, Tensor]:
    """What `Mismatch.weights` gives every answer, (N,), and the share of it that the rule changed."""
    mask = torch.arange(old.shape[1]) < torch.tensor(answers.lengths).unsqueeze(1)
    reported = torch.zeros_like(old)
    for i, row in enumerate(answers.sampler_logprobs):
        reported[i, : len(row)] = torch.tensor(row)
    each, outside = rule.weights(old, reported, mask)
    if each.dim() == 2:
        lengths = mask.sum(-1)
        each, outside = (torch.where(mask, t, 0).sum(-1) / lengths for t in (each, outside.double()))
    return each.double(), outside.double()


@pytest.mark.parametrize("rule", RULES)
def test_updates_are_weighted_as_the_rule_says(rule: dict[str, Any]) -> None:
    """Nothing is clipped by so wide a band, so the loss is minus the mean of w exp(S) A over the mean length."""
    answers, old, updates, moved = learnt(settings(rule))
    w, outside = weights(Mismatch(**rule), answers, old)
    A = torch.tensor(answers.advantages, dtype=torch.float64)
    assert 0 < outside.mean() < 1
    assert len(updates) == 2
    assert moved > 0
    for update in updates:
        rows = update.members
        assert update.accepted.tolist() == [1.0] * len(rows)
        ratio = torch.from_numpy(update.log_ratio).exp()
        expected, unweighted = (-(each * ratio * A[rows]).mean() / update.lengths.mean() for each in (w[rows], 1.0))
        assert update.metrics["loss"] == pytest.approx(float(expected), abs=1e-7)
        assert abs(float(expected - unweighted)) > 1e-5
        assert update.metrics["mismatch_outside"] == pytest.approx(float(outside[rows].mean()))


def test_the_local_engine_has_no_sampler_that_differs(tmp_path: Path) -> None:
    config = TrainConfig(objective={"name": "fspo", "mismatch": {"level": "sequence", "c": 0.1}})
    with pytest.raises(ValueError, match=r"the local engine samples with the trainer's own: leave it out"):
        train(config, tmp_path / "run")
    assert not (tmp_path / "run").exists()
