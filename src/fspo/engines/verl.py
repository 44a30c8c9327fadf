"""The objectives and advantages inside verl 0.9.1.

    actor_rollout_ref.actor.policy_loss._target_=fspo.engines.verl.PolicyLoss
    actor_rollout_ref.actor.policy_loss.loss_mode=fspo
    +actor_rollout_ref.actor.policy_loss.updates=4
    +actor_rollout_ref.actor.policy_loss.objective.c_low=0.05
    algorithm.adv_estimator=fspo.rloo

Importing this module registers them; verl does so in every process by the entry point `fspo` of the group
`verl.plugins`. The objectives of the FSPO family keep their names, the others are `fspo.NAME`: verl has a `gspo` and a
`rloo` of its own.

verl calls a loss once a micro-batch and rank, and gives it no process group. A rank knows how many rows an update has
for it, and counts them: the last ones come in the same micro-batch on all ranks, and with them the update is closed
(see `ledger`). Nothing depends on the optimiser, which verl does not step where a gradient is not finite.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from verl.trainer.ppo.core_algos import register_adv_est, register_policy_loss
from verl.workers.config import ActorConfig, PolicyLossConfig

from fspo import advantages, objectives
from fspo.objectives import Objective
from fspo.objectives.batch import masked
from fspo.settings import hint

NAMES = {name if name.startswith("fspo") else f"fspo.{name}": name for name in objectives.names()}
"""verl's names of the losses, and ours."""

THEIRS = {
    "kl": "actor.use_kl_loss", "entropy_coef": "actor.entropy_coeff", "mismatch": "algorithm.rollout_correction",
}  # fmt: skip
"""Options of an objective that verl has outside its policy loss."""

UNUSED = ("clip_ratio", "clip_ratio_low", "clip_ratio_high", "clip_ratio_c", "tau_pos", "tau_neg", "loss_scale_factor")
"""Settings of verl's own losses: an objective has its own, in `policy_loss.objective`."""


@dataclass
class PolicyLoss(PolicyLossConfig):
    """verl's `policy_loss` with the parameters of an objective; give it as `policy_loss._target_`."""

    _mutable_fields = PolicyLossConfig._mutable_fields | {"_actor"}

    loss_mode: str = "fspo"
    objective: dict[str, Any] = field(default_factory=dict)  # its parameters, where they are not the defaults
    updates: int = 0  # optimiser steps on a rollout: ppo_epochs * train_batch_size / ppo_mini_batch_size
    records: str | None = None  # folder of the records that `fspo report` reads
    start: int = 0  # the step of the checkpoint that verl resumes from

    def __post_init__(self) -> None:
        self._actor: _Actor | None = None
        self.build()
        if self.updates < 1:
            raise ValueError(
                f"policy_loss.updates = {self.updates} must be the optimiser steps on a rollout: "
                "ppo_epochs * train_batch_size / ppo_mini_batch_size"
            )
        if self.start and self.records is None:
            raise ValueError(f"policy_loss.start = {self.start} needs policy_loss.records, where its state was kept")

    def build(self) -> Objective:
        """A new objective with these parameters."""
        if self.loss_mode not in NAMES:
            raise ValueError(
                f"policy_loss.loss_mode = {self.loss_mode!r} is none of fspo's{hint(self.loss_mode, NAMES)}"
            )
        for name in THEIRS.keys() & self.objective:
            raise ValueError(f"policy_loss.objective.{name} is verl's own business: set {THEIRS[name]} instead")
        return objectives.get(NAMES[self.loss_mode], **self.objective)

    def actor(self, config: ActorConfig) -> _Actor:
        """The one actor that trains with these parameters in this process."""
        if self._actor is None:
            self._actor = _Actor(self, config)
        return self._actor


class _Actor:
    """The updates of an actor: which rows belong to which, and what came of them."""

    def __init__(self, policy: PolicyLoss, config: ActorConfig) -> None:
        # Not before they are needed: verl imports this module everywhere.
        from fspo.engines.ledger import Ledger
        from fspo.local.records import read_lines

        _check(policy, config)
        world = torch.distributed.get_world_size() if torch.distributed.is_initialized() else 1
        folder = None if policy.records is None else Path(policy.records)
        if folder is not None and not policy.start and read_lines(folder / "metrics.jsonl"):
            raise ValueError(f"{folder} already holds a run: choose another policy_loss.records, or give start")
        copies = world // config.global_batch_info.get("dp_size", world)
        self.ledger = Ledger(policy.build(), policy.updates, folder, copies)
        self.rows = 0  # of this rank, since the last update was closed
        if folder is not None and policy.start:
            self.ledger.load_state_dict(_state(folder, policy.start))
        self.ledger.describe({"engine": "verl", "objective": {"name": NAMES[policy.loss_mode], **policy.objective}})

    def loss(
        self, logprobs: Tensor, old: Tensor, A: Tensor, mask: Tensor, info: dict[str, Any], weights: Tensor | None
    ) -> tuple[Tensor, dict[str, float]]:
        """The loss of a micro-batch; metrics come with the last one of an update."""
        ranks = info.get("dp_size", 1)
        sequences = info.get("global_batch_size") or len(mask)
        tokens = info.get("batch_num_tokens") or int(mask.sum())
        out = self.ledger.loss(
            logprobs, old, A, mask, sequences=sequences, tokens=tokens, sampler_weights=weights
        )  # fmt: skip
        loss = out.loss * ranks  # verl averages gradients over the ranks, and the parts of a batch are to be added
        if not torch.is_grad_enabled():
            return loss, {}
        self.rows += len(mask)
        if self.rows < sequences // ranks:
            return loss, {}
        if self.rows > sequences // ranks:
            raise RuntimeError(
                f"verl gave this rank {self.rows} rows of an update whose global_batch_size is {sequences} on "
                f"{ranks} ranks: an update cannot be told from the next"
            )
        self.rows = 0
        metrics = self.ledger.close()
        if self.ledger.update == 0:
            self.ledger.keep_state()
        rates = {f"clip_by_length/{k}": row["clip_rate"] for k, row in enumerate(metrics.pop("clip_by_length", []), 1)}
        numbers = {key: float(value) for key, value in (metrics | rates).items() if isinstance(value, int | float)}
        return loss, {f"actor/fspo/{key}": value for key, value in numbers.items() if math.isfinite(value)}


def _check(policy: PolicyLoss, config: ActorConfig) -> None:
    """Refuse settings of the actor that would do nothing, or that cannot work."""
    standard = {name: spec.default for name, spec in ActorConfig.__dataclass_fields__.items()}
    unused = UNUSED if config.use_kl_loss or config.entropy_coeff else (*UNUSED, "loss_agg_mode")
    for name in unused:
        if (value := config.get(name)) != standard[name]:
            raise ValueError(
                f"actor.{name} = {value!r} does nothing to {policy.loss_mode}: leave it at {standard[name]!r} "
                "and give the parameters of the objective in policy_loss.objective"
            )
    if policy.updates % config.ppo_epochs:
        raise ValueError(f"policy_loss.updates = {policy.updates} is no multiple of ppo_epochs = {config.ppo_epochs}")
    stages = getattr(config.engine, "pipeline_model_parallel_size", 1)
    if stages > 1:
        raise ValueError(f"pipeline_model_parallel_size = {stages}: every rank must see the loss, so it must be 1")


def _state(folder: Path, step: int) -> dict[str, Any]:
    """What the ledger knew after this step; the later line counts."""
    from fspo.local.records import read_lines

    states = {row["step"]: row for row in read_lines(folder / "ledger.jsonl")}
    if step + 1 not in states:
        raise ValueError(f"policy_loss.start = {step}, and {folder} has no state of the ledger after that step")
    return states[step + 1]


def policy_loss(
    old_log_prob: Tensor,
    log_prob: Tensor,
    advantages: Tensor,
    response_mask: Tensor,
    loss_agg_mode: str = "token-mean",
    config: Any = None,
    rollout_is_weights: Tensor | None = None,
) -> tuple[Tensor, dict[str, float]]:
    """verl's policy loss of every name in `NAMES`: all of them (B, T), the mask bool."""
    policy = getattr(config, "policy_loss", None)
    if not isinstance(policy, PolicyLoss):
        raise ValueError(
            "a loss of fspo needs its parameters: set "
            "actor_rollout_ref.actor.policy_loss._target_=fspo.engines.verl.PolicyLoss"
        )
    mask = response_mask.bool()
    A = masked(advantages, mask)
    rows = torch.where(mask, A, -torch.inf).amax(-1)
    if bool((masked(rows.unsqueeze(-1), mask) == A).all()):  # the same for all tokens, as whole responses need it
        A = rows
    return policy.actor(config).loss(log_prob, old_log_prob, A, mask, config.global_batch_info, rollout_is_weights)


def _estimator(name: str) -> Any:
    estimate = advantages.get(name)

    def advantage(
        token_level_rewards: Tensor, response_mask: Tensor, config: Any = None, index: Any = None, **_: Any
    ) -> tuple[Tensor, Tensor]:
        """verl's advantages and returns, (B, T); rows of padding take no part in a group."""
        if index is None:
            raise ValueError(f"fspo.{name} compares the answers to a prompt, and this batch has no uid")
        lengths = response_mask.sum(-1)
        rewards = torch.where(lengths > 0, token_level_rewards.sum(-1), torch.nan)
        groups = np.unique(np.asarray(index), return_inverse=True)[1]
        found = estimate(rewards, torch.from_numpy(groups).to(rewards.device), lengths=lengths.clamp(min=1))
        spread = found.unsqueeze(-1) * response_mask
        return spread, spread

    return advantage


for _name in NAMES:
    register_policy_loss(_name)(policy_loss)
for _name in advantages.names():
    register_adv_est(f"fspo.{_name}")(_estimator(_name))
