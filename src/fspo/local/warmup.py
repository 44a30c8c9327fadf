"""Supervised start: a model that solves nothing has nothing to reinforce.

Trains on worked solutions until a wanted share of validation prompts is solved, and keeps the result in a cache, so
that every run from the same settings starts from the same weights.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from fspo.local.batch import Batch
from fspo.local.config import TrainConfig, WarmupConfig
from fspo.local.evaluate import evaluate
from fspo.local.forward import logprobs
from fspo.local.models import Policy, load, save, set_threads
from fspo.local.prompts import encode, encode_solution
from fspo.tasks import Task
from fspo.tasks.scoring import Scorer

ELSEWHERE = 10_000_000  # solutions come from here on, so that the run's own prompts are new to the model
VERSION = 3  # of the procedure: a change of it makes cached starts stale

Progress = Callable[[int, int, float], None]  # steps done, most steps, share solved


def cache_folder() -> Path:
    """Where warm starts are kept: FSPO_CACHE, or the user's cache folder."""
    home = os.environ.get("FSPO_CACHE") or Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "fspo"
    return Path(home) / "warm"


def warm_start(config: TrainConfig, task: Task, progress: Progress | None = None) -> str:
    """The folder of the warmed-up model, made now if it is not in the cache."""
    assert config.warmup is not None
    settings: dict[str, Any] = {
        "version": VERSION,
        "model": config.model.model_dump(mode="json", include={"path", "dtype"}),
        "task": config.task if isinstance(config.task, str | dict | list) else task.model_dump(mode="json"),
        "warmup": config.warmup.model_dump(mode="json"),
        "max_new_tokens": config.rollout.max_new_tokens,
        "seed": config.seed,
        "torch": torch.__version__,
    }
    key = hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:16]
    folder = cache_folder() / key
    if not (folder / "warmup.json").is_file():
        policy = load(config.model.path, dtype=config.model.dtype, device=config.model.device, seed=config.seed)
        set_threads(policy, config.model.threads)
        with Scorer(task, config.scoring.workers, config.scoring.timeout, config.scoring.memory_mb) as scorer:
            history = fit(policy, task, scorer, config.warmup, config.rollout.max_new_tokens, config.seed, progress)
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
            made = Path(scratch) / "model"
            save(policy, made)
            (made / "warmup.json").write_text(json.dumps({"settings": settings, "history": history}, indent=1))
            if not folder.exists():
                os.replace(made, folder)
    return str(folder)


def fit(
    policy: Policy,
    task: Task,
    scorer: Scorer,
    config: WarmupConfig,
    max_new_tokens: int,
    seed: int,
    progress: Progress | None = None,
) -> list[dict[str, float]]:
    """Cross-entropy on worked solutions until `config.solved` of validation prompts is solved by sampling."""
    optimizer = torch.optim.AdamW(policy.trainable(), lr=config.lr, betas=(0.9, 0.95), weight_decay=0.01)
    history: list[dict[str, float]] = []
    rise = min(50, config.max_steps)
    for step in range(config.max_steps):
        for group in optimizer.param_groups:
            group["lr"] = config.lr * min(1.0, (step + 1) / rise)
        examples = [task.example("train", ELSEWHERE + step * config.batch + i) for i in range(config.batch)]
        batch = Batch(encode(policy, examples), [encode_solution(policy, e) for e in examples], range(len(examples)))
        out = logprobs(policy, batch)
        loss = -out.logprobs.sum() / out.mask.sum()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(policy.trainable(), 1.0)
        optimizer.step()
        if (step + 1) % config.check_every == 0 or step + 1 == config.max_steps:
            found = evaluate(
                policy, task, scorer, split="validation", prompts=config.prompts, max_new_tokens=max_new_tokens,
                temperature=1.0, seed=seed,
            )  # fmt: skip
            history.append({"step": step + 1, "loss": float(loss.detach()), "solved": found.accuracy})
            if progress is not None:
                progress(step + 1, config.max_steps, found.accuracy)
            if found.accuracy >= config.solved:
                break
    return history
