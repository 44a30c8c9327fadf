"""Updates through verl's registry of losses on one rank of several: what verl's actor does, without a model.

    torchrun --nproc_per_node 2 -m helpers.verl_ranks FOLDER

writes the results of every rank to FOLDER/RANK.json.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from verl.trainer.ppo.core_algos import get_policy_loss_fn
from verl.workers.config import ActorConfig, PolicyLossConfig

from fspo import objectives
from fspo.engines.verl.plugin import PolicyLoss
from helpers.batches import Inputs
from helpers.custom_objective import HALVED

ROWS, WIDTH = 24, 12


# The name and parameters of an objective: every one, and those that learn from the batch twice.
CASES: list[tuple[str, dict[str, Any]]] = [
    (name, {}) for name in objectives.names() if objectives.get(name).additive
] + [("fspo", {"drift": "kl"}), ("fspo", {"drift": "kl", "clip_rate": 0.2}), (HALVED, {})]


def config_of(loss: PolicyLossConfig, **settings: Any) -> ActorConfig:
    """verl's configuration of an actor with this loss."""
    return ActorConfig(strategy="fsdp", rollout_n=1, ppo_micro_batch_size_per_gpu=1, policy_loss=loss, **settings)


def actor(name: str, objective: dict[str, Any] | None = None, updates: int = 2, **settings: Any) -> ActorConfig:
    loss = {key: settings.pop(key) for key in ("records", "checkpoints", "stateless") if key in settings}
    return config_of(PolicyLoss(objective={"name": name} | (objective or {}), updates=updates, **loss), **settings)


def update(seed: int) -> tuple[torch.Tensor, ...]:
    """The new and the old log-probs, advantages and mask of an off-policy update; one row is padding."""
    g = torch.Generator().manual_seed(seed)
    old = -torch.rand(ROWS, WIDTH, generator=g, dtype=torch.float64) - 0.5
    new = old + 0.1 * torch.randn(ROWS, WIDTH, generator=g, dtype=torch.float64) - 0.01
    mask = torch.arange(WIDTH) < torch.randint(1, WIDTH + 1, (ROWS, 1), generator=g)
    mask[5] = False
    return new, old, torch.randn(ROWS, 1, generator=g, dtype=torch.float64).expand(ROWS, WIDTH), mask


def loss_of(
    config: ActorConfig, new: torch.Tensor, old: torch.Tensor, A: torch.Tensor, mask: torch.Tensor, **options: Any
) -> tuple[torch.Tensor, dict[str, float]]:
    """The loss and the metrics of a micro-batch, as verl's actor asks for them."""
    loss: Any = get_policy_loss_fn(config.policy_loss.loss_mode)
    result: tuple[torch.Tensor, dict[str, float]] = loss(
        old_log_prob=old, log_prob=new, advantages=A, response_mask=mask, config=config,
        **{"loss_agg_mode": "token-mean"} | options,
    )  # fmt: skip
    return result


def call(
    config: ActorConfig, batch: Inputs, logprobs: torch.Tensor | None = None, **options: Any
) -> tuple[torch.Tensor, dict[str, float]]:
    """The same of a random batch."""
    new = batch.logprobs if logprobs is None else logprobs
    return loss_of(config, new, batch.old_logprobs, batch.advantages.unsqueeze(-1) * batch.mask, batch.mask, **options)


def train(
    config: ActorConfig, mine: torch.Tensor, ranks: int, micro: int, rollouts: int = 3, first: int = 0
) -> list[dict[str, Any]]:
    """Loss and gradient of this rank in every update, and the metrics that its last micro-batch returned."""
    updates, policy = [], config.policy_loss
    for seed in range(first, first + rollouts * (policy.updates if isinstance(policy, PolicyLoss) else 2)):
        torch.manual_seed(seed)  # a loss of verl's may draw at random
        new, old, A, mask = update(seed)
        tokens = int(mask.sum())
        config.global_batch_info.update(dp_size=ranks, batch_num_tokens=tokens, global_batch_size=ROWS)
        new = new.requires_grad_()
        total = 0.0
        metrics: dict[str, float] = {}
        for part in mine.split(micro):
            assert policy.loss_mode != "fspo" or not metrics, "metrics came before the last micro-batch"
            loss, metrics = loss_of(config, new[part], old[part], A[part], mask[part])
            loss.backward()
            total += float(loss.detach())
        assert new.grad is not None
        updates.append({"loss": total, "gradient": new.grad.tolist(), "metrics": metrics})
    return updates


def main(folder: Path) -> None:
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    everything = torch.arange(ROWS)
    outputs: dict[str, Any] = {"ranks": [train(actor(*case), everything[rank::world], world, 5) for case in CASES]}
    # Two ranks that share their rows, as in sequence parallelism: verl's data-parallel size is then 1.
    shared = actor("fspo", {"drift": "kl"}, records=str(folder / "shared"))
    outputs["shared"] = train(shared, everything, 1, 5)
    if rank == world - 1:  # as the last stage of a pipeline: without state, no other rank has to take part
        outputs["last_stage"] = train(actor("fspo", stateless=True), everything, 1, ROWS)
    (folder / f"{rank}.json").write_text(json.dumps(outputs))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
