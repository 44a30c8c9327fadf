"""The workloads of the speed benchmarks: random prompts and completions with lengths as in measured runs."""

from __future__ import annotations

import random
from dataclasses import dataclass

from forced import log_uniform
from fspo.model.answers import Answers
from fspo.model.loading import Policy, load


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
    vocabulary = policy.base().config.vocab_size
    return [[rng.randrange(20, vocabulary) for _ in range(rng.randint(*work.prompt))] for _ in range(work.prompts)]


def batch(work: Workload, policy: Policy, seed: int = 0) -> Answers:
    """Completions whose lengths vary between and within groups, with the mean length of the workload."""
    rng = random.Random(seed)
    vocabulary = policy.base().config.vocab_size
    completions: list[list[int]] = []
    spread = min(work.mean, work.limit - work.mean)
    for _ in range(work.prompts):
        middle = work.mean + rng.uniform(-0.7, 0.7) * spread
        for _ in range(work.members):
            length = round(min(work.limit, max(2, middle + rng.uniform(-0.3, 0.3) * spread)))
            completions.append([rng.randrange(20, vocabulary) for _ in range(length)])
    group = [g for g in range(work.prompts) for _ in range(work.members)]
    return Answers(prompts(work, policy, seed), completions, group)
