"""The objectives and advantages inside verl 0.9.1; docs/engines-verl.md has the settings of a job.

Importing this module registers the loss, and every advantage as `fspo.NAME`. `loss_mode=fspo.measure:NAME` is the loss
that verl has under NAME, unchanged, with what it clips in the run folder `policy_loss.records`.

verl calls a loss once per micro-batch and rank, without a process group. A rank knows the number of its rows per update
and counts them; the last rows come in the same micro-batch on all ranks and end the update (see `updates.py`). Nothing
depends on the optimiser, whose step verl skips where a gradient is not finite.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from verl.trainer.ppo.core_algos import POLICY_LOSS_REGISTRY, get_policy_loss_fn, register_adv_est, register_policy_loss
from verl.workers.config import ActorConfig, PolicyLossConfig

from fspo import advantages, objectives
from fspo.engines.adapters import fixed
from fspo.engines.verl import last_step, refuse_own_options
from fspo.objectives import Objective
from fspo.objectives.batch import masked

MEASURED = "fspo.measure:"
"""Prefix of `loss_mode` for a loss of verl's own, with records."""

UNUSED = ("clip_ratio", "clip_ratio_low", "clip_ratio_high", "clip_ratio_c", "tau_pos", "tau_neg", "loss_scale_factor")
"""Settings of verl's own losses: the parameters of an objective are in `policy_loss.objective`."""

EVERY_RANK: dict[str, Any] = {
    "pipeline_model_parallel_size": 1, "pipeline_parallel_size": 1, "pp_size": 1, "dynamic_context_parallel": False,
}  # fmt: skip
"""verl's settings under which some ranks see no loss or share rows, with their safe values."""


@dataclass
class PolicyLoss(PolicyLossConfig):
    """verl's `policy_loss` with the parameters of an objective; give it as `policy_loss._target_`."""

    _mutable_fields = PolicyLossConfig._mutable_fields | {"_actor"}

    loss_mode: str = "fspo"
    objective: dict[str, Any] = field(default_factory=dict)  # its parameters, and its `name`
    updates: int = 0  # optimiser steps per rollout: ppo_epochs * train_batch_size / ppo_mini_batch_size
    records: str | None = None  # the run folder that is written, for `fspo report`
    checkpoints: str | None = None  # where verl resumes from: trainer.default_local_dir, or a global_step_N
    stateless: bool = False  # nothing is learnt, exchanged between ranks, or recorded

    def __post_init__(self) -> None:
        self._actor: _Actor | None = None
        if self.measured:
            register_policy_loss(self.loss_mode)(policy_loss)  # it may have been registered after this module
            get_policy_loss_fn(self.measured)
            if self.objective or self.stateless or self.records is None:
                raise ValueError(
                    f"{self.loss_mode} needs policy_loss.records, the run folder; it has no objective and no stateless"
                )
        else:
            objective = self.build()
            if self.stateless:
                if self.records is not None:
                    raise ValueError("policy_loss.stateless records nothing: leave policy_loss.records out")
                fixed(objective, gives=("sampler_logprobs",))
        if self.updates < 1 and not self.stateless:
            raise ValueError(
                f"policy_loss.updates = {self.updates} must be the optimiser steps per rollout: "
                "ppo_epochs * train_batch_size / ppo_mini_batch_size"
            )
        if self.checkpoints is not None and self.records is None:
            raise ValueError("policy_loss.checkpoints needs policy_loss.records, the folder of the state at each step")

    @property
    def measured(self) -> str:
        """verl's name of the loss that is recorded; empty for a loss of this package."""
        return self.loss_mode.removeprefix(MEASURED) if self.loss_mode.startswith(MEASURED) else ""

    def build(self) -> Objective:
        """A new objective with these parameters."""
        if self.loss_mode != "fspo":
            raise ValueError(
                f"policy_loss.loss_mode = {self.loss_mode!r} is not a loss of fspo: set loss_mode=fspo, and give the "
                "name of the objective as policy_loss.objective.name"
            )
        refuse_own_options(self.objective)
        return objectives.get(**{"name": objectives.DEFAULT} | self.objective)

    def actor(self, config: ActorConfig) -> _Actor:
        """The one actor that trains with these parameters in this process."""
        if self._actor is None:
            self._actor = _Actor(self, config)
        return self._actor


class _Actor:
    """Assigns the micro-batches of an actor to updates."""

    def __init__(self, policy: PolicyLoss, config: ActorConfig) -> None:
        # Imported only where a loss is taken: verl imports this module in every process.
        from fspo.engines.updates import UpdateTracker
        from fspo.runs import Metrics, read_lines
        from fspo.runs.folder import last_state, read_config
        from fspo.runs.recorder import Recorder, loggable

        _check(policy, config)
        world = torch.distributed.get_world_size() if torch.distributed.is_initialized() else 1
        folder = None if policy.records is None else Path(policy.records)
        start = 0 if policy.checkpoints is None else last_step(Path(policy.checkpoints))
        written = {} if folder is None else read_config(folder / "config.yaml", [])
        same_job = policy.checkpoints is not None and written.get("checkpoints") == policy.checkpoints
        if folder is not None and not start and not same_job and read_lines(folder, Metrics):
            raise ValueError(
                f"{folder} already holds a run: choose another policy_loss.records, or, to go on with it, give its "
                "policy_loss.checkpoints"
            )
        copies = world // config.global_batch_info.get("dp_size", world)
        known = {"checkpoints": policy.checkpoints} if policy.checkpoints else {}
        self.stateless, self.loggable = policy.stateless, loggable
        self.rows = 0  # of this rank, since the last update was closed
        if policy.measured:
            self.recorder = Recorder(folder, updates=policy.updates, start=start, copies=copies)
            self.recorder.describe({"verl": {"loss_mode": policy.measured}, **known}, engine="verl")
            return
        objective = policy.build()
        self.tracker = self.recorder = UpdateTracker(objective, max(1, policy.updates), folder, copies)
        if folder is not None and start:
            state = last_state(folder, start)
            if state is None:
                raise ValueError(
                    f"verl resumes from step {start} by {policy.checkpoints}, but {folder} has no state after that step"
                )
            self.tracker.restore(state)
        if folder is not None and not written:
            given = objective.model_dump(mode="json", exclude_unset=True)
            name = policy.objective.get("name", objectives.DEFAULT)
            self.tracker.describe({"objective": {"name": name, **given}, **known}, engine="verl")

    def loss(
        self, logprobs: Tensor, old: Tensor, A: Tensor, mask: Tensor, info: dict[str, Any], weights: Tensor | None
    ) -> tuple[Tensor, dict[str, float]]:
        """The loss of a micro-batch; the last one of an update also returns its metrics."""
        ranks = info.get("dp_size", 1)
        sequences = info.get("global_batch_size") or len(mask)
        tokens = info.get("batch_num_tokens") or int(mask.sum())
        options = _sampler(self.tracker.objective, old, mask, weights)
        options["record"] = not self.stateless
        out = self.tracker.loss(logprobs, old, A, mask, sequences=sequences, tokens=tokens, **options)
        loss = out.loss * ranks  # verl averages gradients over ranks, and the parts of a batch have to be added
        if not torch.is_grad_enabled():
            return loss, {}
        if self.stateless:  # of this micro-batch; verl wants the same names from all, and takes their mean
            return loss, {"actor/fspo/clip_rate": out.metrics.get("clip_rate", 0.0)}
        if not self.ends(mask, info):
            return loss, {}
        metrics = self.tracker.end_update()
        if self.tracker.update == 0 and self.tracker.writer is not None:
            with self.tracker.writing():
                self.tracker.writer.append(self.tracker.state())  # verl's checkpoints do not hold it
        return loss, {f"actor/fspo/{name}": value for name, value in self.loggable(metrics).items()}

    def ends(self, mask: Tensor, info: dict[str, Any]) -> bool:
        """Count the rows of a micro-batch, and say whether they are the last ones of an update."""
        ranks = info.get("dp_size", 1)
        sequences = info.get("global_batch_size") or len(mask)
        self.rows += len(mask)
        if self.rows > sequences // ranks:
            raise RuntimeError(
                f"verl gave this rank {self.rows} rows of an update whose global_batch_size is {sequences} on "
                f"{ranks} ranks: cannot tell where an update ends"
            )
        self.rows %= sequences // ranks
        return self.rows == 0


def _sampler(objective: Objective, old: Tensor, mask: Tensor, weights: Tensor | None) -> dict[str, Any]:
    """The sampler's inputs to the objective: verl's weights, or for `mismatch` the log-probs rebuilt from them.

    verl's `rollout_is` has computed the weights old / sampler; for an objective's own `mismatch` verl must not have
    cut them. The weight of a whole answer is spread over its tokens, whose sum the rule takes.
    """
    rule = objective.mismatch
    if rule is None:
        return {"sampler_weights": weights}
    if weights is None:
        level = "sequence" if rule.level == "sequence" else "token"
        raise ValueError(
            f"policy_loss.objective.mismatch needs verl's weights per {level}: set "
            f"algorithm.rollout_correction.rollout_is={level}, algorithm.rollout_correction.rollout_is_threshold="
            "1e9 and actor_rollout_ref.rollout.calculate_log_probs=true"
        )
    d = masked(torch.log(torch.where(mask, weights, 1.0)), mask)
    if rule.level == "sequence":
        d = masked((d.sum(-1) / mask.sum(-1).clamp(min=1).square()).unsqueeze(-1), mask)
    return {"sampler_logprobs": old - d}


def _check(policy: PolicyLoss, config: ActorConfig) -> None:
    """Refuse settings of the actor that have no effect, or that cannot work."""
    if policy.updates % config.ppo_epochs:
        raise ValueError(
            f"policy_loss.updates = {policy.updates} must be a multiple of ppo_epochs = {config.ppo_epochs}"
        )
    for name, plain in EVERY_RANK.items():
        if not policy.stateless and (value := getattr(config.engine, name, plain)) != plain:
            raise ValueError(
                f"{name} = {value} is possible with policy_loss.stateless=true only (a fixed band, no records): "
                "otherwise every rank must see the loss of its own share of the rows"
            )
    if policy.measured:
        return
    standard = {name: spec.default for name, spec in ActorConfig.__dataclass_fields__.items()}
    unused = UNUSED if config.use_kl_loss or config.entropy_coeff else (*UNUSED, "loss_agg_mode")
    for name in unused:
        if (value := config.get(name)) != standard[name]:
            raise ValueError(
                f"actor.{name} = {value!r} has no effect on {policy.loss_mode}: leave it at {standard[name]!r} "
                "and give the parameters of the objective in policy_loss.objective"
            )


def policy_loss(
    old_log_prob: Tensor,
    log_prob: Tensor,
    advantages: Tensor,
    response_mask: Tensor,
    loss_agg_mode: str = "token-mean",
    config: Any = None,
    rollout_is_weights: Tensor | None = None,
) -> tuple[Tensor, dict[str, Any]]:
    """verl's policy loss `fspo`, or a loss of verl's own that is recorded; all tensors are (B, T).

    The latter keeps its value, metrics and gradient. It is differentiated down to the log-probs: it clipped the tokens
    that have an advantage and no gradient.
    """
    policy, mask = _parameters(config), response_mask.bool()
    if not policy.measured:
        A = masked(advantages, mask)
        rows = torch.where(mask, A, -torch.inf).amax(-1)
        if bool((masked(rows.unsqueeze(-1), mask) == A).all()):  # one advantage per response
            A = rows
        return policy.actor(config).loss(log_prob, old_log_prob, A, mask, config.global_batch_info, rollout_is_weights)
    loss, metrics = get_policy_loss_fn(policy.measured)(
        old_log_prob=old_log_prob, log_prob=log_prob, advantages=advantages, response_mask=response_mask,
        loss_agg_mode=loss_agg_mode, config=config, rollout_is_weights=rollout_is_weights,
    )  # fmt: skip
    if not torch.is_grad_enabled():
        return loss, metrics
    (gradient,) = torch.autograd.grad(loss, log_prob, retain_graph=True, allow_unused=True)
    accepted = torch.ones_like(mask) if gradient is None else (gradient != 0) | (advantages == 0)
    actor = policy.actor(config)
    last = actor.ends(mask, config.global_batch_info)
    ours = actor.recorder.record(log_prob, old_log_prob, advantages, mask, accepted=accepted, last=last)
    return loss, metrics | {f"actor/fspo/{name}": value for name, value in ours.items()}


def _parameters(config: Any) -> PolicyLoss:
    policy = getattr(config, "policy_loss", None)
    if not isinstance(policy, PolicyLoss):
        raise ValueError(
            "a loss of fspo needs its parameters: set "
            "actor_rollout_ref.actor.policy_loss._target_=fspo.engines.verl.PolicyLoss"
        )
    return policy


def _estimator(name: str) -> Any:
    estimate = advantages.get(name)

    def advantage(
        token_level_rewards: Tensor, response_mask: Tensor, config: Any = None, index: Any = None, **_: Any
    ) -> tuple[Tensor, Tensor]:
        """verl's advantages and returns, (B, T); rows of padding belong to no group."""
        if index is None:
            raise ValueError(f"fspo.{name} compares the answers to a prompt, but this batch has no uid")
        lengths = response_mask.sum(-1)
        rewards = torch.where(lengths > 0, token_level_rewards.sum(-1), torch.nan)
        groups = np.unique(np.asarray(index), return_inverse=True)[1]
        per_answer = estimate(rewards, torch.from_numpy(groups).to(rewards.device), lengths=lengths.clamp(min=1))
        spread = per_answer.unsqueeze(-1) * response_mask
        return spread, spread

    return advantage


for _name in list(POLICY_LOSS_REGISTRY):
    register_policy_loss(f"{MEASURED}{_name}")(policy_loss)
register_policy_loss("fspo")(policy_loss)
for _name in advantages.names():
    register_adv_est(f"fspo.{_name}")(_estimator(_name))
