"""What the built-in tasks share: problems drawn at random, held out by content, checked exactly."""

import random
from typing import ClassVar

from pydantic import Field, model_validator

from fspo.tasks.base import Example, Task, check_index, check_split, generator, in_split, prefix_share, stable_hash

DRAWS = 2000  # a split of a tenth is missed by this many draws with probability 1e-91


class Procedural(Task):
    """A generated problem of a random size, with one right answer that is compared to the letter."""

    trusted: ClassVar[bool] = True

    n_min: int = Field(ge=1, description="Smallest problem size.")
    n_max: int = Field(ge=1, description="Largest problem size.")
    graded: bool = Field(False, description="Reward the share of the correct prefix instead of 0 or 1.")
    noise: float = Field(
        0.0, ge=0, le=1, description="Chance that the reward r of an answer to a training prompt is flipped to 1 - r."
    )
    noise_by_length: float = Field(
        0.0, ge=0, le=1, description="Adds to noise, from 0 at the smallest problem size up to this at the largest."
    )

    @model_validator(mode="after")
    def _ordered(self) -> "Procedural":
        if self.n_min > self.n_max:
            raise ValueError(f"n_min {self.n_min} is above n_max {self.n_max}: swap them")
        if (most := self.noise + self.noise_by_length) > 1:
            raise ValueError(f"noise and noise_by_length add up to {most:g}, which is no chance: lower one of them")
        return self

    def problem(self, rng: random.Random, n: int) -> tuple[str, str]:
        """A prompt of size n and its solution."""
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
        """Drawn from the prompt and the answer, so that the same answer always earns the same; held-out answers are
        scored without noise."""
        chance = self.noise + self.noise_by_length * example.difficulty
        if not chance or not in_split(example.prompt, "train"):
            return False
        return stable_hash("noise", self.seed, example.prompt, completion) < chance * 2**64
