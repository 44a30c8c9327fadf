"""The sections of a run's configuration, each with the defaults that `fspo train` runs."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, field_validator

from fspo import tasks
from fspo.settings import Settings


class LoraConfig(Settings):
    """Low-rank adapters in the place of full fine-tuning."""

    rank: int = Field(16, ge=1, description="rank of the adapters")
    alpha: float = Field(32.0, gt=0, description="scale of the adapters")


class ModelConfig(Settings):
    """What is trained."""

    path: str = Field("tiny:2x64", description="folder or hub name, a .gguf file, or tiny:LAYERSxWIDTH")
    dtype: Literal["float32", "bfloat16"] = Field(
        "float32", description="type of the model's products; weights are trained in float32"
    )
    device: str = Field("cpu", description="cpu, cuda, cuda:1, mps")
    threads: int = Field(0, ge=0, description="CPU threads; 0 chooses by the size of the model")
    lora: LoraConfig | None = Field(None, description="train adapters only")
    chat: bool | None = Field(None, description="wrap prompts in the chat template; default: if there is one")


class WarmupConfig(Settings):
    """Supervised start on worked solutions, for a model that solves nothing yet."""

    solved: float = Field(0.25, gt=0, le=1, description="stop when this share of validation prompts is solved")
    lr: float = Field(3e-3, gt=0, description="learning rate")
    batch: int = Field(64, ge=1, description="solutions per step")
    max_steps: int = Field(3000, ge=1, description="stop here in any case")
    check_every: int = Field(25, ge=1, description="steps between two validations")
    prompts: int = Field(256, ge=16, description="prompts per validation")


class RolloutConfig(Settings):
    """How answers are sampled: always from the whole vocabulary, because a cut distribution biases the ratio."""

    cache_gib: float = Field(2.0, gt=0, description="memory for keys and values of running answers")
    prompts: int = Field(16, ge=1, description="prompts per step")
    group: int = Field(16, ge=2, description="answers per prompt")
    max_new_tokens: int = Field(400, ge=1, description="longest answer")
    temperature: float = Field(1.0, gt=0, description="sampling temperature; log-probs are taken at it too")
    staleness: int = Field(0, ge=0, description="train on answers sampled this many steps ago")
    dynamic: int = Field(0, ge=0, description="times that groups without variance are replaced by new prompts")


class UpdateConfig(Settings):
    """How the policy is moved."""

    epochs: int = Field(2, ge=1, description="passes over a rollout")
    minibatches: int = Field(4, ge=1, description="optimiser steps per pass")
    token_budget: int = Field(16384, ge=1, description="most tokens of a micro-batch")
    lr: float = Field(1e-4, gt=0, description="peak learning rate")
    schedule: Literal["constant", "linear", "cosine"] = Field("constant", description="learning rate over the run")
    lr_warmup: int = Field(0, ge=0, description="steps of linear rise to the peak")
    betas: tuple[float, float] = Field((0.9, 0.95), description="AdamW's decay rates")
    weight_decay: float = Field(0.0, ge=0, description="AdamW's weight decay")
    clip_norm: float | None = Field(None, gt=0, description="largest gradient norm; null for no such limit")
    clip_ratio: float | None = Field(
        2.0,
        gt=0,
        description="largest gradient norm, in median norms of the last updates; null for no such limit",
    )
    all_rows: bool = Field(
        False, description="also compute answers without a gradient, so that figures about S cover them"
    )
    max_skipped: int = Field(5, ge=1, description="stop after this many updates without a finite gradient")


class EvalConfig(Settings):
    """Held-out evaluation during the run."""

    every: int = Field(20, ge=1, description="steps between two evaluations")
    prompts: int = Field(512, ge=1, description="held-out prompts")
    samples: int = Field(1, ge=1, description="answers per prompt")
    temperature: float = Field(1.0, ge=0, description="0 is greedy")
    split: Literal["eval", "validation"] = Field("eval", description="validation where settings are being chosen")
    task: Any = Field(None, description="another task to evaluate on; default: the held-out split of the run's own")

    @field_validator("task")
    @classmethod
    def _task(cls, value: Any) -> Any:
        return None if value is None else task_spec(value)


class CheckpointConfig(Settings):
    """What survives a crash."""

    every: int = Field(20, ge=1, description="steps between two checkpoints")
    keep: int = Field(2, ge=1, description="checkpoints kept")


class ScoringConfig(Settings):
    """Limits on the processes that score answers."""

    workers: int = Field(2, ge=1, description="processes")
    timeout: float = Field(10.0, gt=0, description="seconds per answer")
    memory_mb: int = Field(2048, ge=64, description="memory of a process beyond its libraries")


class LogConfig(Settings):
    """What is written besides the metrics."""

    records: bool = Field(True, description="one Parquet row per response and update")
    samples: int = Field(4, ge=0, description="answers kept per step")
    bins: int = Field(6, ge=2, description="bins of length")
    cosine: int = Field(
        0, ge=0, description="steps between two measurements of the cosine of clipped and true update; 0 for never"
    )
    tensorboard: bool = Field(False, description="also write TensorBoard events")
    wandb: str | None = Field(None, description="also log to this W&B project")
    trackio: str | None = Field(None, description="also log to this trackio project")


class EnginesConfig(Settings):
    """Arguments that only another trainer has; each engine reads its own."""

    trl: dict[str, Any] = Field({}, description="arguments of TRL's GRPOConfig, such as use_vllm: true")
    verl: dict[str, Any] = Field({}, description="overrides of verl's ppo_trainer, such as trainer.nnodes: 4")


def task_spec(value: Any) -> Any:
    """What stands for a task in a file; a task object is written as its name and parameters."""
    task = tasks.get(value)
    tasks.check_importable(task)
    return tasks.spec(task) if isinstance(value, tasks.Task) else value
