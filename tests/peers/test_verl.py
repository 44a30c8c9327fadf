"""Equal to verl 0.9.1: its registered policy losses, its advantage estimators, KL penalties and sampler weights.

SkyRL's DPPO and prime-rl's MaxRL cannot be installed here: their formulas are written out from the sources that
docs/objectives.md names.
"""

from __future__ import annotations

from collections.abc import Callable
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
from verl.trainer.ppo.rollout_corr_helper import compute_rollout_correction_weights, compute_rollout_rejection_mask
from verl.workers.config import ActorConfig
from verl.workers.config.actor import PolicyLossConfig

NO_DUAL = {"clip_ratio_c": 1e12}
GSPO = {"clip_ratio_low": 3e-4, "clip_ratio_high": 4e-4}
MEANS = "seq-mean-token-mean"

# ours, its parameters, verl's name, its configuration and its aggregation; the settings of its policy loss if any
SHARED: dict[str, tuple[Any, ...]] = {
    "ppo": ("ppo", {}, "vanilla", NO_DUAL, "token-mean"),
    "ppo with dual clip": ("ppo", {"dual_clip": 3.0}, "vanilla", {}, "token-mean"),
    "grpo": ("grpo", {}, "vanilla", NO_DUAL, MEANS),
    "dapo": ("dapo", {}, "vanilla", {**NO_DUAL, "clip_ratio_high": 0.28}, "token-mean"),
    "dr_grpo": ("dr_grpo", {"max_length": 32}, "vanilla", NO_DUAL, "seq-mean-token-sum-norm"),
    "gspo": ("gspo", {}, "gspo", GSPO, MEANS),
    "luspo": ("luspo", {}, "gspo", GSPO, "seq-mean-token-sum"),
    "sapo": ("sapo", {}, "sapo", {}, MEANS),
    "gmpo": ("gmpo", {}, "geo_mean", {"clip_ratio_low": 0.4, "clip_ratio_high": 0.4}, "token-mean"),
    "cispo": (
        "cispo", {"ratio_low": 0.8, "ratio_high": 1.28},
        "cispo", {"clip_ratio_low": 0.2, "clip_ratio_high": 0.28}, "token-mean",
    ),
    "dppo tv": ("dppo", {}, "dppo_tv", {"clip_ratio_c": 20.0}, "token-mean"),
    "dppo tv, narrow": (
        "dppo", {"delta_low": 0.02, "delta_high": 0.05, "ratio_high": 3.0},
        "dppo_tv", {"clip_ratio_low": 0.02, "clip_ratio_high": 0.05, "clip_ratio_c": 3.0}, "token-mean",
    ),
    "dppo kl": (
        "dppo", {"divergence": "kl", "delta_low": 0.05, "delta_high": 0.01},
        "dppo_kl", {"clip_ratio_low": 0.05, "clip_ratio_high": 0.01, "clip_ratio_c": 20.0}, "token-mean",
    ),
    "gpg": ("gpg", {}, "gpg", {}, "token-mean"),
    "clip_cov": ("clip_cov", {}, "clip_cov", {}, "token-mean"),
    "clip_cov, many": (
        "clip_cov", {"cov_share": 0.2, "cov_low": 0.1, "cov_high": 1.0, "clip_high": 0.28}, "clip_cov",
        {"clip_ratio_high": 0.28}, "token-mean", {"clip_cov_ratio": 0.2, "clip_cov_lb": 0.1, "clip_cov_ub": 1.0},
    ),
    "kl_cov": ("kl_cov", {}, "kl_cov", {}, "token-mean", {"ppo_kl_coef": 1.0}),
    "kl_cov, many": (
        "kl_cov", {"cov_share": 0.3, "kl_coef": 0.1},
        "kl_cov", {}, "token-mean", {"kl_cov_ratio": 0.3, "ppo_kl_coef": 0.1},
    ),
    "reinforce": ("reinforce", {}, core_algos.compute_policy_loss_reinforce, {}, "seq-mean-token-sum"),
}  # fmt: skip


def verl_loss(
    name: Any, settings: dict[str, Any], aggregation: str, policy: dict[str, Any]
) -> Callable[[Inputs, Tensor], Tensor]:
    """The loss of a batch and of log-probs, by verl's function, or the one of this name."""
    config = ActorConfig(
        strategy="fsdp", rollout_n=1, ppo_micro_batch_size_per_gpu=1, policy_loss=PolicyLossConfig(**policy), **settings
    )
    function = core_algos.get_policy_loss_fn(name) if isinstance(name, str) else name

    def loss(batch: Inputs, logprobs: Tensor) -> Tensor:
        torch.manual_seed(0)  # of its draw
        advantages = batch.advantages.unsqueeze(-1).expand_as(logprobs).clone()
        result: Tensor = function(batch.old_logprobs, logprobs, advantages, batch.mask, aggregation, config)[0]
        return result

    return loss


def below_one(batch: Inputs) -> Inputs:
    """The batch with probabilities of at most 0.99: no divergence is defined above 1."""
    over = batch.logprobs.clamp(min=-0.01) + 0.01
    batch.logprobs, batch.old_logprobs = batch.logprobs - over, batch.old_logprobs - over
    return batch


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("case", SHARED)
def test_equal_to_verl(case: str, dtype: torch.dtype) -> None:
    """Padded, and a part of the batches packed too."""
    name, parameters, theirs_name, settings, aggregation, *policy = SHARED[case]
    objective = fspo.objectives.get(name, **parameters)
    peer = verl_loss(theirs_name, settings, aggregation, *policy or [{}])
    for seed in range(BATCHES):
        batch = random_batch(seed, dtype, positions=32 if name == "dr_grpo" else None)
        batch = below_one(batch) if name == "dppo" else batch

        def ours(logprobs: Tensor, batch: Inputs = batch) -> Tensor:
            return objective(logprobs, *batch.arguments()[1:]).loss

        def packed(logprobs: Tensor, batch: Inputs = batch) -> Tensor:
            old, cu = batch.old_logprobs[batch.mask], [0, *batch.mask.sum(-1).cumsum(0).tolist()]
            return objective(logprobs[batch.mask], old, batch.advantages, cu_seqlens=cu).loss

        def theirs(logprobs: Tensor, batch: Inputs = batch) -> Tensor:
            return peer(batch, logprobs)

        assert_equal(ours, theirs, batch, f"{case}, batch {seed}")
        if seed < BATCHES / 4:
            assert_equal(packed, theirs, batch, f"{case}, packed batch {seed}")


@pytest.mark.parametrize("kind", ["tv", "kl"])
def test_dppo_has_the_gradient_of_skyrls_form(kind: Any) -> None:
    """SkyRL maximises M r A: another value, the same gradient while no ratio is truncated."""
    low, high = 0.05, 0.03
    objective = fspo.objectives.get("dppo", divergence=kind, delta_low=low, delta_high=high, ratio_high=1e6)
    for seed in range(BATCHES):
        batch = below_one(random_batch(seed))
        logprobs, old = batch.logprobs.clone().requires_grad_(), batch.old_logprobs
        A = batch.advantages.unsqueeze(-1)
        with torch.no_grad():
            p, q = logprobs.exp(), old.exp()
            kl = q * (old - logprobs) + (1 - q) * torch.log((1 - q + 1e-8) / (1 - p + 1e-8))
            rises, falls = (A > 0) & (p > q), (A < 0) & (p < q)
            moved = (p - q).abs() if kind == "tv" else kl
            kept = ~((rises & (moved > high)) | (falls & (moved > low))) & batch.mask
        loss = -(torch.exp(logprobs - old) * A * kept).sum() / batch.mask.sum()
        (expected,) = torch.autograd.grad(loss, logprobs)
        (gradient,) = torch.autograd.grad(objective(logprobs, old, batch.advantages, batch.mask).loss, logprobs)
        torch.testing.assert_close(gradient, expected, rtol=1e-9, atol=1e-12)


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


@pytest.mark.parametrize(
    ("level", "low", "high", "name"), [("geometric", 0.98, 1.04, "seq_mean_k1"), ("sequence", 0.8, 1.6, "seq_sum_k1")]
)
def test_masks_for_the_sampler_drop_what_verls_do(level: str, low: float, high: float, name: str) -> None:
    """verl's k1 is of the sampler over the trainer, so that its range is the inverse of ours."""
    mismatch, dropped = fspo.objectives.Mismatch(level=level, low=low, high=high), []
    for seed in range(BATCHES):
        batch = random_batch(seed)
        d = torch.where(batch.mask, batch.old_logprobs - batch.sampler_logprobs, 0)
        theirs, _ = compute_rollout_rejection_mask(d, batch.mask, name, f"{1 / high}_{1 / low}")
        _, outside = mismatch.weights(batch.old_logprobs, batch.sampler_logprobs, batch.mask)
        assert torch.equal(theirs.bool(), batch.mask & ~outside.unsqueeze(-1))
        dropped += outside.tolist()
    assert 0.05 < sum(dropped) / len(dropped) < 0.95


ADVANTAGES: dict[str, tuple[str, dict[str, Any]]] = {
    "rloo": ("rloo", {}),
    "opo": ("opo", {}),
    "dr_grpo": ("grpo", {"norm_adv_by_std_in_grpo": False}),
    "grpo": ("grpo", {"epsilon": 1e-4}),
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


def test_the_max_rl_advantage_is_prime_rls() -> None:
    for seed in range(BATCHES):
        rng = np.random.default_rng(seed)
        groups = rng.integers(0, 5, 24)
        rewards = torch.tensor(rng.choice([0.0, 0.0, 0.5, 1.0], 24))
        expected = torch.zeros_like(rewards)
        for group in range(5):
            of = rewards[torch.tensor(groups == group)]
            if len(of) and of.mean() > 0:
                expected[torch.tensor(groups == group)] = (of - of.mean()) / of.mean()
        torch.testing.assert_close(fspo.advantages.get("max_rl")(rewards, torch.tensor(groups)), expected)
