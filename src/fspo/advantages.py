"""Advantages: one number per answer, from the rewards of the group of answers to the same prompt.

>>> import torch, fspo
>>> fspo.advantages.get("rloo")(torch.tensor([1.0, 0.0, 0.0, 1.0, 1.0]), [0, 0, 0, 1, 1])  # (N,), (N,) -> (N,)
tensor([ 1.0000, -0.5000, -0.5000,  0.0000,  0.0000])

A reward of NaN means that the answer could not be scored: it is left out of every baseline and gets advantage 0.
A group with one scored answer has no baseline, and one whose rewards are all equal no signal: both get exactly 0.
`count` returns how many of each there are. (verl gives a single answer its raw reward; TRL gives it 0, as here.)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from fspo.objectives.batch import widened
from fspo.settings import hint
from fspo.tensors import Tensor, torch

__all__ = ["Estimator", "GroupCounts", "count", "dr_grpo", "get", "grpo", "max_rl", "names", "opo", "rloo"]


class Estimator(Protocol):
    """Advantages (N,) from rewards (N,) and the group of each answer (N,)."""

    def __call__(self, rewards: Tensor, groups: Tensor | Sequence[int], *, lengths: Tensor | None = None) -> Tensor: ...


@dataclass(frozen=True)
class GroupCounts:
    """How much of a batch of groups carries a signal."""

    groups: int
    single: int  # groups with fewer than two scored answers
    without_variance: int  # groups of two or more whose rewards are all equal
    unscored: int  # answers without a reward


class _Groups:
    """Sums over groups, of scored answers only."""

    def __init__(self, rewards: Tensor, groups: Tensor | Sequence[int]) -> None:
        if not isinstance(rewards, torch.Tensor) or not rewards.is_floating_point() or rewards.dim() != 1:
            raise ValueError("rewards must be a floating-point tensor of shape (N,)")
        rewards = widened(rewards)
        try:
            groups = torch.as_tensor(groups, device=rewards.device)
        except (TypeError, ValueError):
            groups = rewards.new_zeros(0)
        if groups.shape != rewards.shape or groups.is_floating_point():
            raise ValueError(f"groups must be {len(rewards)} whole numbers, one per reward")
        if torch.isinf(rewards).any():
            raise ValueError(f"the reward of row {int(torch.isinf(rewards).nonzero()[0])} is infinite")
        self.scored = ~torch.isnan(rewards)
        self.rewards = torch.where(self.scored, rewards, 0.0)
        self.index = torch.unique(groups, return_inverse=True)[1]
        self.n = self.sum(self.scored.to(rewards.dtype))
        ends = (self._extreme(end) for end in ("amin", "amax"))
        self.flat = (self.n > 1) & torch.eq(*ends)  # arithmetic on equal rewards may leave rounding

    def sum(self, values: Tensor) -> Tensor:
        """(N,) -> (groups,), without unscored answers."""
        size = int(self.index.max()) + 1 if len(self.index) else 0
        return values.new_zeros(size).index_add_(0, self.index, torch.where(self.scored, values, 0.0))

    def _extreme(self, end: str) -> Tensor:
        """(groups,): the smallest (amin) or largest (amax) reward."""
        index, rewards = self.index[self.scored], self.rewards[self.scored]
        return self.rewards.new_zeros(len(self.n)).scatter_reduce_(0, index, rewards, end, include_self=False)

    def mean(self, weights: Tensor | None = None) -> Tensor:
        """(N,): the (weighted) mean reward of each answer's group."""
        if weights is None:
            return (self.sum(self.rewards) / self.n.clamp(min=1))[self.index]
        return (self.sum(self.rewards * weights) / self.sum(weights).clamp(min=1e-30))[self.index]

    def std(self) -> Tensor:
        """(N,): the sample standard deviation of each answer's group, 0 for a single answer."""
        square = self.sum((self.rewards - self.mean()).square())
        return (square / (self.n - 1).clamp(min=1)).sqrt()[self.index]

    def kept(self, advantages: Tensor) -> Tensor:
        """The advantages, 0 where the answer has no reward, or its group no other scored answer or no variance."""
        return torch.where(self.scored & ((self.n > 1) & ~self.flat)[self.index], advantages, 0.0)


def grpo(rewards: Tensor, groups: Tensor | Sequence[int], *, lengths: Tensor | None = None) -> Tensor:
    """(R - mean) / (std + 1e-4) of the group. The 1e-4 is TRL's; verl has 1e-6."""
    g = _Groups(rewards, groups)
    return g.kept((g.rewards - g.mean()) / (g.std() + 1e-4))


def dr_grpo(rewards: Tensor, groups: Tensor | Sequence[int], *, lengths: Tensor | None = None) -> Tensor:
    """R - mean of the group: no division by its standard deviation (arXiv 2503.20783)."""
    g = _Groups(rewards, groups)
    return g.kept(g.rewards - g.mean())


def rloo(rewards: Tensor, groups: Tensor | Sequence[int], *, lengths: Tensor | None = None) -> Tensor:
    """R - mean of the other answers of the group (arXiv 2402.14740)."""
    g = _Groups(rewards, groups)
    n = g.n[g.index]
    return g.kept((g.rewards - g.mean()) * n / (n - 1).clamp(min=1))


def opo(rewards: Tensor, groups: Tensor | Sequence[int], *, lengths: Tensor | None = None) -> Tensor:
    """R - length-weighted mean of the group: the variance-optimal baseline of arXiv 2505.23585."""
    if lengths is None:
        raise ValueError("the opo advantage weights by length: pass lengths=, one per reward")
    g, lengths = _Groups(rewards, groups), torch.as_tensor(lengths)
    if lengths.shape != rewards.shape or not (lengths > 0).all():
        raise ValueError(f"lengths must be {len(rewards)} positive numbers, one per reward")
    return g.kept(g.rewards - g.mean(lengths.to(rewards)))


def max_rl(rewards: Tensor, groups: Tensor | Sequence[int], *, lengths: Tensor | None = None) -> Tensor:
    """(R - mean) / mean of the group: maximum likelihood, truncated at the group's size (arXiv 2602.02710).

    For rewards that are not negative; a group whose mean is not above 0 has no signal and gets 0, as in prime-rl.
    """
    g = _Groups(rewards, groups)
    mean = g.mean()
    return g.kept(torch.where(mean > 0, (g.rewards - mean) / mean, 0.0))


def count(rewards: Tensor, groups: Tensor | Sequence[int]) -> GroupCounts:
    """How many groups there are, and how many of them carry no signal."""
    g = _Groups(rewards, groups)
    return GroupCounts(len(g.n), int((g.n < 2).sum()), int(g.flat.sum()), int((~g.scored).sum()))


REGISTRY: dict[str, Callable[..., Tensor]] = {f.__name__: f for f in (grpo, dr_grpo, rloo, opo, max_rl)}


def names() -> list[str]:
    """The names of all advantage estimators."""
    return list(REGISTRY)


def get(name: str) -> Estimator:
    """The estimator of this name."""
    if name not in REGISTRY:
        raise ValueError(f"there is no advantage {name!r}{hint(name, REGISTRY)}")
    return REGISTRY[name]
