"""One rollout made ready to learn from: prompts, answers, rewards, advantages and old log-probs."""

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
from fspo.local.batch import Batch, split
from fspo.local.config import TrainConfig
from fspo.local.forward import logprobs
from fspo.local.models import Policy
from fspo.local.prompts import decode, encode
from fspo.local.samplers import Sampler
from fspo.tasks import Task
from fspo.tasks.base import Example
from fspo.tasks.scoring import Scorer


@dataclass
class Experience:
    """Answers of one rollout, a group of neighbours a prompt."""

    prompts: list[list[int]]
    completions: list[list[int]]
    group: list[int]
    finished: list[bool]
    texts: list[str]
    rewards: list[float]  # nan where an answer could not be scored
    advantages: list[float]
    failures: dict[str, int]  # answers that could not be scored, by kind
    examples: list[dict[str, Any]]  # of each prompt: index, task, prompt, difficulty, attributes
    # (N, T): log-probs under the policy that sampled, nan where not computed yet.
    old: Tensor = field(default_factory=lambda: torch.empty(0))
    reference: Tensor | None = None

    @property
    def batch(self) -> Batch:
        return Batch(self.prompts, self.completions, self.group)

    @property
    def lengths(self) -> list[int]:
        return [len(c) for c in self.completions]

    def counts(self) -> GroupCounts:
        return advantages.count(torch.tensor(self.rewards, dtype=torch.float64), self.group)

    def to_json(self) -> dict[str, Any]:
        """Plain lists; a float32 survives the way through JSON unchanged."""
        values = dict(vars(self))
        values["old"] = self.old.tolist()
        values["reference"] = None if self.reference is None else self.reference.tolist()
        values["rewards"] = [None if math.isnan(r) else r for r in self.rewards]
        return values

    @classmethod
    def from_json(cls, values: dict[str, Any], device: torch.device) -> Experience:
        values = dict(values)
        values["rewards"] = [math.nan if r is None else r for r in values["rewards"]]
        for key in ("old", "reference"):
            if values[key] is not None:
                values[key] = torch.tensor(values[key], dtype=torch.float32, device=device)
        return cls(**values)


def collect(
    policy: Policy, sampler: Sampler, task: Task, scorer: Scorer, config: TrainConfig, step: int, next_index: int
) -> tuple[Experience, int]:
    """Sample and score the answers of a step; returns the index of the next prompt that nobody has seen.

    With `rollout.dynamic`, groups whose rewards are all equal are replaced by new prompts, that many times at most.
    """
    settings = config.rollout
    kept: list[tuple[Example, list[int], list[list[int]], list[bool], list[str], list[float]]] = []
    wanted = settings.prompts
    failures: Counter[str] = Counter()
    sampler.sync(policy)
    for attempt in range(settings.dynamic + 1):
        examples = [task.example("train", next_index + i) for i in range(wanted)]
        next_index += wanted
        ids = encode(policy, examples, config.model.chat)
        seed = _seed(config.seed, step, attempt)
        n = settings.group
        rollout = sampler.generate(
            ids, n, max_new_tokens=settings.max_new_tokens, temperature=settings.temperature, seed=seed
        )
        texts = decode(policy, rollout.completions)
        asked = [e for e in examples for _ in range(n)]
        scores = scorer.score(asked, texts)
        failures.update(s.failure for s in scores if s.failure)
        rewards = [math.nan if s.value is None else s.value for s in scores]
        groups = [
            (examples[g], ids[g], rollout.completions[a : a + n], rollout.finished[a : a + n], texts[a : a + n],
             rewards[a : a + n])
            for g, a in enumerate(range(0, len(asked), n))
        ]  # fmt: skip
        last = attempt == settings.dynamic
        fresh = [group for group in groups if last or len({r for r in group[5] if not math.isnan(r)}) > 1]
        kept += fresh
        wanted = settings.prompts - len(kept)
        if wanted <= 0:
            break
    return _assemble(kept, dict(failures), config), next_index


def _assemble(groups: Sequence[tuple[Any, ...]], failures: dict[str, int], config: TrainConfig) -> Experience:
    n = config.rollout.group
    group = [g for g in range(len(groups)) for _ in range(n)]
    completions = [c for g in groups for c in g[2]]
    rewards = [r for g in groups for r in g[5]]
    lengths = torch.tensor([len(c) for c in completions])
    estimate = advantages.get(config.advantage)
    values = estimate(torch.tensor(rewards, dtype=torch.float64), group, lengths=lengths)
    return Experience(
        prompts=[g[1] for g in groups],
        completions=completions,
        group=group,
        finished=[f for g in groups for f in g[3]],
        texts=[t for g in groups for t in g[4]],
        rewards=rewards,
        advantages=values.tolist(),
        failures=failures,
        examples=[
            {
                "index": g[0].index, "task": g[0].task, "prompt": g[0].prompt, "difficulty": g[0].difficulty,
                "attributes": json.dumps(g[0].attributes, sort_keys=True),
            }
            for g in groups
        ],
    )  # fmt: skip


def group_order(groups: int, parts: int, seed: Sequence[int]) -> list[list[int]]:
    """Whole groups dealt into `parts` minibatches at random; the same seed gives the same deal."""
    generator = torch.Generator().manual_seed(_seed(*seed))
    order = torch.randperm(groups, generator=generator)
    return [part.tolist() for part in torch.tensor_split(order, min(parts, groups))]


@torch.no_grad()
def policy_logprobs(policy: Policy, batch: Batch, temperature: float, token_budget: int) -> Tensor:
    """(N, T) log-probs of a batch under a policy, micro-batch by micro-batch; nan where there is no token."""
    result: Tensor | None = None
    for part, places in split(batch, token_budget):
        out = logprobs(policy, part, temperature)
        if result is None:
            result = out.logprobs.new_full((len(batch), max(batch.lengths)), math.nan)
        values = torch.where(out.mask, out.logprobs, math.nan)
        result[places.to(result.device), : values.shape[1]] = values
    assert result is not None
    return result


def _seed(*parts: int) -> int:
    """One seed from several numbers, different for different numbers."""
    value = 0
    for part in parts:
        value = (value * 1_000_003 + part + 1) % (2**62)
    return value
