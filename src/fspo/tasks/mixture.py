"""Several tasks in one stream, in exact proportion to their weights."""

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import ClassVar

from pydantic import Field, model_validator

from fspo.tasks.task import Example, Task, check, generator

BLOCK = 1000  # within every block of this many prompts the proportions are exact


class Mixture(Task):
    """The index alone decides which part a prompt comes from; each part's prompts appear in order, without gaps."""

    name: ClassVar[str] = "mixture"
    summary: ClassVar[str] = "several tasks with weights, written as a list"

    parts: tuple[Task, ...] = Field(min_length=1, description="The tasks.")
    weights: tuple[float, ...] = Field(description="One positive weight per task.")

    @model_validator(mode="after")
    def _positive(self) -> "Mixture":
        for weight in self.weights:
            if not 0 < weight < float("inf"):
                raise ValueError(f"weight {weight} is not positive: give every task a weight above 0")
        if len(self.weights) != len(self.parts) or len(self.parts) > BLOCK:
            raise ValueError(f"{len(self.parts)} tasks have {len(self.weights)} weights: give one each")
        return self

    @property
    def label(self) -> str:
        return "+".join(self.labels)

    @property
    def labels(self) -> tuple[str, ...]:
        """One name per part; a repeated name gets a number, as in sort#2."""
        labels = [part.label for part in self.parts]
        return tuple(
            label if labels.index(label) == i else f"{label}#{labels[: i + 1].count(label)}"
            for i, label in enumerate(labels)
        )

    def example(self, split: str, index: int) -> Example:
        check(split, index)
        block, position = divmod(index, BLOCK)
        part, rank = _plan(self.weights, self.seed)[position]
        inner = self.parts[part].example(split, block * _quotas(self.weights)[part] + rank)
        return replace(inner, task=self.labels[part], index=index)

    def score(self, example: Example, completion: str) -> float:
        return self.component(example).score(example, completion)

    def features(self, example: Example, completion: str) -> dict[str, float]:
        return self.component(example).features(example, completion)

    def component(self, example: Example) -> Task:
        return self.parts[self.labels.index(example.task)]

    def components(self) -> tuple[Task, ...]:
        return self.parts

    def prepare(self) -> None:
        for part in self.parts:
            part.prepare()


@lru_cache(maxsize=32)
def _quotas(weights: Sequence[float]) -> list[int]:
    """How many prompts of a block come from each part: largest remainders, at least one each."""
    exact = [weight / sum(weights) * BLOCK for weight in weights]
    quotas = [max(1, int(share)) for share in exact]
    while sum(quotas) != BLOCK:
        sign = 1 if sum(quotas) < BLOCK else -1
        owed = [sign * (share - quota) for share, quota in zip(exact, quotas, strict=True)]
        free = [i for i, quota in enumerate(quotas) if sign > 0 or quota > 1]
        quotas[max(free, key=owed.__getitem__)] += sign
    return quotas


@lru_cache(maxsize=32)
def _plan(weights: Sequence[float], seed: int) -> list[tuple[int, int]]:
    """For each position of a block: the part, and how many prompts of that part come before it in the block."""
    order = [part for part, quota in enumerate(_quotas(weights)) for _ in range(quota)]
    generator("mixture", seed).shuffle(order)
    seen = [0] * len(weights)
    plan = []
    for part in order:
        plan.append((part, seen[part]))
        seen[part] += 1
    return plan
