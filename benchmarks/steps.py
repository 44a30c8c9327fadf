"""One training step of fspo as the benchmarks time it: rollout, scoring, old log-probs, updates, metrics."""

from __future__ import annotations

import os
import random
import resource
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any, ClassVar

from fspo.config import TrainConfig
from fspo.tasks.procedural import Procedural


class Sums(Procedural):
    """Two-digit addition in words, for a pretrained chat model; about 50 tokens per prompt with SmolLM2."""

    name: ClassVar[str] = "sums"
    summary: ClassVar[str] = "two-digit addition, asked in words"

    n_min: int = 2
    n_max: int = 2

    def problem(self, rng: random.Random, n: int) -> tuple[str, str]:
        a, b = rng.randrange(10, 100), rng.randrange(10, 100)
        return f"What is {a} + {b}? Think step by step, then write the answer.", str(a + b)

    def score(self, example: Any, completion: str) -> float:
        return float(example.answer in completion)


class Chance(Procedural):
    """A reward of 0 or 1 by the parity of the answer's characters: it varies whatever the model can do."""

    name: ClassVar[str] = "chance"
    summary: ClassVar[str] = "reward by the parity of the answer"

    n_min: int = 4
    n_max: int = 40

    def problem(self, rng: random.Random, n: int) -> tuple[str, str]:
        return "".join(rng.choice("abcdefgh") for _ in range(n)) + "=", ""

    def score(self, example: Any, completion: str) -> float:
        return float(sum(map(ord, completion)) % 2)


def settings(model: str | Path, task: Any, prompts: int, group: int, limit: int, **changes: Any) -> TrainConfig:
    """GRPO with TRL's settings: 2 epochs of 2 minibatches, AdamW at a learning rate that hardly changes the lengths."""
    update = {"epochs": 2, "minibatches": 2, "lr": 1e-6, "schedule": "constant", "betas": (0.9, 0.999), **changes}
    return TrainConfig(
        model={"path": str(model)}, task=task, objective={"name": "grpo"}, advantage="grpo", steps=1000,
        rollout={"prompts": prompts, "group": group, "max_new_tokens": limit}, update=update,
    )  # fmt: skip


class Ours:
    """A step of fspo's own loop (`fspo.training.loop.train`) without writing files.

    Under torchrun the processes share the work, as those of a run with `processes=N`.
    """

    def __init__(self, config: TrainConfig, threads: int) -> None:
        from fspo import objectives, tasks
        from fspo.model.loading import load, set_threads
        from fspo.tasks.scoring import Scorer
        from fspo.training.processes import Team
        from fspo.training.update import Learner

        self.config, self.task = config, tasks.get(config.task)
        self.policy = load(config.model.path)
        set_threads(self.policy, threads)
        self.team = Team()
        if int(os.environ.get("WORLD_SIZE", "1")) > 1:
            from fspo.training import processes

            self.stack = ExitStack()
            self.team = self.stack.enter_context(processes.assembled(config, Path()))
        self.learner = Learner(self.policy, objectives.get(**config.objective), config, self.team)
        self.scorer = Scorer(self.task)
        self.count = self.next_index = 0

    def step(self) -> dict[str, float]:
        """One step: its numbers of tokens (each group's prompt counted once), times in seconds and mean reward."""
        from fspo.runs.recorder import Recorder
        from fspo.training.collect import collect
        from fspo.training.loop import rollout_metrics

        self.count += 1
        start, cpu = time.perf_counter(), time.process_time()
        experience, self.next_index = collect(
            self.policy, self.task, self.scorer, self.config, self.count, self.next_index, self.team
        )
        middle = time.perf_counter()
        recorder = Recorder()
        for update in self.learner.learn(experience, self.count):
            recorder.add(update)
        recorder.close(self.count, **rollout_metrics(experience))
        end = time.perf_counter()
        return {
            "tokens": sum(experience.lengths),
            "prompt": sum(map(len, experience.prompts)),
            "rollout": middle - start,
            "seconds": end - start,
            "cpu": time.process_time() - cpu,
            "reward": sum(experience.rewards) / len(experience.rewards),
            "without_gradient": sum(a == 0 for a in experience.advantages) / len(experience.advantages),
            "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        }
