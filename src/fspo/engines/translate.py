"""What every translation needs: a model that others can load, prompts as rows, and refusals where an engine lacks."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fspo import tasks
from fspo.local.config import TrainConfig
from fspo.local.models import load, save
from fspo.local.warmup import warm_start


def refuse(config: TrainConfig, engine: str, missing: Mapping[str, str]) -> None:
    """What the engine cannot do is an error where it was asked for: `missing` names settings, and why."""
    plain = TrainConfig()
    for key, why in missing.items():
        section, _, name = key.rpartition(".")
        value = getattr(getattr(config, section), name)
        if value != getattr(getattr(plain, section), name):
            raise ValueError(f"{key} = {value!r} is not possible with --engine {engine}: {why}")
    if config.rollout.prompts % config.update.minibatches:
        raise ValueError(
            f"update.minibatches = {config.update.minibatches} must divide rollout.prompts = "
            f"{config.rollout.prompts} with --engine {engine}: its minibatches are equal"
        )


def start(config: TrainConfig, folder: Path) -> str:
    """A folder or hub name of the model that training starts from, in the form that every library reads."""
    path = config.model.path if config.warmup is None else warm_start(config, tasks.get(config.task))
    if not (path.startswith("tiny:") or path.endswith(".gguf")):
        return path
    made = folder / "start"
    if not made.is_dir():
        save(load(path, dtype=config.model.dtype, seed=config.seed), made)
    return str(made)


def place(config: TrainConfig, folder: Path) -> str:
    """Where `start` will put the model, without making it."""
    made = config.warmup is not None or config.model.path.startswith("tiny:") or config.model.path.endswith(".gguf")
    return str(folder / "start") if made else config.model.path


def chats(config: TrainConfig, template: str | None) -> bool:
    """Whether prompts are a user's turn of a chat."""
    if config.model.chat and template is None:
        raise ValueError("model.chat is on, but the tokenizer has no chat template: set model.chat=false")
    return template is not None if config.model.chat is None else config.model.chat


def rows(spec: Any, split: str, count: int) -> list[dict[str, Any]]:
    """Prompts of a task in the order in which the local engine would ask them."""
    task = tasks.get(spec)
    size = task.size(split)
    if split != "train" and size is not None:
        count = min(count, size)
    examples = (task.example(split, i) for i in range(count))
    return [{"prompt": e.prompt, "task": e.task, "index": e.index} for e in examples]
