"""The configuration of a run: one typed file, checked at the door, saved resolved beside the results."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from pydantic import Field, field_validator, model_validator

from fspo import advantages, objectives, recipes, tasks
from fspo.files import yaml_value
from fspo.sections import (
    CheckpointConfig,
    EnginesConfig,
    EvalConfig,
    LogConfig,
    ModelConfig,
    RolloutConfig,
    ScoringConfig,
    UpdateConfig,
    WarmupConfig,
    task_spec,
)
from fspo.settings import Settings, changes, hint


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
    fspo.settings.SettingsError: RolloutConfig has no parameter 'promts'; did you mean 'prompts'?
    """

    model: ModelConfig = ModelConfig()
    task: Any = Field({"name": "walk", "down": True}, description="a task, a table of its parameters, or a list")
    objective: dict[str, Any] = Field({"name": "fspo"}, description="name and parameters of the objective")
    advantage: str = Field("rloo", description="how rewards become advantages")
    processes: int = Field(0, ge=0, description="processes that share the work; 0 chooses by model, cores and GPUs")
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
        objectives.get(**{str(key): item for key, item in value.items()})
        return value

    @field_validator("advantage")
    @classmethod
    def _known(cls, value: str) -> str:
        advantages.get(value)
        return value

    @field_validator("task")
    @classmethod
    def _task(cls, value: Any) -> Any:
        return task_spec(value)

    @property
    def eval_task(self) -> Any:
        """What is evaluated on: a task of its own, or the run's."""
        return self.task if self.eval.task is None else self.eval.task

    @model_validator(mode="after")
    def _fits(self) -> TrainConfig:
        if self.update.minibatches > self.rollout.prompts:
            raise ValueError(
                f"update.minibatches = {self.update.minibatches} exceeds rollout.prompts = {self.rollout.prompts}: "
                "a minibatch holds whole groups"
            )
        if self.update.lr_warmup >= self.steps:
            raise ValueError(f"update.lr_warmup = {self.update.lr_warmup} must be below steps = {self.steps}")
        return self


def read(path: str | Path | None, overrides: list[str]) -> TrainConfig:
    """The configuration of a YAML or TOML file, a recipe or the default, with `key.sub=value` overrides."""
    values: Any = {} if path is None else parse(path)
    for override in overrides:
        key, equals, text = override.partition("=")
        if not equals:
            raise ValueError(f"the override {override!r} is not of the form key=value")
        try:
            value = yaml_value(text)
        except ValueError as error:
            raise ValueError(f"the value of {override!r} is not YAML ({error})") from None
        _put(values, key.split("."), value, override)
    return TrainConfig(**values)


HARMLESS = ("steps", "eval", "log", "checkpoint", "scoring", "model.device", "model.threads", "rollout.cache_gib",
            "processes")  # fmt: skip
"""Settings that may change when a run is resumed: any other change would make it another run."""


def require_same_run(saved: TrainConfig, config: TrainConfig, *, force: bool = False) -> None:
    """Refuse a configuration that would make a resumed run another one; `force` allows all but other adapters."""
    for key, (old, new) in changes(saved.model_dump(mode="json"), config.model_dump(mode="json")).items():
        weights = key.startswith("model.lora")  # its checkpoints hold no others
        if weights or not (force or any(key == name or key.startswith(f"{name}.") for name in HARMLESS)):
            way = "or start" if weights else "start"
            raise ValueError(
                f"{key} = {new!r} would make this another run (it has {old!r}): leave it out, {way} in another folder"
                + ("" if weights else ", or add --force")
            )


def code_named_in(values: dict[str, Any]) -> list[str]:
    """What a configuration would execute: `module:Class`, `python:module:function`, programs without isolation.

    The configuration of a folder that came from elsewhere is data: these are to be confirmed before it is resolved.
    """
    held_out = values.get("eval")
    found = tasks.code_in(values.get("task"))
    found += tasks.code_in(held_out.get("task")) if isinstance(held_out, dict) else []
    known = objectives.names()
    return found + [name for name in names_in(values.get("objective")) if ":" in name and name not in known]


def names_in(spec: Any) -> list[str]:
    """The names of a task or an objective, as written."""
    if isinstance(spec, list | tuple):
        return [name for part in spec for name in names_in(part)]
    name = spec.get("name") if isinstance(spec, dict) else spec
    return [name] if isinstance(name, str) else []


def parse(path: str | Path) -> Any:
    """The settings of a configuration file or of `recipe:NAME`, as written."""
    path = recipes.located(path)
    if not path.is_file():
        raise ValueError(f"there is no configuration file {str(path)!r}")
    try:
        text = path.read_text(encoding="utf-8")
        values = tomllib.loads(text) if path.suffix == ".toml" else yaml_value(text)
    except ValueError as error:
        raise ValueError(f"{path} cannot be read ({' '.join(str(error).split())}): mend that file") from None
    if not isinstance(values, dict) or not all(isinstance(key, str) for key in values):
        kind = "names that are not text" if isinstance(values, dict) else type(values).__name__
        raise ValueError(f"{path} must hold a table of settings, not {kind}")
    return values


def _put(values: dict[str, Any], keys: list[str], value: Any, override: str) -> None:
    if keys[0] not in TrainConfig.model_fields:
        raise ValueError(f"there is no setting {keys[0]!r} in {override!r}{hint(keys[0], TrainConfig.model_fields)}")
    if keys == ["objective"] and isinstance(value, str):
        value = {"name": value}
    for key in keys[:-1]:
        if key in ("task", "objective"):  # a name alone, or the default's, becomes a table that takes parameters
            known = values.get(key, TrainConfig.model_fields[key].default)
            values[key] = (
                {"name": known} if isinstance(known, str) else dict(known) if isinstance(known, dict) else known
            )
        if not isinstance(values.get(key), dict):
            values[key] = {}
        values = values[key]
    values[keys[-1]] = value
