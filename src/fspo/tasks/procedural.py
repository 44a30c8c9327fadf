"""The bases of the built-in tasks: random problems, split by content, with one right answer or with many."""

import math
import random
from typing import ClassVar

from pydantic import Field, model_validator

from fspo.tasks.task import Example, Task, check_index, check_split, generator, in_split, prefix_share, stable_hash

DRAWS = 2000  # the probability that none of them falls in a split of one tenth is 1e-91


class Procedural(Task):
    """A generated problem of random size; one right answer, compared character by character, unless redefined."""

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
        """A random prompt of size n and a solution of it."""
        raise NotImplementedError

    def draw_size(self, rng: random.Random) -> int:
        return rng.randint(self.n_min, self.n_max)

    def difficulty(self, prompt: str, n: int) -> float:
        return (n - self.n_min) / max(1, self.n_max - self.n_min)

    def credit(self, example: Example, completion: str) -> float:
        """The graded reward; 1 for a right answer only."""
        return prefix_share(completion, example.answer)

    def earned(self, example: Example, completion: str) -> bool:
        """Whether an answer earns the reward where it is 0 or 1."""
        return bool(completion == example.answer)

    def example(self, split: str, index: int) -> Example:
        check_split(split)
        check_index(index)
        rng = generator(self.name, self.seed, split, index)
        for _ in range(DRAWS):
            n = self.draw_size(rng)
            prompt, solution = self.problem(rng, n)
            if in_split(prompt, split):
                return Example(
                    prompt=prompt,
                    answer=solution,
                    task=self.label,
                    index=index,
                    difficulty=self.difficulty(prompt, n),
                    solution=solution,
                    attributes={"size": float(n)},
                )
        raise ValueError(
            f"task {self.name!r} with sizes {self.n_min} to {self.n_max} has too few different problems to "
            f"fill the split {split!r}: raise n_max"
        )

    def score(self, example: Example, completion: str) -> float:
        reward = self.credit(example, completion) if self.graded else float(self.earned(example, completion))
        return 1 - reward if self._flipped(example, completion) else reward

    def _flipped(self, example: Example, completion: str) -> bool:
        """Whether noise changes this reward: a function of prompt and answer, so that equal answers get equal rewards.

        Held-out answers are scored without noise.
        """
        chance = self.noise + self.noise_by_length * example.difficulty
        if not chance or not in_split(example.prompt, "train"):
            return False
        return stable_hash("noise", self.seed, example.prompt, completion) < chance * 2**64


class FreeForm(Procedural):
    """A problem with many right answers, checked by its own rules; sizes are log-uniform.

    `answer` and `solution` of an example are one answer of many, drawn at random.
    """

    def draw_size(self, rng: random.Random) -> int:
        size: float = self.n_min * ((self.n_max + 1) / self.n_min) ** rng.random()
        return min(math.floor(size), self.n_max)

    def difficulty(self, prompt: str, n: int) -> float:
        return math.log(n / self.n_min) / math.log(self.n_max / self.n_min) if n > self.n_min else 0.0

    def larger(self, n: int) -> float:
        """The share of problems whose size is above n."""
        above = math.log((self.n_max + 1) / (n + 1)) / math.log((self.n_max + 1) / self.n_min)
        return min(1.0, max(0.0, above))

    def earned(self, example: Example, completion: str) -> bool:
        return self.credit(example, completion) == 1.0


class Drawn(FreeForm):
    """The reward 0 or 1 is drawn with the graded reward as its probability: its mean is the graded reward.

    The draw is a function of prompt and answer, so that equal answers get equal rewards. A solution is an answer of the
    right form for the supervised start, and need not be one that pays best.
    """

    def earned(self, example: Example, completion: str) -> bool:
        return stable_hash("drawn", example.prompt, completion) < self.credit(example, completion) * 2**64


def whole_number(text: str, largest: int) -> int | None:
    """The number that a text writes in the shortest way, if it is at most `largest`; the text may be hostile."""
    if not (text.isascii() and text.isdigit()) or len(text) > len(str(largest)) or (text[0] == "0" and text != "0"):
        return None
    number = int(text)
    return number if number <= largest else None
