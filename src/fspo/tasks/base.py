"""What a task is: a deterministic stream of prompts, and a rule that scores an answer."""

import difflib
import hashlib
import random
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

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


class Task(BaseModel):
    """A source of prompts and their checker; its fields are its parameters."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: ClassVar[str]
    summary: ClassVar[str]
    # Only for exact checkers whose time and memory are bounded: they are scored in the trainer's process.
    trusted: ClassVar[bool] = False
    # The parameter that the text after the colon fills, as in `jsonl:PATH`.
    argument: ClassVar[str | None] = None

    seed: int = Field(default=0, ge=0, description="Chooses the stream of prompts.")

    def __init__(self, **parameters: Any) -> None:
        try:
            super().__init__(**parameters)
        except ValidationError as error:
            raise ValueError(_one_sentence(type(self), error)) from None

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


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """The end of an error message about an unknown name."""
    known = sorted(known)
    close = difflib.get_close_matches(word, known, n=1, cutoff=0.5)
    return f"did you mean {close[0]!r}?" if close else f"use one of {', '.join(known)}"


def _one_sentence(task: type[Task], error: ValidationError) -> str:
    """The first problem pydantic found, as one sentence that names the parameter and the fix."""
    first = error.errors()[0]
    key = ".".join(str(part) for part in first["loc"])
    if first["type"] == "extra_forbidden":
        return f"task {task.name!r} has no parameter {key!r}: {did_you_mean(key, task.model_fields)}"
    if first["type"] == "missing":
        return f"task {task.name!r} needs the parameter {key!r}: {task.model_fields[key].description}"
    message = first["msg"].removeprefix("Value error, ")
    if not key:
        return f"task {task.name!r}: {message}"
    message = message[0].lower() + message[1:]
    return f"task {task.name!r}: parameter {key!r} is {first['input']!r}, but {message}"
