"""Equal to TRL 1.16: value and gradient of every shared objective, by calling TRL's own loss."""

from __future__ import annotations

from collections import defaultdict
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

import fspo
from helpers.batches import BATCHES, Inputs, assert_equal, random_batch

pytest.importorskip("trl")
from trl import GRPOConfig, GRPOTrainer, RLOOTrainer
from trl.experimental.gmpo import GMPOTrainer


class OneProcess:
    """An accelerator of one process: gathering and reducing give back what they get."""

    num_processes = 1

    def gather(self, value: Tensor) -> Tensor:
        return value

    def reduce(self, value: Tensor, reduction: str = "sum") -> Tensor:
        return value


def trl_loss(trainer: Any, batch: Inputs, logprobs: Tensor, **settings: Any) -> Tensor:
    """`trainer._compute_loss` on an object that has just the fields it reads; log-probs stand in for the model."""
    defaults = vars(GRPOConfig(output_dir="unused", use_cpu=True, bf16=False, report_to="none"))
    arguments = SimpleNamespace(**(defaults | {"steps_per_generation": 1} | settings))
    epsilon = settings.get("epsilon", 0.2)
    host = SimpleNamespace(
        args=arguments, accelerator=OneProcess(), model=SimpleNamespace(training=True),
        loss_type=settings.get("loss_type", "grpo"),
        importance_sampling_level=settings.get("importance_sampling_level", "token"), epsilon_low=epsilon,
        epsilon_high=settings.get("epsilon_high", epsilon), beta=settings.get("beta", 0.0),
        max_completion_length=settings.get("max_completion_length", 256), use_vllm="vllm_weights" in settings,
        vllm_importance_sampling_correction=True, entropy_coef=settings.get("entropy_coef", 0.0),
        _entropy_bonus_enabled="entropy_coef" in settings, use_adaptive_entropy=False, top_entropy_quantile=1.0,
        off_policy_mask_threshold=None, aux_loss_enabled=False, current_gradient_accumulation_steps=1,
        get_gamma_weights=GRPOTrainer.get_gamma_weights,
        _get_per_token_logps_and_entropies=lambda *_, **__: (logprobs, batch.entropy, None),
        _metrics={"train": defaultdict(list)},
    )  # fmt: skip
    host.accelerator.sync_gradients = True
    ids = torch.zeros_like(batch.mask, dtype=torch.long)
    inputs = {
        "prompt_ids": ids[:, :1], "prompt_mask": ids[:, :1], "completion_ids": ids,
        "completion_mask": batch.mask.long(), "advantages": batch.advantages, "old_per_token_logps": batch.old_logprobs,
        "old_logps": (batch.old_logprobs * batch.mask).sum(1), "ref_per_token_logps": batch.ref_logprobs,
        "num_items_in_batch": batch.mask.sum(), "importance_sampling_ratio": settings.get("vllm_weights"),
    }  # fmt: skip
    loss: Tensor = trainer._compute_loss(host, None, inputs)
    return loss


SEQUENCE = {"importance_sampling_level": "sequence", "epsilon": 3e-4, "epsilon_high": 4e-4}
SHARED: dict[str, tuple[str, dict[str, Any], Any, dict[str, Any]]] = {
    "grpo": ("grpo", {}, GRPOTrainer, {"loss_type": "grpo"}),
    "grpo with delta": ("grpo", {"dual_clip": 1.7}, GRPOTrainer, {"loss_type": "grpo", "delta": 1.7}),
    "dapo": ("dapo", {}, GRPOTrainer, {"loss_type": "dapo", "epsilon_high": 0.28}),
    "bnpo": ("bnpo", {}, GRPOTrainer, {"loss_type": "bnpo"}),
    "dr_grpo": ("dr_grpo", {"max_length": 256}, GRPOTrainer, {"loss_type": "dr_grpo"}),
    "cispo": ("cispo", {}, GRPOTrainer, {"loss_type": "cispo", "epsilon_high": 5.0}),
    "sapo": ("sapo", {}, GRPOTrainer, {"loss_type": "sapo"}),
    "vespo": ("vespo", {}, GRPOTrainer, {"loss_type": "vespo"}),
    "gspo": ("gspo", {}, GRPOTrainer, {"loss_type": "grpo", **SEQUENCE}),
    "luspo": ("luspo", {}, GRPOTrainer, {"loss_type": "luspo", **SEQUENCE}),
    "gmpo": ("gmpo", {}, GMPOTrainer, {"epsilon": 0.4}),
    "rloo": ("rloo", {}, RLOOTrainer, {}),
    "grpo with kl": (
        "grpo", {"kl": {"coef": 0.1, "importance": True}}, GRPOTrainer, {"loss_type": "grpo", "beta": 0.1},
    ),
    "dapo with plain kl": (
        "dapo", {"kl": {"coef": 0.1}}, GRPOTrainer,
        {"loss_type": "dapo", "epsilon_high": 0.28, "beta": 0.1, "use_bias_correction_kl": False},
    ),
    "gmpo with kl": ("gmpo", {"kl": {"coef": 0.1}}, GMPOTrainer, {"epsilon": 0.4, "beta": 0.1}),
}  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("case", SHARED)
def test_equal_to_trl(case: str, dtype: torch.dtype) -> None:
    name, parameters, trainer, settings = SHARED[case]
    objective = fspo.objectives.get(name, **parameters)
    acted = 0
    for seed in range(BATCHES):
        batch = random_batch(seed, dtype)
        out = objective(*batch.arguments(), ref_logprobs=batch.ref_logprobs)
        acted += out.metrics["clip_rate"] > 0

        def ours(logprobs: Tensor, batch: Inputs = batch) -> Tensor:
            return objective(logprobs, *batch.arguments()[1:], ref_logprobs=batch.ref_logprobs).loss

        def theirs(logprobs: Tensor, batch: Inputs = batch) -> Tensor:
            return trl_loss(trainer, batch, logprobs, **settings)

        assert_equal(ours, theirs, batch, f"{case}, batch {seed}")
    assert acted > BATCHES / 4, "the batches must reach the range where the objective clips"


@pytest.mark.parametrize("level", ["token", "sequence"])
@pytest.mark.parametrize("name", ["grpo", "dapo", "gspo"])
def test_mismatch_weights_enter_as_in_trl(name: str, level: str) -> None:
    mismatch = fspo.objectives.Mismatch(level=level, mode="truncate", high=2.0)
    objective = fspo.objectives.get(name, mismatch=mismatch)
    settings: dict[str, Any] = dict(SHARED[name][3])
    for seed in range(BATCHES):
        batch = random_batch(seed)
        weights, _ = mismatch.weights(batch.old_logprobs, batch.sampler_logprobs, batch.mask)
        d = ((batch.old_logprobs - batch.sampler_logprobs) * batch.mask).sum(-1) if level == "sequence" else None
        if d is not None:
            torch.testing.assert_close(weights, d.exp().clamp(max=2.0))
        settings["vllm_weights"] = weights if level == "token" else weights.unsqueeze(-1)

        def ours(logprobs: Tensor, batch: Inputs = batch) -> Tensor:
            return objective(logprobs, *batch.arguments()[1:], sampler_logprobs=batch.sampler_logprobs).loss

        def theirs(logprobs: Tensor, batch: Inputs = batch) -> Tensor:
            return trl_loss(GRPOTrainer, batch, logprobs, **settings)

        assert_equal(ours, theirs, batch, f"{name}, {level}, batch {seed}")


def test_entropy_bonus_is_trls() -> None:
    batch = random_batch(0)
    objective = fspo.objectives.get("grpo", entropy_coef=0.3)
    ours = objective(*batch.arguments(), entropy=batch.entropy).loss
    theirs = trl_loss(GRPOTrainer, batch, batch.logprobs, loss_type="grpo", entropy_coef=0.3)
    torch.testing.assert_close(ours, theirs)
    assert float(ours) != float(fspo.objectives.get("grpo")(*batch.arguments()).loss)


def test_the_off_policy_mask_is_trls() -> None:
    """DeepSeek-V3.2's, as TRL has it: value and gradient of the masked loss."""
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
