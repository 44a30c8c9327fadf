"""The training data of an update: prompts with their groups of completions, and how they are split into
micro-batches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Completions:
    """Completions of shared prompts, as token ids without padding.

    `prompts[group[i]]` is the prompt of `completions[i]`. A finished completion ends with its end-of-sequence token,
    which is trained like any other; a truncated one has none.
    """

    prompts: Sequence[Sequence[int]]
    completions: Sequence[Sequence[int]]
    group: Sequence[int]

    def __post_init__(self) -> None:
        if len(self.completions) != len(self.group):
            raise ValueError(
                f"there are {len(self.completions)} completions but {len(self.group)} group indices; "
                "give one per completion"
            )
        if not self.completions:
            raise ValueError("the batch has no completions; give at least one")
        for i, (completion, g) in enumerate(zip(self.completions, self.group, strict=True)):
            if not 0 <= g < len(self.prompts):
                raise ValueError(f"completion {i} belongs to prompt {g}, but there are {len(self.prompts)} prompts")
            if not len(completion):
                raise ValueError(f"completion {i} is empty; leave it out of the batch")
            if not len(self.prompts[g]):
                raise ValueError(f"prompt {g} is empty; start it with a bos token")

    def __len__(self) -> int:
        return len(self.completions)

    @property
    def lengths(self) -> list[int]:
        return [len(c) for c in self.completions]

    @property
    def tokens(self) -> int:
        """The number of completion tokens, which are the trained ones."""
        return sum(self.lengths)

    def select(self, indices: Sequence[int]) -> Completions:
        """The sub-batch of these completions, in this order, with only the prompts they use."""
        used = list(dict.fromkeys(self.group[i] for i in indices))
        place = {g: j for j, g in enumerate(used)}
        return Completions(
            [self.prompts[g] for g in used],
            [self.completions[i] for i in indices],
            [place[self.group[i]] for i in indices],
        )


def split(batch: Completions, token_budget: int) -> list[tuple[Completions, Tensor]]:
    """Micro-batches of at most `token_budget` tokens (a prompt counts once per group), with their indices in `batch`.

    A group that fits stays together, because its prompt is then computed once; a larger group is split by length.
    Groups are ordered by their longest member, so that a micro-batch needs little padding. A completion that exceeds
    the budget by itself is a micro-batch of its own.
    """
    if token_budget < 1:
        raise ValueError(f"the token budget is {token_budget}; it must be at least 1")
    members: dict[int, list[int]] = {}
    for i, g in enumerate(batch.group):
        members.setdefault(g, []).append(i)
    lengths = batch.lengths
    pieces: list[tuple[list[int], int]] = []  # completions of one group, and their tokens with the prompt
    for g, indices in members.items():
        prompt = len(batch.prompts[g])
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
    chosen: list[list[int]] = []
    room = 0
    for piece, cost in pieces:
        if not chosen or cost > room:
            chosen.append([])
            room = token_budget
        chosen[-1] += piece
        room -= cost
    return [(batch.select(c), torch.tensor(c)) for c in chosen]
