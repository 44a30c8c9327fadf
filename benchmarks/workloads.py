"""What the speed benchmarks share: workloads with lengths as in measured runs, and one training step as they time it.

Answers can be given lengths, the same for every sampler: log-uniform, so that a few are long and most are short.
"""

from __future__ import annotations

import math
import os
import random
import resource
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from fspo import runtime

runtime.prepare()

from fspo.config import TrainConfig  # noqa: E402
from fspo.model.answers import Answers  # noqa: E402
from fspo.model.loading import Policy, load  # noqa: E402
from fspo.tasks.procedural import Procedural  # noqa: E402

COUNT = {"name": "count", "n_min": 4, "n_max": 40}

# --- lengths ----------------------------------------------------------------------------------------------------------


def log_uniform(count: int, shortest: int, longest: int, seed: int) -> list[int]:
    """Lengths in tokens, in random order; their mean is (longest - shortest) / log(longest / shortest).

    One from each of `count` equal parts of the distribution, so that every seed has almost the same mean.
    """
    rng = random.Random(seed)
    span = math.log(longest / shortest)
    result = [round(shortest * math.exp(span * (i + rng.random()) / count)) for i in range(count)]
    rng.shuffle(result)
    return result


class ForcedLanes:
    """While active, fspo's sampler ends each answer at its length and nowhere else; the last token is the end token."""

    def __init__(self) -> None:
        from fspo.rollout.generate import Lanes

        self.lengths: Sequence[int] = ()
        forced = self

        class Forced(Lanes):
            def _end(self, token: Any) -> None:
                import torch

                steps = len(self.columns)
                aims = torch.tensor([forced.lengths[self.streams[i]] for i in self.lanes])
                now = (self.start + steps >= aims) & self.alive
                for lane in now.nonzero().squeeze(1).tolist():
                    token[lane] = self.eos[0]
                    self.ends[lane] = steps
                    self.finished[self.lanes[lane]] = True
                    self.alive[lane] = False

        import fspo.rollout.generate as rollout

        rollout.Lanes = Forced  # type: ignore[misc]


def force_hugging_face(model_class: Any) -> Any:
    """Make `generate` of a transformers class end each row at its length; returns a holder with `lengths` to set."""
    import torch
    from transformers import LogitsProcessor, LogitsProcessorList

    class Holder:
        lengths: Sequence[int] = ()

    class Force(LogitsProcessor):
        def __init__(self, eos: int, prompt: int) -> None:
            self.eos, self.prompt = eos, prompt
            self.last = torch.tensor(Holder.lengths) - 1

        def __call__(self, ids: Any, scores: Any) -> Any:
            scores[:, self.eos] = -torch.inf
            now = self.last == ids.shape[1] - self.prompt
            scores[now] = -torch.inf
            scores[now, self.eos] = 0.0
            return scores

    plain = model_class.generate

    def generate(self: Any, *args: Any, **options: Any) -> Any:
        ids = options["input_ids"] if "input_ids" in options else args[0]
        eos = self.config.eos_token_id
        force = Force(eos[0] if isinstance(eos, list) else eos, ids.shape[1])
        return plain(self, *args, **options, logits_processor=LogitsProcessorList([force]))

    model_class.generate = generate
    return Holder


# --- random prompts and completions -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Workload:
    name: str
    prompts: int
    members: int
    prompt: tuple[int, int]  # shortest and longest prompt, in tokens
    mean: int  # mean completion length
    limit: int  # longest completion


TINY = Workload("tiny 4x128", prompts=16, members=8, prompt=(12, 48), mean=57, limit=128)
SMOL = Workload("SmolLM2-135M", prompts=4, members=8, prompt=(45, 55), mean=84, limit=96)


LONG = Workload("long, tiny 2x64", prompts=16, members=8, prompt=(12, 48), mean=420, limit=2048)


def lengths(work: Workload, seed: int) -> list[int]:
    """Of the completions of a rollout: log-uniform from 16 on for the long workload, else all at the limit."""
    rows = work.prompts * work.members
    return log_uniform(rows, 16, work.limit, seed) if work is LONG else [work.limit] * rows


def policies(smol: str | None) -> list[tuple[Workload, Policy]]:
    """Models with their workloads, but the long one."""
    pairs = [(TINY, load("tiny:4x128"))]
    if smol:
        pairs.append((SMOL, load(smol)))
    return pairs


def prompts(work: Workload, policy: Policy, seed: int = 0) -> list[list[int]]:
    rng = random.Random(seed)
    vocabulary = policy.model.config.vocab_size
    return [[rng.randrange(20, vocabulary) for _ in range(rng.randint(*work.prompt))] for _ in range(work.prompts)]


def batch(work: Workload, policy: Policy, seed: int = 0) -> Answers:
    """Completions whose lengths vary between and within groups, with the mean length of the workload."""
    rng = random.Random(seed)
    vocabulary = policy.model.config.vocab_size
    completions: list[list[int]] = []
    spread = min(work.mean, work.limit - work.mean)
    for _ in range(work.prompts):
        middle = work.mean + rng.uniform(-0.7, 0.7) * spread
        for _ in range(work.members):
            length = round(min(work.limit, max(2, middle + rng.uniform(-0.3, 0.3) * spread)))
            completions.append([rng.randrange(20, vocabulary) for _ in range(length)])
    group = [g for g in range(work.prompts) for _ in range(work.members)]
    return Answers(prompts(work, policy, seed), completions, group)


# --- a step of fspo ---------------------------------------------------------------------------------------------------


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
        from fspo.training.processes import ProcessTeam, Team
        from fspo.training.update import Learner

        self.config, self.task = config, tasks.get(config.task)
        self.policy = load(config.model.path)
        set_threads(self.policy, threads)
        self.team = Team()
        if int(os.environ.get("WORLD_SIZE", "1")) > 1:
            import torch.distributed as dist

            dist.init_process_group("gloo")
            self.team = ProcessTeam()
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
        answers, self.next_index = collect(
            self.policy, self.task, self.scorer, self.config, self.count, self.next_index, self.team
        )
        middle = time.perf_counter()
        recorder = Recorder()
        for update in self.learner.learn(answers, self.count):
            recorder.add(update)
        recorder.close(self.count, **rollout_metrics(answers))
        end = time.perf_counter()
        return {
            "tokens": sum(answers.lengths),
            "prompt": sum(map(len, answers.prompts)),
            "rollout": middle - start,
            "seconds": end - start,
            "cpu": time.process_time() - cpu,
            "reward": sum(answers.rewards) / len(answers.rewards),
            "without_gradient": sum(a == 0 for a in answers.advantages) / len(answers.advantages),
            "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        }
