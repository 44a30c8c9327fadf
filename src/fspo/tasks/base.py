"""What a task is: a deterministic stream of prompts, and a rule that scores an answer."""

import hashlib
import random
from dataclasses import dataclass, field
from typing import Any, ClassVar

from pydantic import Field

from fspo.settings import Settings

# Every built-in task writes its prompts and solutions with these characters only, so that one small
# character tokenizer serves them all.
ALPHABET = "abcdefghijklmnopqrstuvwxyz0123456789 \n+-*/=:;,.?!()[]{}<>|"

# A problem belongs to the split whose residues hold the hash of its text: no problem is in two splits,
# whatever the seed and the parameters that produced it.
SPLITS = {"eval": (0,), "validation": (1,), "train": (2, 3, 4, 5, 6, 7, 8, 9)}


@dataclass(frozen=True)
class Example:
    """One prompt and all that is needed to score an answer to it."""

    prompt: str
    answer: Any  # JSON-able
    task: str
    index: int
    difficulty: float = 0.0  # in [0, 1]; 0 where unknown
    solution: str | None = None  # what a perfect model would write; None where unknown
    attributes: dict[str, str | float] = field(default_factory=dict)


class Task(Settings):
    """A source of prompts and their checker; its fields are its parameters."""

    name: ClassVar[str]
    summary: ClassVar[str]
    # Only for exact checkers whose time and memory are bounded: they are scored in the trainer's process.
    trusted: ClassVar[bool] = False
    # The parameter that the text after the colon fills, as in `jsonl:PATH`.
    argument: ClassVar[str | None] = None

    seed: int = Field(default=0, ge=0, description="Chooses the stream of prompts.")

    @classmethod
    def owner(cls) -> str:
        return f"task {cls.name}"

    @property
    def label(self) -> str:
        """The name with its argument, as written in a configuration."""
        return f"{self.name}:{getattr(self, self.argument)}" if self.argument else self.name

    def example(self, split: str, index: int) -> Example:
        """The prompt at `index`: a function of the parameters, the split and the index only."""
        raise NotImplementedError

    def score(self, example: Example, completion: str) -> float:
        """The reward of a completion (its text without the end-of-sequence token)."""
        raise NotImplementedError

    def size(self, split: str) -> int | None:
        """How many different prompts a split holds; None when they are generated without end."""
        check_split(split)
        return None

    def component(self, example: Example) -> "Task":
        """The task that scores this example, which in a mixture is one of its parts."""
        return self

    def components(self) -> tuple["Task", ...]:
        """The tasks that this one is made of."""
        return (self,)

    def prepare(self) -> None:
        """Import what `score` needs, so that the first sample's time limit does not pay for it."""


def check_split(split: str) -> None:
    if split not in SPLITS:
        raise ValueError(f"unknown split {split!r}: use one of {', '.join(SPLITS)}")


def check_index(index: int) -> None:
    if index < 0:
        raise ValueError(f"example index {index} is negative: indices start at 0")


def stable_hash(*parts: object) -> int:
    """64 bits that are the same in every process and on every machine, unlike Python's `hash`."""
    text = "\x1f".join(str(part) for part in parts)
    return int.from_bytes(hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest())


def generator(*parts: object) -> random.Random:
    return random.Random(stable_hash(*parts))


def in_split(content: str, split: str) -> bool:
    return stable_hash("split", content) % 10 in SPLITS[split]


def prefix_share(completion: str, solution: str) -> float:
    """Partial credit: the part of the longer text that both share from the start; 1 only when equal."""
    same = 0
    for a, b in zip(completion, solution, strict=False):
        if a != b:
            break
        same += 1
    longest = max(len(completion), len(solution))
    return same / longest if longest else 1.0
