"""verl's reward function for runs of `fspo train --engine verl`; verl loads this file by its path."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

from fspo import config as configuration
from fspo import tasks
from fspo.tasks.scoring import Scorer


def compute_score(
    data_source: str, solution_str: str, ground_truth: str, extra_info: Any = None, folder: str = "", **_: Any
) -> dict[str, float]:
    """The reward of an answer by the task of the run in `folder`. verl has no missing rewards: an answer that could not
    be scored gets 0, and is counted in `unscored`."""
    split, index = json.loads(ground_truth)
    task, scorer = _scorer(folder, split)
    value = scorer.score([task.example(split, index)], [solution_str])[0].value
    return {"score": value or 0.0, "acc": float(value is not None and value >= 1), "unscored": float(value is None)}


@functools.cache
def _scorer(folder: str, split: str) -> tuple[tasks.Task, Scorer]:
    """The task of a run, and a scorer that lives as long as this process."""
    config = configuration.read(Path(folder) / "config.yaml", [])
    task = tasks.get(config.task if split == "train" else config.eval_task)
    return task, Scorer(task, 1, config.scoring.timeout, config.scoring.memory_mb)
