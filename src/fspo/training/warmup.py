"""Supervised start, for a model that solves nothing yet and so has no reward to learn from.

Trains on worked solutions until a wanted share of validation prompts is solved, and keeps the result in a cache, so
that every run with the same settings starts from the same weights. The cache is keyed by everything that decides those
weights: settings, the solutions themselves, the files of the model, and the versions of torch and of the procedure.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from fspo.config import TrainConfig, WarmupConfig
from fspo.files import json_text, replace_file
from fspo.model.answers import Answers
from fspo.model.forward import logprobs
from fspo.model.loading import Policy, load, save, set_threads
from fspo.rollout.generate import encode, encode_solution
from fspo.tasks import Task
from fspo.tasks.scoring import Scorer
from fspo.tasks.task import Example
from fspo.training.evaluate import evaluate
from fspo.training.processes import Team

FIRST_SOLUTION = 10_000_000  # index of the first worked solution, so that the run's own prompts are new to the model
VERSION = 4  # of this procedure and of the `tiny:` models: raise it when either gives other weights

Progress = Callable[[int, int, float], None]  # steps done, most steps, share solved


def warm_start(config: TrainConfig, task: Task, progress: Progress | None = None, team: Team | None = None) -> str:
    """The folder of the warmed-up model, made now if it is not in the cache, by all processes of a team together.

    The cache is the folder FSPO_CACHE, or one in the user's own.
    """
    assert config.warmup is not None
    team = team or Team()
    settings: dict[str, Any] = {
        "version": VERSION,
        "torch": torch.__version__,
        "instructions": torch.backends.cpu.get_cpu_capability(),  # other kernels give other digits
        "model": config.model.model_dump(mode="json", include={"path", "dtype", "threads"}),
        "files": _files(Path(config.model.path)),
        "task": config.task if isinstance(config.task, str | dict | list) else task.model_dump(mode="json"),
        "solutions": [[e.prompt, e.solution] for e in _solutions(task, 0, config.warmup.batch)],
        "warmup": config.warmup.model_dump(mode="json"),
        "max_new_tokens": config.rollout.max_new_tokens,
        "seed": config.seed,
        "processes": team.size,
    }
    home = os.environ.get("FSPO_CACHE") or Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "fspo"
    folder = Path(home) / "warm" / hashlib.sha256(json_text(settings).encode()).hexdigest()[:16]
    if not team.broadcast((folder / "warmup.json").is_file()):
        policy = load(config.model.path, device=config.model.device, seed=config.seed)
        set_threads(policy, config.model.threads, team.size)
        with Scorer(task, **config.scoring.model_dump()) as scorer:
            history = fit(
                policy, task, scorer, config.warmup, config.rollout.max_new_tokens, config.seed, progress, team
            )
        if team.is_main:
            folder.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:  # never a partial model
                made = Path(scratch) / "model"
                save(policy, made)
                replace_file(made / "warmup.json", json_text({"settings": settings, "history": history}, indent=1))
                if not folder.exists():
                    os.replace(made, folder)
    return team.broadcast(str(folder))


def fit(
    policy: Policy,
    task: Task,
    scorer: Scorer,
    config: WarmupConfig,
    max_new_tokens: int,
    seed: int,
    progress: Progress | None = None,
    team: Team | None = None,
) -> list[dict[str, float]]:
    """Cross-entropy on worked solutions until `config.solved` of validation prompts is solved by sampling."""
    team = team or Team()
    optimizer = torch.optim.AdamW(policy.trainable(), lr=config.lr, betas=(0.9, 0.95), weight_decay=0.01)
    history: list[dict[str, float]] = []
    rise = min(50, config.max_steps)
    for step in range(config.max_steps):
        for group in optimizer.param_groups:
            group["lr"] = config.lr * min(1.0, (step + 1) / rise)
        examples = _solutions(task, step, config.batch)
        prompts, solutions = encode(policy, examples), [encode_solution(policy, e) for e in examples]
        batch = Answers(prompts, solutions, list(range(len(examples))))
        optimizer.zero_grad(set_to_none=True)
        loss = 0.0
        if own := team.share([len(p) + len(s) for p, s in zip(prompts, solutions, strict=True)]):
            mean = -logprobs(policy, batch.select(own)).logprobs.sum() / batch.tokens
            mean.backward()
            loss = float(mean.detach())
        team.sum_gradients(policy.trainable())
        torch.nn.utils.clip_grad_norm_(policy.trainable(), 1.0)
        optimizer.step()
        if (step + 1) % config.check_every == 0 or step + 1 == config.max_steps:
            solved = evaluate(
                policy, task, scorer, split="validation", prompts=config.prompts, max_new_tokens=max_new_tokens,
                temperature=1.0, seed=seed, team=team,
            ).accuracy or 0.0  # fmt: skip
            history.append({"step": step + 1, "loss": sum(team.total([loss])), "solved": solved})
            if progress is not None:
                progress(step + 1, config.max_steps, solved)
            if solved >= config.solved:
                break
    return history


def _solutions(task: Task, step: int, batch: int) -> list[Example]:
    """The worked solutions of a step."""
    return [task.example("train", FIRST_SOLUTION + step * batch + i) for i in range(batch)]


def _files(path: Path) -> list[tuple[str, int, int]]:
    """Name, size and time of the files of a model on disk; none for a preset or a hub name."""
    files = sorted(path.iterdir()) if path.is_dir() else [path] if path.is_file() else []
    return [(file.name, file.stat().st_size, file.stat().st_mtime_ns) for file in files]
