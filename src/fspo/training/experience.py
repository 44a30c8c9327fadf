"""From prompts to scored answers: the rollout of a step, with its rewards and advantages, ready to learn from."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from fspo import advantages
from fspo.advantages import GroupCounts
from fspo.config import TrainConfig
from fspo.model.completions import Completions
from fspo.model.loading import Policy
from fspo.rollout.generate import check_request
from fspo.rollout.prompts import decode, encode
from fspo.rollout.samplers import Sampler
from fspo.tasks import Task
from fspo.tasks.scoring import Score, Scorer, first_messages
from fspo.tasks.task import Example
from fspo.training.old_logprobs import OldLogProbs
from fspo.training.team import Team

MOST_CHECKED = 20_000  # prompts of a data set that are encoded before a run begins: seconds


@dataclass(frozen=True)
class Group:
    """One prompt with its sampled and scored answers."""

    example: Example
    prompt: list[int]
    completions: list[list[int]]
    finished: list[bool]
    texts: list[str]
    rewards: list[float]  # NaN where an answer could not be scored
    sampler_logprobs: list[list[float]] | None  # of a sampler that is not the trainer's own model
    failures: list[Score]  # of the answers that could not be scored

    @property
    def varies(self) -> bool:
        """Whether the rewards differ, so that the group has a gradient."""
        return len({reward for reward in self.rewards if not math.isnan(reward)}) > 1


@dataclass
class Experience:
    """Answers of one rollout; those to the same prompt are neighbours."""

    prompts: list[list[int]]
    completions: list[list[int]]
    group: list[int]  # the prompt of each answer
    finished: list[bool]
    texts: list[str]
    rewards: list[float]  # NaN where an answer could not be scored
    advantages: list[float]
    failures: dict[str, int]  # answers that could not be scored, by kind
    examples: list[dict[str, Any]]  # of each prompt: index, task, prompt, difficulty, attributes
    sampler_logprobs: list[list[float]] | None = None
    old: OldLogProbs | None = None  # None until they are first needed
    reference: Tensor | None = None  # (N, T) log-probs under the reference policy, NaN where there is no token
    failure_messages: dict[str, str] = field(default_factory=dict)  # the first of each kind

    @property
    def batch(self) -> Completions:
        return Completions(self.prompts, self.completions, self.group)

    @property
    def lengths(self) -> list[int]:
        return [len(c) for c in self.completions]

    @property
    def members(self) -> list[list[int]]:
        """The answers of each prompt."""
        found: list[list[int]] = [[] for _ in self.prompts]
        for i, g in enumerate(self.group):
            found[g].append(i)
        return found

    def counts(self) -> GroupCounts:
        return advantages.count(torch.tensor(self.rewards, dtype=torch.float64), self.group)

    def to_json(self) -> dict[str, Any]:
        """Plain lists, for a checkpoint."""
        values = dict(vars(self))
        values["old"] = None if self.old is None else self.old.to_json()
        values["reference"] = None if self.reference is None else self.reference.tolist()
        values["rewards"] = [None if math.isnan(r) else r for r in self.rewards]
        return values

    @classmethod
    def from_json(cls, values: dict[str, Any], device: torch.device) -> Experience:
        values = dict(values)
        values["rewards"] = [math.nan if r is None else r for r in values["rewards"]]
        if values["old"] is not None:
            values["old"] = OldLogProbs.from_json(values["old"], device)
        if values["reference"] is not None:
            values["reference"] = torch.tensor(values["reference"], dtype=torch.float32, device=device)
        return cls(**values)


def collect(
    policy: Policy,
    sampler: Sampler,
    task: Task,
    scorer: Scorer,
    config: TrainConfig,
    step: int,
    next_index: int,
    team: Team | None = None,
) -> tuple[Experience, int]:
    """Sample and score the answers of a step; also returns the index of the next unseen prompt.

    With `rollout.dynamic`, groups whose rewards are all equal are replaced by new prompts, that many times at most.
    Each process of a team samples and scores the answers to its share of the prompts, and all of them return the same.
    """
    settings, team = config.rollout, team or Team()
    kept: list[Group] = []
    failures: Counter[str] = Counter()
    messages: dict[str, str] = {}
    sampler.sync(policy)
    for attempt in range(settings.dynamic + 1):
        wanted = settings.prompts - len(kept)
        if wanted <= 0:
            break
        examples = [task.example("train", next_index + i) for i in range(wanted)]
        next_index += wanted
        seed = combined_seed(config.seed, step, attempt)
        places = team.dealt(range(wanted))
        own = _sampled(policy, sampler, scorer, [examples[i] for i in places], config, seed, places) if places else []
        groups = team.collected(own)
        failed = [score for group in groups for score in group.failures]
        failures.update(score.failure for score in failed if score.failure)
        messages = first_messages(failed) | messages
        kept += [group for group in groups if group.varies or attempt == settings.dynamic]
    sampled = _assembled(kept, dict(failures), config.advantage)
    sampled.failure_messages = messages
    return sampled, next_index


def check_prompts(config: TrainConfig, policy: Policy, task: Task, held_out: Task) -> None:
    """Refuse prompts that the model cannot take, before the run begins: those that it will ask of a data set, and those
    of the first step where prompts are generated."""
    for asked, split, count, first in (
        (task, "train", config.steps * config.rollout.prompts, config.rollout.prompts),
        (held_out, config.eval.split, config.eval.prompts, config.eval.prompts),
    ):
        size = asked.size(split)
        known = first if size is None else min(count, size, MOST_CHECKED)
        examples = [asked.example(split, i) for i in range(known)]
        check_request(encode(policy, examples, config.model.chat), 1, config.rollout.max_new_tokens, policy.context)


def _sampled(
    policy: Policy,
    sampler: Sampler,
    scorer: Scorer,
    examples: list[Example],
    config: TrainConfig,
    seed: int,
    places: Sequence[int],
) -> list[Group]:
    """A group of answers per example; `places` are those of the examples in the request of all processes."""
    settings, n = config.rollout, config.rollout.group
    ids = encode(policy, examples, config.model.chat)
    with scorer.batch([example for example in examples for _ in range(n)]) as scoring:

        def ended(answers: dict[int, list[int]]) -> None:
            """Score answers in other processes while the rest is being sampled."""
            scoring.add(dict(zip(answers, decode(policy, list(answers.values())), strict=True)))

        rollout = sampler.generate(
            ids, n, max_new_tokens=settings.max_new_tokens, temperature=settings.temperature, seed=seed,
            places=places, watch=ended if scoring.overlaps else None,
        )  # fmt: skip
        texts = decode(policy, rollout.completions)
        scores = scoring.finish(texts)
    rewards = [math.nan if score.value is None else score.value for score in scores]
    groups = []
    for g, example in enumerate(examples):
        part = slice(g * n, (g + 1) * n)
        sampled = None if rollout.logprobs is None else rollout.logprobs[part]
        failed = [score for score in scores[part] if score.failure]
        groups.append(
            Group(
                example, ids[g], rollout.completions[part], rollout.finished[part], texts[part], rewards[part],
                sampled, failed,
            )
        )  # fmt: skip
    return groups


def _assembled(groups: Sequence[Group], failures: dict[str, int], advantage: str) -> Experience:
    group = [g for g, each in enumerate(groups) for _ in each.completions]
    completions = [c for each in groups for c in each.completions]
    rewards = [r for each in groups for r in each.rewards]
    lengths = torch.tensor([len(c) for c in completions])
    values = advantages.get(advantage)(torch.tensor(rewards, dtype=torch.float64), group, lengths=lengths)
    sampled = [row for each in groups for row in each.sampler_logprobs or []]
    return Experience(
        prompts=[each.prompt for each in groups],
        completions=completions,
        group=group,
        finished=[f for each in groups for f in each.finished],
        texts=[t for each in groups for t in each.texts],
        rewards=rewards,
        advantages=values.tolist(),
        failures=failures,
        examples=[
            {
                "index": each.example.index,
                "task": each.example.task,
                "prompt": each.example.prompt,
                "difficulty": each.example.difficulty,
                "attributes": json.dumps(each.example.attributes, sort_keys=True),
            }
            for each in groups
        ],
        sampler_logprobs=sampled or None,
    )


def group_order(groups: int, parts: int, seed: Sequence[int]) -> list[list[int]]:
    """Whole groups dealt into `parts` minibatches at random; the same seed gives the same deal."""
    generator = torch.Generator().manual_seed(combined_seed(*seed))
    order = torch.randperm(groups, generator=generator)
    return [part.tolist() for part in torch.tensor_split(order, min(parts, groups))]


def combined_seed(*parts: int) -> int:
    """One seed from several numbers, different for different numbers."""
    value = 0
    for part in parts:
        value = (value * 1_000_003 + part + 1) % (2**62)
    return value
