"""Generated problems, split by content: the bases of the built-in tasks, and those with one right answer.

The default sizes are those that `fspo train task=NAME` can begin with: the default model learns a share of them in some
hundred steps of supervised warm-up. Larger ones, such as additions of 20 digits, need a larger model or a longer start.
"""

import math
import random
import string
from collections import Counter
from functools import lru_cache
from typing import ClassVar

from pydantic import Field, model_validator

from fspo.tasks.task import Example, Task, check, generator, in_split, stable_hash

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
        """The graded reward, 1 for a right answer only: the common prefix as a share of the longer text."""
        shorter, longer = sorted((len(completion), len(example.answer)))
        pairs = zip(completion, example.answer, strict=False)
        return next((i for i, (a, b) in enumerate(pairs) if a != b), shorter) / longer

    def earned(self, example: Example, completion: str) -> bool:
        """Whether an answer earns the reward where it is 0 or 1."""
        return bool(completion == example.answer)

    def example(self, split: str, index: int) -> Example:
        check(split, index)
        return _drawn(self, split, index)

    def score(self, example: Example, completion: str) -> float:
        reward = self.credit(example, completion) if self.graded else float(self.earned(example, completion))
        return 1 - reward if self._flipped(example, completion) else reward

    def _flipped(self, example: Example, completion: str) -> bool:
        """Whether noise changes this reward; equal answers get equal rewards, held-out ones no noise."""
        chance = self.noise + self.noise_by_length * example.difficulty
        if not chance or not in_split(example.prompt, "train"):
            return False
        return stable_hash("noise", self.seed, example.prompt, completion) < chance * 2**64


@lru_cache(maxsize=1 << 14)  # held-out prompts take ten draws each, and every evaluation asks for the same ones
def _drawn(task: Procedural, split: str, index: int) -> Example:
    """The first problem that falls in the split, of those that the index draws."""
    rng = generator(task.name, task.seed, split, index)
    for _ in range(DRAWS):
        n = task.draw_size(rng)
        prompt, solution = task.problem(rng, n)
        if in_split(prompt, split):
            return Example(
                prompt=prompt,
                answer=solution,
                task=task.label,
                index=index,
                difficulty=task.difficulty(prompt, n),
                solution=solution,
                attributes={"size": float(n)},
            )
    raise ValueError(
        f"task {task.name!r} with sizes {task.n_min} to {task.n_max} has too few different problems to "
        f"fill the split {split!r}: raise n_max"
    )


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


class Sort(Procedural):
    """The answer has exactly as many letters as the problem."""

    name: ClassVar[str] = "sort"
    summary: ClassVar[str] = "sort a multiset of letters: sort:dbca= -> abcd"

    n_min: int = Field(4, ge=1, description="Fewest letters.")
    n_max: int = Field(40, ge=1, description="Most letters.")
    letters: int = Field(26, ge=2, le=26, description="How many different letters occur.")

    def problem(self, rng: random.Random, n: int) -> tuple[str, str]:
        word = "".join(rng.choices(string.ascii_lowercase[: self.letters], k=n))
        return f"sort:{word}=", "".join(sorted(word))


class Add(Procedural):
    """Numbers have the lowest digit first, so that each digit of the answer depends only on earlier ones."""

    name: ClassVar[str] = "add"
    summary: ClassVar[str] = "add numbers written lowest digit first: add:71+52= -> 24 (17 + 25 = 42)"

    n_min: int = Field(1, ge=1, description="Fewest digits.")
    n_max: int = Field(3, ge=1, description="Most digits.")

    def problem(self, rng: random.Random, n: int) -> tuple[str, str]:
        low = 10 ** (n - 1) if n > 1 else 0
        a, b = rng.randrange(low, 10**n), rng.randrange(low, 10**n)
        return f"add:{str(a)[::-1]}+{str(b)[::-1]}=", str(a + b)[::-1]


class Brackets(Procedural):
    """The size is the number of brackets left open; pairs that are already closed must be ignored."""

    name: ClassVar[str] = "brackets"
    summary: ClassVar[str] = "close the open brackets: close:([]{= -> })"

    n_min: int = Field(2, ge=1, description="Fewest open brackets.")
    n_max: int = Field(40, ge=1, description="Most open brackets.")

    def problem(self, rng: random.Random, n: int) -> tuple[str, str]:
        closing = {"(": ")", "[": "]", "{": "}"}
        prefix: list[str] = []
        stack: list[str] = []
        closed = 0
        while len(stack) < n:
            if stack and closed < n and rng.random() < 0.25:
                prefix.append(closing[stack.pop()])
                closed += 1
            else:
                stack.append(rng.choice("([{"))
                prefix.append(stack[-1])
        return f"close:{''.join(prefix)}=", "".join(closing[c] for c in reversed(stack))


class Count(Procedural):
    """The whole chain is checked, so that guessing the last numbers earns no reward."""

    name: ClassVar[str] = "count"
    summary: ClassVar[str] = "count with a worked chain: count:abaca= -> a1b1a2c1a3=a3b1c1"

    n_min: int = Field(2, ge=1, description="Fewest letters.")
    n_max: int = Field(32, ge=1, description="Most letters.")
    letters: int = Field(6, ge=2, le=26, description="How many different letters occur.")

    def problem(self, rng: random.Random, n: int) -> tuple[str, str]:
        word = "".join(rng.choices(string.ascii_lowercase[: self.letters], k=n))
        counts: Counter[str] = Counter()
        chain = []
        for letter in word:
            counts[letter] += 1
            chain.append(f"{letter}{counts[letter]}")
        total = "".join(f"{letter}{counts[letter]}" for letter in sorted(counts))
        return f"count:{word}=", f"{''.join(chain)}={total}"


BUILTIN: tuple[type[Procedural], ...] = (Sort, Add, Brackets, Count)
