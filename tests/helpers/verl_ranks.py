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
from verl.workers.config import ActorConfig

from fspo import objectives
from fspo.engines.verl.plugin import PolicyLoss
from helpers.custom_objective import HALVED

ROWS, WIDTH = 24, 12


# The name and parameters of an objective: every one, and those that learn from the batch twice.
CASES: list[tuple[str, dict[str, Any]]] = [
    (name, {}) for name in objectives.names() if objectives.get(name).additive
] + [
    ("fspo", {"drift": "kl"}),
    ("fspo", {"drift": "kl", "clip_rate": 0.2}),
    (HALVED, {}),
]


def actor(name: str, objective: dict[str, Any] | None = None, updates: int = 2, **settings: Any) -> ActorConfig:
    loss = {key: settings.pop(key) for key in ("records", "checkpoints", "stateless") if key in settings}
    policy = PolicyLoss(objective={"name": name} | (objective or {}), updates=updates, **loss)
    return ActorConfig(
        strategy="fsdp", rollout_n=1, ppo_micro_batch_size_per_gpu=1, policy_loss=policy, **settings
    )  # fmt: skip


def update(seed: int) -> tuple[torch.Tensor, ...]:
    """The new and the old log-probs, advantages and mask of an off-policy update; one row is padding."""
    g = torch.Generator().manual_seed(seed)
    old = -torch.rand(ROWS, WIDTH, generator=g, dtype=torch.float64) - 0.5
    new = old + 0.1 * torch.randn(ROWS, WIDTH, generator=g, dtype=torch.float64) - 0.01
    mask = torch.arange(WIDTH) < torch.randint(1, WIDTH + 1, (ROWS, 1), generator=g)
    mask[5] = False
    return new, old, torch.randn(ROWS, 1, generator=g, dtype=torch.float64).expand(ROWS, WIDTH), mask


def train(config: ActorConfig, mine: torch.Tensor, ranks: int, micro: int, rollouts: int = 3) -> list[dict[str, Any]]:
    """Loss and gradient of this rank in every update, and the metrics that its last micro-batch returned."""
    updates, policy = [], config.policy_loss
    assert isinstance(policy, PolicyLoss)
    for seed in range(rollouts * policy.updates):
        new, old, A, mask = update(seed)
        tokens = int(mask.sum())
        config.global_batch_info.update(dp_size=ranks, batch_num_tokens=tokens, global_batch_size=ROWS)
        new = new.requires_grad_()
        total = 0.0
        metrics: dict[str, float] = {}
        for part in mine.split(micro):
            assert not metrics, "metrics came before the last micro-batch"
            loss, metrics = get_policy_loss_fn(policy.loss_mode)(
                old_log_prob=old[part], log_prob=new[part], advantages=A[part], response_mask=mask[part],
                loss_agg_mode="token-mean", config=config,
            )  # fmt: skip
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
