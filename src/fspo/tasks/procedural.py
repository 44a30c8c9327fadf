"""The base of the built-in tasks: random problems, split by content, whose answers are compared exactly."""

import random
from typing import ClassVar

from pydantic import Field, model_validator

from fspo.tasks.task import Example, Task, check_index, check_split, generator, in_split, prefix_share, stable_hash

DRAWS = 2000  # the probability that none of them falls in a split of one tenth is 1e-91


class Procedural(Task):
    """A generated problem of random size with one right answer, compared character by character."""

    trusted: ClassVar[bool] = True

    n_min: int = Field(ge=1, description="Smallest problem size.")
    n_max: int = Field(ge=1, description="Largest problem size.")
    graded: bool = Field(False, description="Reward the share of the correct prefix instead of 0 or 1.")
    noise: float = Field(
        0.0, ge=0, le=1, description="Probability that the reward r of an answer to a training prompt becomes 1 - r."
    )
    noise_by_length: float = Field(
        0.0, ge=0, le=1, description="Added to noise: rises from 0 at the smallest problem size to this at the largest."
    )

    @model_validator(mode="after")
    def _ordered(self) -> "Procedural":
        if self.n_min > self.n_max:
            raise ValueError(f"n_min {self.n_min} is above n_max {self.n_max}: swap them")
        if (most := self.noise + self.noise_by_length) > 1:
            raise ValueError(f"noise and noise_by_length add up to {most:g}, above 1: lower one of them")
        return self

    def problem(self, rng: random.Random, n: int) -> tuple[str, str]:
        """A random prompt of size n and its solution."""
        raise NotImplementedError

    def example(self, split: str, index: int) -> Example:
        check_split(split)
        check_index(index)
        rng = generator(self.name, self.seed, split, index)
        for _ in range(DRAWS):
            n = rng.randint(self.n_min, self.n_max)
            prompt, solution = self.problem(rng, n)
            if in_split(prompt, split):
                return Example(
                    prompt=prompt,
                    answer=solution,
                    task=self.label,
                    index=index,
                    difficulty=(n - self.n_min) / max(1, self.n_max - self.n_min),
                    solution=solution,
                    attributes={"size": float(n)},
                )
        raise ValueError(
            f"task {self.name!r} with sizes {self.n_min} to {self.n_max} has too few different problems to "
            f"fill the split {split!r}: raise n_max"
        )

    def score(self, example: Example, completion: str) -> float:
        reward = prefix_share(completion, example.answer) if self.graded else float(completion == example.answer)
        return 1 - reward if self._flipped(example, completion) else reward

    def _flipped(self, example: Example, completion: str) -> bool:
        """Whether noise changes this reward: a function of prompt and answer, so that equal answers get equal rewards.

        Held-out answers are scored without noise.
        """
        chance = self.noise + self.noise_by_length * example.difficulty
        if not chance or not in_split(example.prompt, "train"):
            return False
        return stable_hash("noise", self.seed, example.prompt, completion) < chance * 2**64
