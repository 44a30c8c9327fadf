"""A run small enough to repeat: a one-layer model, warmed up on short sorting so that rewards vary."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fspo import tasks
from fspo.local.config import read
from fspo.local.warmup import warm_start

TASK = "task={name: sort, n_min: 2, n_max: 8, letters: 4}"
SETTINGS = [
    TASK,
    "objective=fspo",
    "warmup=null",
    "steps=6",
    "rollout.prompts=8",
    "rollout.group=4",
    "rollout.max_new_tokens=10",
    "update.minibatches=2",
    "update.lr=0.0002",
    "update.schedule=constant",
    "eval.prompts=16",
    "eval.every=3",
    "checkpoint.every=2",
]


@pytest.fixture(scope="session")
def small(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Settings of a small run, from a model that solves some of its prompts."""
    cache = os.environ.get("FSPO_CACHE")
    os.environ["FSPO_CACHE"] = str(tmp_path_factory.mktemp("cache"))
    warm = ["model.path=tiny:1x32", "warmup={solved: 0.2, max_steps: 400, check_every: 10, prompts: 128}"]
    config = read(None, [*SETTINGS, *warm])
    folder = warm_start(config, tasks.get(config.task))
    os.environ.pop("FSPO_CACHE")
    if cache is not None:
        os.environ["FSPO_CACHE"] = cache
    return [*SETTINGS, f"model.path={folder}"]


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FSPO_CACHE", str(tmp_path / "cache"))
