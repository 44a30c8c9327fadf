"""DPPO, GPG, Clip-Cov, KL-Cov, the off-policy mask and the MaxRL advantage against the peers that have them.

verl 0.9.1 and TRL 1.16.0 are their own code. SkyRL's DPPO and prime-rl's MaxRL cannot be installed here: their formulas
are written out from the sources that docs/objectives.md names.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import fspo
from helpers.batches import BATCHES, Inputs, assert_equal, random_batch

pytest.importorskip("verl")
from verl.trainer.ppo import core_algos
from verl.workers.config import ActorConfig
from verl.workers.config.actor import PolicyLossConfig

# ours, its parameters, verl's name, its configuration, the settings of its policy loss
SHARED: dict[str, tuple[str, dict[str, Any], str, dict[str, Any], dict[str, Any]]] = {
    "dppo tv": ("dppo", {}, "dppo_tv", {"clip_ratio_c": 20.0}, {}),
    "dppo tv, narrow": (
        "dppo", {"delta_low": 0.02, "delta_high": 0.05, "ratio_high": 3.0},
        "dppo_tv", {"clip_ratio_low": 0.02, "clip_ratio_high": 0.05, "clip_ratio_c": 3.0}, {},
    ),
    "dppo kl": (
        "dppo", {"divergence": "kl", "delta_low": 0.05, "delta_high": 0.01},
        "dppo_kl", {"clip_ratio_low": 0.05, "clip_ratio_high": 0.01, "clip_ratio_c": 20.0}, {},
    ),
    "gpg": ("gpg", {}, "gpg", {}, {}),
    "clip_cov": ("clip_cov", {}, "clip_cov", {}, {}),
    "clip_cov, many": (
        "clip_cov", {"cov_share": 0.2, "cov_low": 0.1, "cov_high": 1.0, "clip_high": 0.28},
        "clip_cov", {"clip_ratio_high": 0.28}, {"clip_cov_ratio": 0.2, "clip_cov_lb": 0.1, "clip_cov_ub": 1.0},
    ),
    "kl_cov": ("kl_cov", {}, "kl_cov", {}, {"ppo_kl_coef": 1.0}),
    "kl_cov, many": (
        "kl_cov", {"cov_share": 0.3, "kl_coef": 0.1}, "kl_cov", {}, {"kl_cov_ratio": 0.3, "ppo_kl_coef": 0.1},
    ),
}  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("case", SHARED)
def test_equal_to_verl(case: str, dtype: torch.dtype) -> None:
    """Padded and packed; of the batches with probabilities above 1, no divergence is defined."""
    name, parameters, theirs_name, settings, loss_settings = SHARED[case]
    objective = fspo.objectives.get(name, **parameters)
    config = ActorConfig(
        strategy="fsdp", rollout_n=1, ppo_micro_batch_size_per_gpu=1, policy_loss=PolicyLossConfig(**loss_settings),
        **settings,
    )  # fmt: skip
    for seed in range(BATCHES):
        batch = random_batch(seed, dtype)
        over = batch.logprobs.clamp(min=-0.01) + 0.01
        batch.logprobs, batch.old_logprobs = batch.logprobs - over, batch.old_logprobs - over

        def ours(logprobs: Tensor, batch: Inputs = batch) -> Tensor:
            return objective(logprobs, *batch.arguments()[1:]).loss

        def packed(logprobs: Tensor, batch: Inputs = batch) -> Tensor:
            cu = torch.cat([torch.zeros(1, dtype=torch.long), batch.mask.sum(-1).cumsum(0)])
            return objective(
                logprobs[batch.mask], batch.old_logprobs[batch.mask], batch.advantages, cu_seqlens=cu
            ).loss  # fmt: skip

        def theirs(logprobs: Tensor, batch: Inputs = batch) -> Tensor:
            torch.manual_seed(0)  # of verl's draw
            loss: Tensor = core_algos.get_policy_loss_fn(theirs_name)(
                old_log_prob=batch.old_logprobs, log_prob=logprobs,
                advantages=batch.advantages.unsqueeze(-1).expand_as(logprobs).clone(), response_mask=batch.mask,
                loss_agg_mode="token-mean", config=config,
            )[0]  # fmt: skip
            return loss

        assert_equal(ours, theirs, batch, f"{case}, batch {seed}")
        if seed < BATCHES / 4:
            assert_equal(packed, theirs, batch, f"{case}, packed batch {seed}")


@pytest.mark.parametrize("kind", ["tv", "kl"])
def test_dppo_has_the_gradient_of_skyrls_form(kind: Any) -> None:
    """SkyRL maximises M r A: another value, the same gradient while no ratio is truncated."""
    low, high = 0.05, 0.03
    objective = fspo.objectives.get("dppo", divergence=kind, delta_low=low, delta_high=high, ratio_high=1e6)
    for seed in range(BATCHES):
        batch = random_batch(seed)
        over = batch.logprobs.clamp(min=-0.01) + 0.01
        batch.logprobs, old = batch.logprobs - over, batch.old_logprobs - over
        logprobs = batch.logprobs.clone().requires_grad_()
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


def test_the_off_policy_mask_is_trls() -> None:
    """DeepSeek-V3.2's, as TRL has it: value and gradient of the masked loss."""
    from trl import GRPOTrainer

    objective, dropped = fspo.objectives.get("grpo", mismatch={"delta": 0.05}), 0
    for seed in range(BATCHES):
        batch = random_batch(seed)
        batch.sampler_logprobs[0, 0] = torch.nan  # a token that the engine could not score
        weights = GRPOTrainer.get_off_policy_mask(
            batch.advantages.unsqueeze(-1), batch.logprobs, batch.sampler_logprobs, batch.mask.double(), 0.05
        )
        dropped += int((weights == 0).sum())

        def ours(logprobs: Tensor, batch: Inputs = batch) -> Tensor:
            return objective(logprobs, *batch.arguments()[1:], sampler_logprobs=batch.sampler_logprobs).loss

        def theirs(logprobs: Tensor, batch: Inputs = batch, weights: Tensor = weights) -> Tensor:
            plain = fspo.objectives.get("grpo")
            return plain(logprobs, *batch.arguments()[1:], sampler_weights=weights.expand_as(logprobs)).loss

        assert_equal(ours, theirs, batch, f"batch {seed}")
    assert dropped > BATCHES / 2


def test_the_off_policy_mask_is_one_rule() -> None:
    for parameters in ({"c": 0.1}, {"level": "token"}, {"mode": "truncate"}):
        with pytest.raises(ValueError, match=r"two rules|the rule of delta is about|use mode='mask'"):
            fspo.objectives.Mismatch(delta=0.1, **parameters)
    batch = random_batch(0)
    with pytest.raises(ValueError, match="give batch"):
        fspo.objectives.Mismatch(delta=0.1).weights(batch.old_logprobs, batch.sampler_logprobs, batch.mask)


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
