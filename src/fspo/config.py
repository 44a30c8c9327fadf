"""The configuration of a run: one typed file, checked before anything starts, saved resolved beside the results.

Sections come first, each with the defaults that `fspo train` runs, then `TrainConfig`, then how it is read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from fspo import advantages, objectives, recipes, tasks
from fspo.files import yaml_value
from fspo.settings import Settings, flat, hint


class _Section(Settings):
    """A part of a run's configuration, under its own name."""

    @classmethod
    def owner(cls) -> str:
        return cls.__name__.removesuffix("Config").lower()


class LoraConfig(_Section):
    """Low-rank adapters in the place of full fine-tuning."""

    rank: int = Field(16, ge=1, description="rank of the adapters")
    alpha: float = Field(32.0, gt=0, description="scale of the adapters")


class ModelConfig(_Section):
    """What is trained."""

    path: str = Field("tiny:2x64", description="folder or hub name, a .gguf file, or tiny:LAYERSxWIDTH")
    dtype: Literal["float32", "bfloat16"] = Field(
        "float32", description="type of the products with --engine trl or verl; weights are trained in float32"
    )
    device: str = Field("cpu", description="cpu, cuda, cuda:1, mps")
    threads: int = Field(0, ge=0, description="CPU threads; 0 chooses by the size of the model")
    lora: LoraConfig | None = Field(None, description="train adapters only, with --engine trl or verl")
    chat: bool | None = Field(None, description="wrap prompts in the chat template; default: if there is one")


def is_chat(chat: bool | None, template: str | None) -> bool:
    """Whether a prompt is the user's turn of a chat, by `model.chat` and the tokenizer's template."""
    if chat and template is None:
        raise ValueError("model.chat is on, but the tokenizer has no chat template: set model.chat=false")
    return template is not None if chat is None else chat


class WarmupConfig(_Section):
    """Supervised start on worked solutions, for a model that solves nothing yet."""

    solved: float = Field(0.25, gt=0, le=1, description="stop when this share of validation prompts is solved")
    lr: float = Field(3e-3, gt=0, description="learning rate")
    batch: int = Field(64, ge=1, description="solutions per step")
    max_steps: int = Field(3000, ge=1, description="stop here in any case")
    check_every: int = Field(25, ge=1, description="steps between two validations")
    prompts: int = Field(256, ge=16, description="prompts per validation")


class RolloutConfig(_Section):
    """How answers are sampled: always from the whole vocabulary, because a cut distribution biases the ratio."""

    prompts: int = Field(16, ge=1, description="prompts per step")
    group: int = Field(16, ge=2, description="answers per prompt")
    max_new_tokens: int = Field(400, ge=1, description="longest answer")
    temperature: float = Field(1.0, gt=0, description="sampling temperature; log-probs are taken at it too")
    staleness: int = Field(0, ge=0, description="train on answers sampled this many steps ago")
    precision: Literal["bfloat16", "float8"] | Annotated[int, Field(ge=1, le=23)] | None = Field(
        None, description="sample with weights rounded to this format or number of mantissa bits; local engine only"
    )


class UpdateConfig(_Section):
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
        2.0, gt=0, description="largest gradient norm, in median norms of the last updates; null for no such limit"
    )
    all_rows: bool = Field(
        False, description="also compute answers without a gradient, so that figures about S cover them"
    )
    max_skipped: int = Field(5, ge=1, description="stop after this many updates without a finite gradient")


class EvalConfig(_Section):
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
        return None if value is None else _task_spec(value)


class CheckpointConfig(_Section):
    """What survives a crash."""

    every: int = Field(20, ge=1, description="steps between two checkpoints")
    keep: int = Field(2, ge=1, description="checkpoints kept")


class ScoringConfig(_Section):
    """Limits on the processes that score answers."""

    workers: int = Field(2, ge=1, description="processes")
    timeout: float = Field(10.0, gt=0, description="seconds per answer")
    memory_mb: int = Field(2048, ge=64, description="memory of a process beyond its libraries")


class LogConfig(_Section):
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
    mlflow: str | None = Field(None, description="also log to this MLflow experiment")


class EnginesConfig(_Section):
    """Arguments that only another trainer has; each engine reads its own."""

    trl: dict[str, Any] = Field({}, description="arguments of TRL's GRPOConfig, such as use_vllm: true")
    verl: dict[str, Any] = Field({}, description="overrides of verl's ppo_trainer, such as trainer.nnodes: 4")


def _task_spec(value: Any) -> Any:
    """The task as a configuration file has it; a task object is written as its name and parameters."""
    task = tasks.get(value)
    tasks.check_importable(task)
    return tasks.spec(task) if isinstance(value, tasks.Task) else value


def _default_warmup(values: dict[str, Any]) -> WarmupConfig | None:
    model = values.get("model")
    if model is None or "task" not in values or not model.path.startswith("tiny:"):
        return None
    return WarmupConfig(solved=tasks.get(values["task"]).solved_at_start)


class TrainConfig(Settings):
    """A whole run. The defaults are what `fspo train` runs with no argument: a small model learns to count down.

    Sections are given as dictionaries or as their own classes; unknown keys and bad values are refused in one sentence.

    >>> import fspo
    >>> config = fspo.TrainConfig(task={"name": "sort", "n_max": 12}, objective="gspo", rollout={"prompts": 16})
    >>> config.objective, config.rollout.prompts, config.steps
    ({'name': 'gspo'}, 16, 60)
    >>> fspo.TrainConfig(rollout={"promts": 16})
    Traceback (most recent call last):
    fspo.settings.SettingsError: rollout has no parameter 'promts'; did you mean 'prompts'?
    """

    model: ModelConfig = ModelConfig()
    task: Any = Field({"name": "walk", "down": True}, description="a task, a table of its parameters, or a list")
    objective: dict[str, Any] = Field({"name": objectives.DEFAULT}, description="name and parameters of the objective")
    advantage: str = Field("rloo", description="how rewards become advantages")
    processes: int = Field(0, ge=0, description="processes that share the work; 0 chooses by model and cores")
    steps: int = Field(60, ge=1, description="rollouts to train on")
    seed: int = Field(0, ge=0, description="decides everything that is random")
    warmup: WarmupConfig | None = Field(
        default_factory=_default_warmup,
        description="supervised start; null for none. Default: for a tiny: model, which starts from random weights, "
        "until it solves a quarter of its prompts, a half for the task walk",
    )
    rollout: RolloutConfig = RolloutConfig()
    update: UpdateConfig = UpdateConfig()
    eval: EvalConfig = EvalConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    scoring: ScoringConfig = ScoringConfig()
    log: LogConfig = LogConfig()
    engines: EnginesConfig = EnginesConfig()

    @field_validator("objective", mode="before")
    @classmethod
    def _named(cls, value: Any) -> Any:
        value = {"name": value} if isinstance(value, str) else value
        named = isinstance(value, dict) and isinstance(value.get("name"), str)
        if not named or not all(isinstance(key, str) for key in value):
            raise ValueError(f"{value!r} is not an objective: write a name, or a table with a name")
        name = value["name"]
        if name in advantages.names() and name not in objectives.names():
            raise ValueError(f"{name!r} is an advantage and not an objective: set advantage={name}")
        objectives.get(**{str(key): item for key, item in value.items()})
        return value

    @field_validator("advantage")
    @classmethod
    def _known(cls, value: str) -> str:
        if value in objectives.names() and value not in advantages.names():
            raise ValueError(f"{value!r} is an objective and not an advantage: set objective={value}")
        advantages.get(value)
        return value

    @field_validator("task")
    @classmethod
    def _task(cls, value: Any) -> Any:
        return _task_spec(value)

    @property
    def eval_task(self) -> Any:
        """What is evaluated on: a task of its own, or the run's."""
        return self.task if self.eval.task is None else self.eval.task

    @property
    def evaluation(self) -> dict[str, Any]:
        """How held-out answers are asked for: the arguments of `fspo.training.evaluate.evaluate`."""
        settings = self.eval.model_dump(include={"split", "prompts", "samples", "temperature"})
        more = {"max_new_tokens": self.rollout.max_new_tokens, "seed": self.seed, "chat": self.model.chat}
        return settings | more

    @classmethod
    def owner(cls) -> str:
        return ""

    @model_validator(mode="after")
    def _fits(self) -> TrainConfig:
        if self.update.minibatches > self.rollout.prompts:
            raise ValueError(
                f"update.minibatches = {self.update.minibatches} exceeds rollout.prompts = {self.rollout.prompts}: "
                "a minibatch holds whole groups"
            )
        if self.processes > self.rollout.prompts:
            raise ValueError(
                f"processes = {self.processes} exceeds rollout.prompts = {self.rollout.prompts}: each process "
                "samples answers to whole prompts"
            )
        if self.update.lr_warmup >= self.steps:
            raise ValueError(f"update.lr_warmup = {self.update.lr_warmup} must be below steps = {self.steps}")
        return self


def read(path: str | Path | None, changed: Sequence[str] | Mapping[str, Any]) -> TrainConfig:
    """The configuration of a YAML file, a recipe or the default, with changed settings.

    Changes are a dictionary, or `key.sub=value` texts of a command line. A table of a task or an objective without a
    `name` changes parameters of the one that is there, one with a `name` replaces it.
    """
    values = {} if path is None else parse(path)
    return TrainConfig(**_merged(values, changed if isinstance(changed, Mapping) else tables(changed)))


def tables(overrides: Sequence[str]) -> dict[str, Any]:
    """`key.sub=value` texts as a dictionary of settings."""
    values: dict[str, Any] = {}
    for override in overrides:
        key, equals, text = override.partition("=")
        if not equals:
            raise ValueError(f"the override {override!r} is not of the form key=value")
        *sections, name = key.split(".")
        first = (sections or [name])[0]
        if first not in TrainConfig.model_fields:
            raise ValueError(f"there is no setting {first!r} in {override!r}{hint(first, TrainConfig.model_fields)}")
        try:
            value = yaml_value(text)
        except ValueError as error:
            raise ValueError(f"the value of {override!r} is not YAML ({error})") from None
        table = values
        for section in sections:
            table[section] = _table(table.get(section)) or {}
            table = table[section]
        table[name] = value
    return values


def _merged(before: Mapping[str, Any], changed: Mapping[str, Any]) -> dict[str, Any]:
    values = dict(before)
    for key, value in changed.items():
        if isinstance(value, Mapping) and "name" not in value:
            default = TrainConfig.model_fields[key].default if key in ("task", "objective") else None
            there = _table(values.get(key, default))
            value = value if there is None else _merged(there, value)
        values[key] = value
    return values


def _table(value: Any) -> dict[str, Any] | None:
    """A section as a table that takes parameters; a name alone is a table too. None for anything else."""
    return {"name": value} if isinstance(value, str) else dict(value) if isinstance(value, Mapping) else None


RESUMABLE = ("steps", "eval", "log", "checkpoint", "scoring", "model.device", "model.threads", "processes")
"""Settings that may change when a run is resumed: any other change would make it another run."""


def require_same_run(saved: TrainConfig, config: TrainConfig, *, force: bool = False) -> None:
    """Refuse a configuration that would make a resumed run another one, unless by `force`."""
    old, new = (flat(each.model_dump(mode="json")) for each in (saved, config))
    for key in [key for key in [*new, *(old.keys() - new)] if old.get(key) != new.get(key)]:
        if not (force or any(key == name or key.startswith(f"{name}.") for name in RESUMABLE)):
            raise ValueError(
                f"{key} = {new.get(key)!r} would make this another run (it has {old.get(key)!r}): leave it out, start "
                "in another folder, or add --force"
            )


def names_in(spec: Any) -> list[str]:
    """The names of a task or an objective, as written."""
    if isinstance(spec, list | tuple):
        return [name for part in spec for name in names_in(part)]
    name = spec.get("name") if isinstance(spec, dict) else spec
    return [name] if isinstance(name, str) else []


def parse(path: str | Path) -> dict[str, Any]:
    """The settings of a configuration file or of `recipe:NAME`, as written."""
    path = recipes.located(path)
    if not path.is_file():
        raise ValueError(f"there is no configuration file {str(path)!r}")
    try:
        values = yaml_value(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} cannot be read ({' '.join(str(error).split())}): fix that file") from None
    if not isinstance(values, dict) or not all(isinstance(key, str) for key in values):
        kind = "names that are not text" if isinstance(values, dict) else type(values).__name__
        raise ValueError(f"{path} must hold a table of settings, not {kind}")
    return values
