"""Runs of the TRL engine whose answers are a function of the prompt, so that they do not depend on the split.

    torchrun --nproc_per_node 2 -m helpers.trl_runs MODEL OUT BATCH ACCUMULATION

trains with each objective of SPLIT and saves the weights to OUT/NAME.pt. Model, loss, optimiser and processes are
real; only the sampler is replaced, through TRL's own `rollout_func`.
"""

from __future__ import annotations

import os
import random
import sys
from pathlib import Path
from typing import Any

os.environ |= {"HF_HUB_OFFLINE": "1", "TRL_EXPERIMENTAL_SILENCE": "1"}

import torch
from datasets import Dataset

from fspo.engines.trl import FSPOConfig, FSPOTrainer

GROUP, LIMIT, EOS = 4, 12, 2
SPLIT: dict[str, tuple[str, dict[str, Any]]] = {
    "fspo": ("fspo", {"clip_rate": 0.3, "drift": "kl"}),
    "bounded": ("fspo", {"clip_rate": 0.1, "drift": "bounded", "c_high": 0.04}),
    "dapo": ("dapo", {}),
}


def prompts(count: int = 16) -> Dataset:
    return Dataset.from_dict({"prompt": [f"say a {i}:" for i in range(count)]})


def reward(completions: list[str], **rest: Any) -> list[float]:
    """Letters of the first half of the alphabet, as a share of the longest answer."""
    return [sum(c in "abcdefghijklm" for c in text) / LIMIT for text in completions]


def answers(asked: list[str], trainer: Any) -> dict[str, Any]:
    """Answers of all lengths, the same for the same prompt and place in its group; some of them are truncated."""
    ids = []
    for place, prompt in enumerate(asked):
        source = random.Random(f"{prompt} {place % GROUP}")
        length = source.randint(1, LIMIT)
        ids.append([source.randint(3, 63) for _ in range(length - 1)] + [EOS if length < LIMIT else 5])
    return {"prompt_ids": trainer.processing_class(asked)["input_ids"], "completion_ids": ids, "logprobs": None}


def settings(out: Path | str, **changed: Any) -> dict[str, Any]:
    return {
        "output_dir": str(out), "use_cpu": True, "bf16": False, "gradient_checkpointing": False, "report_to": "none",
        "num_generations": GROUP, "max_completion_length": LIMIT, "learning_rate": 1e-3, "disable_tqdm": True,
        "lr_scheduler_type": "constant", "logging_steps": 1, "save_strategy": "no",
        "model_init_kwargs": {"dtype": "float32"}, **changed,
    }  # fmt: skip


def trainer(model: Any, out: Path | str, cls: type = FSPOTrainer, config: type = FSPOConfig, **changed: Any) -> Any:
    extra = {name: changed.pop(name) for name in ("peft_config", "eval_dataset") if name in changed}
    sampler = changed.pop("rollout_func", answers)
    options = config(**settings(out, **changed))
    return cls(str(model), reward, options, prompts(), rollout_func=sampler, **extra)


def split_runs(model: str, out: Path, batch: int, accumulation: int) -> None:
    """Six updates on three rollouts of 16 answers, each update with all of them."""
    for name, (objective, parameters) in SPLIT.items():
        run = trainer(
            model, out / name, objective=objective, objective_args=parameters, max_steps=6, num_iterations=2,
            per_device_train_batch_size=batch, gradient_accumulation_steps=accumulation,
        )  # fmt: skip
        run.train()
        if run.accelerator.is_main_process:
            state = {"weights": run.accelerator.unwrap_model(run.model).state_dict(), "log": run.state.log_history}
            torch.save(state, out / f"{name}.pt")


if __name__ == "__main__":
    torch.set_num_threads(1)
    split_runs(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
    if torch.distributed.is_initialized():
        assert torch.distributed.get_world_size() == int(os.environ["WORLD_SIZE"])
        torch.distributed.destroy_process_group()
