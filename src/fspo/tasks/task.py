"""The interface of a task: a deterministic stream of prompts, and a reward for an answer."""

import hashlib
import math
import random
from dataclasses import dataclass, field
from numbers import Real
from typing import Any, ClassVar

from pydantic import Field

from fspo.settings import Settings

# The hash of a problem's text modulo 10 decides its split. No problem is in two splits, whatever the seed and the
# parameters that generated it.
SPLITS = {"eval": (0,), "validation": (1,), "train": (2, 3, 4, 5, 6, 7, 8, 9)}


@dataclass(frozen=True)
class Example:
    """One prompt and everything needed to score an answer to it.

    >>> import fspo
    >>> example = fspo.Example(prompt="2+2=", answer=4, task="sums", index=0, solution="4")
    >>> example.difficulty, example.attributes
    (0.0, {})
    """

    prompt: str
    answer: Any  # can be written as JSON
    task: str
    index: int
    difficulty: float = 0.0  # in [0, 1]; 0 if unknown
    solution: str | None = None  # a right completion, for the supervised start; None if unknown
    attributes: dict[str, str | float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not isinstance(self.prompt, str):
            raise ValueError(f"the prompt {self.prompt!r} of the task {self.task!r} is not text: make it a str")
        if not isinstance(self.difficulty, Real) or not math.isfinite(self.difficulty):
            raise ValueError(f"the difficulty {self.difficulty} of the prompt {self.prompt[:40]!r} is not finite")


class Task(Settings):
    """A source of prompts and the reward of their answers; its fields are its parameters.

    A task of one's own is a class in a module of one's own, written `module:Class` where a name is taken. `example`
    must give the same prompt for the same index every time, and no prompt of the train split in another split.

    >>> from typing import ClassVar
    >>> import fspo
    >>> class Parity(fspo.Task):
    ...     name: ClassVar[str] = "parity"
    ...     summary: ClassVar[str] = "is a number odd or even?"
    ...     def example(self, split, index):
    ...         number = 10 * index + ("eval", "validation", "train").index(split)
    ...         answer = "odd" if number % 2 else "even"
    ...         return fspo.Example(f"{number}?", answer, self.label, index, solution=answer)
    ...     def score(self, example, completion):
    ...         return float(completion.strip() == example.answer)
    >>> task = Parity()
    >>> task.example("train", 3).prompt, task.score(task.example("train", 3), "even")
    ('32?', 1.0)
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    # Whether answers are scored in the trainer's process: only if time and memory of `score` are bounded.
    trusted: ClassVar[bool] = False
    # The share of prompts that a supervised start solves by default: enough that rewards vary at every length.
    solved_at_start: ClassVar[float] = 0.25
    # The parameter that is set by the text after the colon, as in `jsonl:PATH`.
    argument: ClassVar[str | None] = None

    seed: int = Field(default=0, ge=0, description="Seed of the stream of prompts.")

    @classmethod
    def owner(cls) -> str:
        return f"task {cls.name}"

    @property
    def label(self) -> str:
        """The name with its argument, as it is written in a configuration."""
        return f"{self.name}:{getattr(self, self.argument)}" if self.argument else self.name

    def example(self, split: str, index: int) -> Example:
        """The prompt at `index`: a function of the parameters, the split and the index only."""
        raise NotImplementedError(f"{type(self).__name__} has no example(split, index): define it, as every task does")

    def score(self, example: Example, completion: str) -> float:
        """The reward of a completion (its text without the end-of-sequence token)."""
        raise NotImplementedError(f"{type(self).__name__} has no score(example, completion): define it")

    def longest(self, example: Example) -> float:
        """Seconds that `score` may take by limits of its own; the scorer waits at least that long, by default 0."""
        return 0.0

    def features(self, example: Example, completion: str) -> dict[str, float]:
        """Numbers that describe an answer, such as whether it shows working; evaluations report their means."""
        return {}

    def optimum(self) -> dict[str, float]:
        """The means of features under the policy that earns most, where they are known."""
        return {}

    def size(self, split: str) -> int | None:
        """How many different prompts a split has; None if they are generated without end."""
        check(split)
        return None

    def component(self, example: Example) -> "Task":
        """The task that scores this example; in a mixture, one of its parts."""
        return self

    def components(self) -> tuple["Task", ...]:
        """The parts of a mixture; of any other task, the task itself."""
        return (self,)

    def prepare(self) -> None:
        """Import what `score` needs, so that this does not count against the time limit of the first answer."""


def check(split: str, index: int = 0) -> None:
    """Refuse a split or an index that does not exist."""
    if split not in SPLITS:
        raise ValueError(f"unknown split {split!r}: use one of {', '.join(SPLITS)}")
    if index < 0:
        raise ValueError(f"example index {index} is negative: indices start at 0")


def stable_hash(*parts: object) -> int:
    """A 64-bit hash that is the same in every process and on every machine, unlike Python's `hash`."""
    text = "\x1f".join(str(part) for part in parts)
    return int.from_bytes(hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest())


def generator(*parts: object) -> random.Random:
    """A random generator seeded by these parts."""
    return random.Random(stable_hash(*parts))


def in_split(content: str, split: str) -> bool:
    """Whether the problem with this text belongs to the split."""
    return stable_hash("split", content) % 10 in SPLITS[split]
