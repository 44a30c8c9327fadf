"""The answers of a rollout, the one type from sampling to the optimiser step, and their split into micro-batches."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import torch
from torch import Tensor

PER_PROMPT = ("prompts", "examples")
PER_ANSWER = ("completions", "finished", "texts", "rewards", "advantages", "sampler_logprobs")


@dataclass
class Answers:
    """Answers to prompts, as token ids without padding; `prompts[group[i]]` is the prompt of `completions[i]`.

    The first three fields are all that a forward pass needs. Sampling adds `finished`, scoring `texts`, `rewards`,
    `examples` and failures, then come the advantages and the log-probs that updates need. A finished answer ends with
    its end-of-sequence token, which is trained like any other; a truncated one has none.
    """

    prompts: list[list[int]]
    completions: list[list[int]]
    group: list[int]
    finished: list[bool] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    rewards: list[float] = field(default_factory=list)  # NaN where an answer could not be scored
    examples: list[dict[str, Any]] = field(default_factory=list)  # of each prompt: index, task, prompt, difficulty, ...
    failures: dict[str, int] = field(default_factory=dict)  # answers that could not be scored, by kind
    failure_messages: dict[str, str] = field(default_factory=dict)  # the first message of each kind
    advantages: list[float] = field(default_factory=list)
    sampler_logprobs: list[list[float]] = field(default_factory=list)  # of a sampler that differs from the trainer
    reference: Tensor | None = None  # (N, T) log-probs under the reference policy, 0 where there is no token
    old: Tensor | None = None  # (N, T) likewise under the policy that sampled, pi_old; None until the first update

    def __post_init__(self) -> None:
        if not self.completions or len(self.completions) != len(self.group):
            raise ValueError(f"{len(self.completions)} completions have {len(self.group)} group indices: give one each")
        if not all(self.completions) or not all(self.prompts):
            raise ValueError("a completion or a prompt is empty: leave it out of the batch")

    def __len__(self) -> int:
        return len(self.completions)

    @property
    def lengths(self) -> list[int]:
        return [len(c) for c in self.completions]

    @property
    def tokens(self) -> int:
        """The number of completion tokens, which are the trained ones."""
        return sum(self.lengths)

    @property
    def members(self) -> list[list[int]]:
        """The indices of the answers to each prompt."""
        members: list[list[int]] = [[] for _ in self.prompts]
        for i, g in enumerate(self.group):
            members[g].append(i)
        return members

    def select(self, indices: Sequence[int]) -> Answers:
        """The tokens of these answers, in this order, with only the prompts they use: a batch for a forward pass."""
        used = list(dict.fromkeys(self.group[i] for i in indices))
        position = {g: j for j, g in enumerate(used)}
        return Answers(
            [self.prompts[g] for g in used],
            [self.completions[i] for i in indices],
            [position[self.group[i]] for i in indices],
        )

    @classmethod
    def join(cls, parts: Iterable[Answers]) -> Answers:
        """The sampled and scored answers of several parts, in their order."""
        parts = list(parts)
        first = [sum(len(part.prompts) for part in parts[:k]) for k in range(len(parts))]
        messages: dict[str, str] = {}
        for part in parts:
            messages = part.failure_messages | messages
        lists: dict[str, Any] = {
            name: [x for part in parts for x in getattr(part, name)] for name in (*PER_PROMPT, *PER_ANSWER)
        }
        return cls(
            group=[start + g for start, part in zip(first, parts, strict=True) for g in part.group],
            failures=dict(sum((Counter(part.failures) for part in parts), Counter())),
            failure_messages=messages,
            **lists,
        )

    def to_json(self) -> dict[str, Any]:
        """Plain lists, for a checkpoint. A float32 survives the way through JSON unchanged."""
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        values["rewards"] = [None if math.isnan(r) else r for r in self.rewards]
        for name in ("reference", "old"):
            values[name] = None if values[name] is None else values[name].tolist()
        return values

    @classmethod
    def from_json(cls, values: dict[str, Any], device: torch.device) -> Answers:
        values = dict(values)
        values["rewards"] = [math.nan if r is None else r for r in values["rewards"]]
        for name in ("reference", "old"):
            if values[name] is not None:
                values[name] = torch.tensor(values[name], dtype=torch.float32, device=device)
        return cls(**values)


def split(answers: Answers, token_budget: int) -> list[tuple[Answers, Tensor]]:
    """Micro-batches of at most `token_budget` tokens (a prompt counts once per group), and their indices in `answers`.

    A group that fits stays together, because its prompt is then computed once; a larger group is split by length.
    Groups are ordered by their longest member, so that a micro-batch needs little padding. An answer that exceeds the
    budget by itself is a micro-batch of its own.
    """
    lengths = answers.lengths
    pieces: list[tuple[list[int], int]] = []  # answers of one group, and their tokens with the prompt
    for g, indices in enumerate(answers.members):
        if not indices:
            continue
        prompt = len(answers.prompts[g])
        indices.sort(key=lambda i: (-lengths[i], i))
        piece, cost = [indices[0]], prompt + lengths[indices[0]]
        for i in indices[1:]:
            if cost + lengths[i] > token_budget:
                pieces.append((piece, cost))
                piece, cost = [], prompt
            piece.append(i)
            cost += lengths[i]
        pieces.append((piece, cost))
    pieces.sort(key=lambda p: (-lengths[p[0][0]], p[0][0]))
    batches: list[list[int]] = []
    left = 0
    for piece, cost in pieces:
        if not batches or cost > left:
            batches.append([])
            left = token_budget
        batches[-1] += piece
        left -= cost
    return [(answers.select(batch), torch.tensor(batch)) for batch in batches]
