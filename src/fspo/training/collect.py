"""From prompts to scored answers: samples and scores the rollout of a step, and computes its advantages."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence

import torch

from fspo import advantages
from fspo.config import TrainConfig
from fspo.model.answers import Answers
from fspo.model.loading import Policy
from fspo.rollout.generate import decode, encode, generate
from fspo.tasks import Task
from fspo.tasks.scoring import Scorer, failures, first_messages
from fspo.tasks.task import Example
from fspo.training.processes import Team


def collect(
    policy: Policy, task: Task, scorer: Scorer, config: TrainConfig, step: int, next_index: int, team: Team
) -> tuple[Answers, int]:
    """Sample and score the answers of a step; also returns the index of the next unseen prompt.

    Each process of a team samples and scores the answers to its share of the prompts, and all of them return the same.
    """
    prompts = config.rollout.prompts
    indices = team.scatter(range(prompts))
    examples = [task.example("train", next_index + i) for i in indices]
    own = _sampled(policy, scorer, examples, config, combined_seed(config.seed, step, 0), indices) if indices else []
    answers = Answers.join(team.unscatter(own))
    rewards, lengths = torch.tensor(answers.rewards, dtype=torch.float64), torch.tensor(answers.lengths)
    answers.advantages = advantages.get(config.advantage)(rewards, answers.group, lengths=lengths).tolist()
    return answers, next_index + prompts


def _sampled(
    policy: Policy, scorer: Scorer, examples: list[Example], config: TrainConfig, seed: int, indices: Sequence[int]
) -> list[Answers]:
    """The answers to each example; `indices` are those of the examples in the request of all processes."""
    settings, n = config.rollout, config.rollout.group
    ids = encode(policy, examples, config.model.chat)
    sampled = generate(
        policy, ids, n, max_new_tokens=settings.max_new_tokens, temperature=settings.temperature, seed=seed,
        indices=indices,
    )  # fmt: skip
    texts = decode(policy, sampled.completions)
    scores = scorer.score([example for example in examples for _ in range(n)], texts)
    groups = []
    for g, example in enumerate(examples):
        part = slice(g * n, (g + 1) * n)
        described = {
            "index": example.index,
            "task": example.task,
            "prompt": example.prompt,
            "difficulty": example.difficulty,
            "attributes": json.dumps(example.attributes, sort_keys=True),
        }
        groups.append(
            Answers(
                prompts=[ids[g]],
                completions=sampled.completions[part],
                group=[0] * n,
                finished=sampled.finished[part],
                texts=texts[part],
                rewards=[math.nan if score.value is None else score.value for score in scores[part]],
                examples=[described],
                failures=failures(scores[part]),
                failure_messages=first_messages(scores[part]),
            )
        )
    return groups


def combined_seed(*parts: int) -> int:
    """One seed from several numbers, different for different numbers."""
    value = 0
    for part in parts:
        value = (value * 1_000_003 + part + 1) % (2**62)
    return value
