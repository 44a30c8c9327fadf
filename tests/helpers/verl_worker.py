"""verl's own training worker on FSDP2 and gloo, without Ray: one process of a torchrun.

    torchrun --nproc_per_node 2 -m helpers.verl_worker SETTINGS.json

writes what verl measured in every update to the file `out` of the settings, on rank 0.
"""

from __future__ import annotations

import functools
import json
import os
import sys
from pathlib import Path
from typing import Any

import torch
import verl
from hydra import compose, initialize_config_dir
from verl import DataProto
from verl.utils import tensordict_utils as tu
from verl.utils.config import omega_conf_to_dataclass
from verl.workers.engine_workers import TrainingWorker, TrainingWorkerConfig
from verl.workers.utils.losses import ppo_loss
from verl.workers.utils.padding import left_right_2_no_padding, no_padding_2_padding

ROWS, PROMPT, WIDTH, VOCABULARY = 16, 4, 24, 64

OVERRIDES = (
    "actor_rollout_ref.model.use_remove_padding=False",
    "actor_rollout_ref.model.enable_gradient_checkpointing=False",
    "+actor_rollout_ref.model.override_config.attn_implementation=sdpa",
    "actor_rollout_ref.actor.strategy=fsdp2",
    "actor_rollout_ref.actor.optim.lr=3e-5",
    "actor_rollout_ref.actor.optim.total_training_steps=100",
    "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4",
    "actor_rollout_ref.actor.ppo_epochs=2",
    "actor_rollout_ref.actor.fsdp_config.use_torch_compile=False",
    "+actor_rollout_ref.actor.fsdp_config.mixed_precision.param_dtype=fp32",
    "+actor_rollout_ref.actor.fsdp_config.mixed_precision.reduce_dtype=fp32",
    "actor_rollout_ref.actor.policy_loss._target_=fspo.engines.verl.PolicyLoss",
)


def answers(rollout: int) -> dict[str, torch.Tensor]:
    """A batch that is the same on every rank: prompts, answers of many lengths and one of padding, advantages."""
    g = torch.Generator().manual_seed(rollout)
    prompts = torch.randint(3, VOCABULARY, (ROWS, PROMPT), generator=g)
    responses = torch.randint(3, VOCABULARY, (ROWS, WIDTH), generator=g)
    lengths = torch.randint(2, WIDTH + 1, (ROWS, 1), generator=g)
    there = (torch.arange(WIDTH) < lengths).long()
    attention = torch.cat([torch.ones_like(prompts), there], 1)
    mask = there.clone()
    mask[3] = 0  # as the rows that verl adds to fill a batch
    return {
        "prompts": prompts, "responses": responses, "response_mask": mask, "attention_mask": attention,
        "input_ids": torch.cat([prompts, responses], 1), "position_ids": (attention.cumsum(1) - 1).clamp(min=0),
        "advantages": torch.randn(ROWS, 1, generator=g) * mask,
    }  # fmt: skip


def main(settings: dict[str, Any]) -> None:
    torch.set_num_threads(1)
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    overrides = [*OVERRIDES, f"actor_rollout_ref.model.path={settings['model']}", *settings["overrides"]]
    with initialize_config_dir(str(Path(verl.__file__).parent / "trainer/config"), version_base=None):
        config = compose("ppo_trainer", overrides=overrides).actor_rollout_ref
    model, actor = omega_conf_to_dataclass(config.model), omega_conf_to_dataclass(config.actor)
    actor.model_config = model
    engine = actor.engine
    engine.use_dynamic_bsz = False
    engine.micro_batch_size_per_gpu = engine.infer_micro_batch_size_per_gpu = settings["micro"]
    engine.max_token_len_per_gpu = engine.infer_max_token_len_per_gpu = 4096
    worker = TrainingWorker(
        TrainingWorkerConfig(
            model_type="language_model", model_config=model, engine_config=engine, optimizer_config=actor.optim,
            checkpoint_config=actor.checkpoint, profiler_config=None,  # type: ignore[arg-type]
        )
    )  # fmt: skip
    worker.reset()
    worker.set_loss_fn(functools.partial(ppo_loss, config=actor))

    def rows(batch: dict[str, torch.Tensor], **options: Any) -> Any:
        # Each mini-batch of 8 is divided over the ranks, so that it has the same rows on any number of them.
        mine = torch.arange(ROWS).view(2, world, -1)[:, rank].flatten()
        mine_alone = {key: value[mine].contiguous() for key, value in batch.items()}
        data = DataProto.from_dict(tensors=mine_alone, meta_info={"temperature": 1.0}).to_tensordict()
        data = left_right_2_no_padding(data)
        tu.assign_non_tensor(data, calculate_entropy=False, **options)
        return data

    rollouts = []
    for rollout in range(3):
        batch = answers(rollout)
        asked = rows(batch, compute_loss=False)
        old = no_padding_2_padding(tu.get(worker.infer_batch(asked), "log_probs"), asked).detach()
        # An evaluation asks for the loss under no_grad; such calls are not recorded.
        options = {"global_batch_size": ROWS // 2, "compute_loss": True}
        data = rows(batch, **options)
        data["old_log_probs"] = old
        worker.infer_batch(data)
        data = rows(batch, **options, mini_batch_size=ROWS // 2, epochs=2, seed=1, dataloader_kwargs={"shuffle": False})
        data["old_log_probs"] = old
        metrics = tu.get(worker.train_mini_batch(data), "metrics")
        wanted = {key: value for key, value in metrics.items() if key in ("loss", "grad_norm") or "fspo" in key}
        rollouts.append({key: [float(x) for x in values] for key, values in wanted.items()})
    trained: Any = worker.engine
    weights = torch.cat([part.full_tensor().flatten() for part in trained.module.state_dict().values()])
    if rank == 0:
        Path(settings["out"]).write_text(json.dumps(rollouts))
        torch.save(weights, settings["out"] + ".pt")
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text()))
