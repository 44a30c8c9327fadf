"""The metrics of a step are a fact about its updates, not about how they were split into micro-batches."""

from __future__ import annotations

import numpy as np
import pytest

from fspo import objectives, ratios, tasks
from fspo.config import read
from fspo.model.completions import split
from fspo.model.loading import load
from fspo.rollout.samplers import LocalSampler
from fspo.runs import Metrics
from fspo.tasks.scoring import Scorer
from fspo.training.experience import Experience, collect
from fspo.training.step_metrics import summarise, warnings_of
from fspo.training.update import Learner, Update

WHOLE, PARTS = 100_000, 40  # tokens of a micro-batch


def learned(small: list[str], token_budget: int, objective: str) -> tuple[Experience, list[Update], Metrics]:
    """One step in double precision, where the split changes a forward pass by less than 1e-12."""
    config = read(None, [*small, f"objective={objective}", f"update.token_budget={token_budget}", "update.lr=0.001"])
    policy = load(config.model.path, dtype="float64")
    task = tasks.get(config.task)
    with Scorer(task, **config.scoring.model_dump()) as scorer:
        sampled, _ = collect(policy, LocalSampler(policy), task, scorer, config, 1, 0)
    updates = Learner(policy, objectives.get(**config.objective), config).learn(sampled, 1)
    return sampled, updates, summarise(sampled, sampled, updates, config, step=1, lr=config.update.lr, skipped=0)


@pytest.mark.parametrize("objective", ["fspo", "{name: fspo, drift: kl}", "fspo_adaptive", "gspo", "grpo"])
def test_no_metric_depends_on_the_token_budget(small: list[str], objective: str) -> None:
    sampled, _, whole = learned(small, WHOLE, objective)
    _, _, parts = learned(small, PARTS, objective)
    assert len(split(sampled.batch, WHOLE)) == 1 < len(split(sampled.batch, PARTS))
    expected, found = (
        {key: value for key, value in m.model_dump().items() if isinstance(value, float)} for m in (whole, parts)
    )
    assert {"mu", "sigma", "ess", "clip_rate", "kl", "grad_norm", "lre"} <= found.keys()
    assert found == pytest.approx(expected, rel=1e-9, abs=1e-12)
    assert parts.clip_by_length == whole.clip_by_length


def test_mu_sigma_and_ess_are_those_of_the_responses(small: list[str]) -> None:
    """mu and sigma of the last update, and the least effective sample size of those that are off-policy."""
    sampled, updates, metrics = learned(small, PARTS, "fspo")
    lengths = np.array(sampled.lengths, dtype=np.float64)
    S, L = updates[-1].log_ratio.numpy(), lengths[updates[-1].computed]
    assert metrics.mu == pytest.approx(ratios.drift(S, L), rel=1e-12)
    assert metrics.sigma == pytest.approx(ratios.scale(S, L, ratios.drift(S, L)), rel=1e-12)
    least = min(ratios.effective_share(u.log_ratio.numpy()) for u in updates if u.off_policy)
    assert metrics.ess == pytest.approx(least, rel=1e-12)


def test_the_objectives_own_numbers_are_metrics_and_replace_no_others(small: list[str]) -> None:
    sampled, updates, metrics = learned(small, PARTS, "'helpers.custom_objective:Talkative'")
    mean = float(np.mean([u.metrics["own_number"] for u in updates]))
    assert metrics.model_dump()["own_number"] == pytest.approx(mean, rel=1e-12)
    assert mean > 0
    assert metrics.reward == pytest.approx(float(np.mean(sampled.rewards)))


@pytest.mark.parametrize(("clip_rate", "warned"), [(0.95, True), (0.85, False), (None, False)])
def test_a_band_that_clips_nearly_everything_is_worth_a_warning(
    small: list[str], clip_rate: float | None, warned: bool
) -> None:
    found = warnings_of(Metrics(step=1, clip_rate=clip_rate), read(None, small))
    assert ("clip_rate" in found) == warned
