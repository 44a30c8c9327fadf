"""Equal to verl 0.9.1: its registered policy losses, its advantage estimators, KL penalties and sampler weights."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import fspo
from fspo.objectives import Objective
from helpers.batches import BATCHES, Inputs, assert_equal, random_batch

pytest.importorskip("verl")
from verl.trainer.ppo import core_algos
from verl.trainer.ppo.rollout_corr_helper import compute_rollout_correction_weights
from verl.workers.config import ActorConfig

NO_DUAL = 1e12

# ours, its parameters, verl's name, its configuration, its aggregation
SHARED: dict[str, tuple[str, dict[str, Any], str, dict[str, Any], str]] = {
    "ppo": ("ppo", {}, "vanilla", {"clip_ratio_c": NO_DUAL}, "token-mean"),
    "ppo with dual clip": ("ppo", {"dual_clip": 3.0}, "vanilla", {}, "token-mean"),
    "grpo": ("grpo", {}, "vanilla", {"clip_ratio_c": NO_DUAL}, "seq-mean-token-mean"),
    "dapo": ("dapo", {}, "vanilla", {"clip_ratio_c": NO_DUAL, "clip_ratio_high": 0.28}, "token-mean"),
    "dr_grpo": ("dr_grpo", {"max_length": 32}, "vanilla", {"clip_ratio_c": NO_DUAL}, "seq-mean-token-sum-norm"),
    "gspo": ("gspo", {}, "gspo", {"clip_ratio_low": 3e-4, "clip_ratio_high": 4e-4}, "seq-mean-token-mean"),
    "gspo_token": ("gspo_token", {}, "gspo", {"clip_ratio_low": 3e-4, "clip_ratio_high": 4e-4}, "seq-mean-token-mean"),
    "luspo": ("luspo", {}, "gspo", {"clip_ratio_low": 3e-4, "clip_ratio_high": 4e-4}, "seq-mean-token-sum"),
    "sapo": ("sapo", {}, "sapo", {}, "seq-mean-token-mean"),
    "gmpo": ("gmpo", {}, "geo_mean", {"clip_ratio_low": 0.4, "clip_ratio_high": 0.4}, "token-mean"),
    "cispo": (
        "cispo",
        {"ratio_low": 0.8, "ratio_high": 1.28},
        "cispo",
        {"clip_ratio_low": 0.2, "clip_ratio_high": 0.28},
        "token-mean",
    ),
}


def verl_loss(name: str, batch: Inputs, logprobs: Tensor, settings: dict[str, Any], aggregation: str) -> Tensor:
    config = ActorConfig(strategy="fsdp", rollout_n=1, ppo_micro_batch_size_per_gpu=1, **settings)
    loss_fn = core_algos.get_policy_loss_fn(name)
    advantages = batch.advantages.unsqueeze(-1).expand_as(logprobs)
    loss: Tensor = loss_fn(
        old_log_prob=batch.old_logprobs,
        log_prob=logprobs,
        advantages=advantages,
        response_mask=batch.mask,
        loss_agg_mode=aggregation,
        config=config,
    )[0]
    return loss


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("case", SHARED)
def test_equal_to_verl(case: str, dtype: torch.dtype) -> None:
    name, parameters, theirs_name, settings, aggregation = SHARED[case]
    objective = fspo.objectives.get(name, **parameters)
    for seed in range(BATCHES):
        batch = random_batch(seed, dtype, positions=32 if name == "dr_grpo" else None)

        def ours(logprobs: Tensor, batch: Inputs = batch) -> Tensor:
            return objective(logprobs, *batch.arguments()[1:]).loss

        def theirs(logprobs: Tensor, batch: Inputs = batch) -> Tensor:
            return verl_loss(theirs_name, batch, logprobs, settings, aggregation)

        assert_equal(ours, theirs, batch, f"{case}, batch {seed}")


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_reinforce_is_verls(dtype: torch.dtype) -> None:
    config = ActorConfig(strategy="fsdp", rollout_n=1, ppo_micro_batch_size_per_gpu=1)
    for seed in range(BATCHES):
        batch = random_batch(seed, dtype)

        def ours(logprobs: Tensor, batch: Inputs = batch) -> Tensor:
            return fspo.objectives.get("reinforce")(logprobs, *batch.arguments()[1:]).loss

        def theirs(logprobs: Tensor, batch: Inputs = batch) -> Tensor:
            return core_algos.compute_policy_loss_reinforce(
                batch.old_logprobs, logprobs, batch.advantages.unsqueeze(-1), batch.mask, config=config
            )[0]

        assert_equal(ours, theirs, batch, f"batch {seed}")


@pytest.mark.parametrize("kind", ["k1", "k2", "k3"])
def test_kl_penalty_is_verls(kind: str) -> None:
    for seed in range(BATCHES):
        batch = random_batch(seed)
        # Near the policy: verl clamps its k3 at 10, and the two agree below that.
        batch.ref_logprobs = batch.logprobs + batch.ref_logprobs - batch.old_logprobs
        with_kl = fspo.objectives.get("ppo", kl={"coef": 1.0, "kind": kind})

        def ours(logprobs: Tensor, batch: Inputs = batch, with_kl: Objective = with_kl) -> Tensor:
            plain = fspo.objectives.get("ppo")(logprobs, *batch.arguments()[1:]).loss
            return with_kl(logprobs, *batch.arguments()[1:], ref_logprobs=batch.ref_logprobs).loss - plain

        def theirs(logprobs: Tensor, batch: Inputs = batch) -> Tensor:
            kl = core_algos.kl_penalty(logprobs, batch.ref_logprobs, kind)  # type: ignore[arg-type]
            return torch.as_tensor(core_algos.agg_loss(kl, batch.mask, "token-mean"))

        assert_equal(ours, theirs, batch, f"{kind}, batch {seed}")


@pytest.mark.parametrize("level", ["token", "sequence"])
def test_truncated_sampler_weights_are_verls(level: str) -> None:
    mismatch = fspo.objectives.Mismatch(level=level, mode="truncate", high=2.0)
    for seed in range(BATCHES):
        batch = random_batch(seed)
        d = torch.where(batch.mask, batch.old_logprobs - batch.sampler_logprobs, 0)
        theirs, _ = compute_rollout_correction_weights(d, batch.mask, level, rollout_is_threshold=2.0)
        ours, _ = mismatch.weights(batch.old_logprobs, batch.sampler_logprobs, batch.mask)
        ours = ours if level == "token" else ours.unsqueeze(-1).expand_as(theirs)
        torch.testing.assert_close(ours[batch.mask], theirs[batch.mask])


ADVANTAGES: dict[str, tuple[str, dict[str, Any]]] = {
    "rloo": ("rloo", {}),
    "opo": ("opo", {}),
    "dr_grpo": ("grpo", {"norm_adv_by_std_in_grpo": False}),
    "grpo": ("grpo", {"epsilon": 1e-4}),
    "reinforce_pp": ("reinforce_plus_plus_baseline", {}),
}


@pytest.mark.parametrize("name", ADVANTAGES)
def test_advantages_are_verls(name: str) -> None:
    theirs_name, settings = ADVANTAGES[name]
    for seed in range(BATCHES):
        rng = np.random.default_rng(seed)
        groups = np.repeat(np.arange(5), rng.integers(2, 7, 5))
        rng.shuffle(groups)
        n = len(groups)
        rewards = torch.tensor(rng.choice([0.0, 0.5, 1.0], n))
        mask = torch.tensor(rng.random((n, 12)) < rng.random((n, 1)))
        mask[:, 3] = True
        token_rewards = torch.zeros(n, 12, dtype=torch.float64)
        token_rewards[:, 3] = rewards
        estimator = core_algos.get_adv_estimator_fn(theirs_name)
        expected, _ = estimator(
            token_level_rewards=token_rewards, response_mask=mask.double(), index=groups, **settings
        )
        ours = fspo.advantages.get(name)(rewards, torch.tensor(groups), lengths=mask.sum(-1))
        torch.testing.assert_close(ours, expected[:, 3], rtol=1e-6, atol=1e-9)


def test_where_the_peers_disagree_we_follow_trl_on_a_lone_answer() -> None:
    rewards, groups = torch.tensor([1.0, 0.0, 1.0]), torch.tensor([0, 1, 1])
    scores, _ = core_algos.get_adv_estimator_fn("grpo")(
        token_level_rewards=rewards.unsqueeze(-1).clone(), response_mask=torch.ones(3, 1), index=groups.numpy()
    )
    assert float(scores[0]) == pytest.approx(1.0)
    assert fspo.advantages.get("grpo")(rewards, groups)[0] == 0
