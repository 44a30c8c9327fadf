"""What the translation to any other trainer needs: a model that other libraries load, prompts as rows, and refusals."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from fspo import tasks
from fspo.config import TrainConfig
from fspo.files import replace_file
from fspo.model.loading import load, save
from fspo.training.warmup import Progress, warm_start

CLIP_NORM = 1.0
"""The largest gradient norm where none is given: these trainers have a fixed limit only, and this is their default."""

PROMPT = 1024  # longest prompt in tokens; longer ones are left out


def refuse(config: TrainConfig, engine: str, missing: Mapping[str, str]) -> None:
    """Refuse settings that differ from their default and that the engine does not have; `missing` says why or what
    to use instead."""
    if config.processes > 1:
        raise ValueError(f"processes = {config.processes} is not possible with --engine {engine}: use its own launcher")
    default = TrainConfig()
    for key, why in missing.items():
        section, _, name = key.rpartition(".")
        value = getattr(getattr(config, section), name)
        if value != getattr(getattr(default, section), name):
            raise ValueError(f"{key} = {value!r} is not possible with --engine {engine}: {why}")
    if config.rollout.prompts % config.update.minibatches:
        raise ValueError(
            f"update.minibatches = {config.update.minibatches} must divide rollout.prompts = "
            f"{config.rollout.prompts} with --engine {engine}: its minibatches are equal"
        )


def start(config: TrainConfig, folder: Path, progress: Progress | None = None, *, fresh: bool = False) -> str:
    """The folder or hub name of the model that training starts from, in Hugging Face's format; `progress` follows a
    warm start. With `fresh` it is made again: what the folder has may be of a start that failed."""
    path = place(config, folder)
    if fresh and path != config.model.path:
        shutil.rmtree(path, ignore_errors=True)
    if path != config.model.path and not Path(path).is_dir():
        source = config.model.path if config.warmup is None else warm_start(config, tasks.get(config.task), progress)
        with tempfile.TemporaryDirectory(dir=folder) as scratch:  # so that a killed process leaves no half of a model
            save(load(source, dtype=config.model.dtype, seed=config.seed), Path(scratch) / "model")
            os.replace(Path(scratch) / "model", path)
    return path


def place(config: TrainConfig, folder: Path) -> str:
    """Where `start` puts the model, without making it: a tiny, GGUF or warmed-up model is saved in the run folder."""
    path = config.model.path
    made = config.warmup is not None or path.startswith("tiny:") or path.endswith(".gguf")
    return str(folder / "start") if made else path


def is_chat(config: TrainConfig, template: str | None) -> bool:
    """Whether a prompt is the user's turn of a chat; `template` is the tokenizer's."""
    if config.model.chat and template is None:
        raise ValueError("model.chat is on, but the tokenizer has no chat template: set model.chat=false")
    return template is not None if config.model.chat is None else config.model.chat


def rows(spec: Any, split: str, count: int) -> list[dict[str, Any]]:
    """Prompts of a task, in the order in which the local engine asks them."""
    task = tasks.get(spec)
    size = task.size(split)
    if split != "train" and size is not None:
        count = min(count, size)
    examples = (task.example(split, i) for i in range(count))
    return [{"prompt": e.prompt, "task": e.task, "index": e.index} for e in examples]


def short_enough(asked: list[dict[str, Any]], tokenizer: Any) -> tuple[list[dict[str, Any]], int]:
    """The rows whose prompt has at most PROMPT tokens, and how many have more."""
    kept = [row for row in asked if len(tokenizer(row["prompt"])["input_ids"]) <= PROMPT]
    if not kept:
        raise ValueError(f"every prompt of the task has more than {PROMPT} tokens: use a task with shorter prompts")
    return kept, len(asked) - len(kept)


def write_job(config: TrainConfig, folder: Path, commands: list[str]) -> Path:
    """A run that is started elsewhere: the configuration, job.yaml, and a script that runs `commands`, run.sh.

    Paths are relative to the folder of the script, `$RUN`. The folder does not hold a run until the script has begun.
    """
    values = config.model_dump(mode="json")
    replace_file(folder / "job.yaml", yaml.safe_dump(values, sort_keys=False, allow_unicode=True))
    lines = [
        "#!/bin/sh",
        "# Written by `fspo train --dry-run`. The machine that runs it needs fspo with the same extras.",
        "set -eu",
        'RUN=$(cd "$(dirname "$0")" && pwd)',
        *commands,
    ]
    script = replace_file(folder / "run.sh", "\n".join(lines) + "\n")
    script.chmod(0o755)
    return script
