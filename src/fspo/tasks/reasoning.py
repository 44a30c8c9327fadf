"""`reasoning_gym:NAME`: any generator of the reasoning-gym library, with its own parameters and checker."""

import json
import re
from functools import lru_cache
from typing import Any, ClassVar

from pydantic import Field, model_validator

from fspo.settings import hint
from fspo.tasks.task import Example, Task, check, in_split, stable_hash

DRAWS = 300  # entries tried until one belongs to the split
SIZE = 5000  # entries of a dataset that builds a table; the others accept any index


class ReasoningGym(Task):
    """An example holds the index of its entry, from which a scoring process generates the entry again."""

    name: ClassVar[str] = "reasoning_gym"
    summary: ClassVar[str] = "a reasoning-gym generator: reasoning_gym:chain_sum, with its own parameters"
    argument: ClassVar[str | None] = "dataset"

    dataset: str = Field(description="name of the reasoning-gym dataset, as in reasoning_gym:chain_sum.")
    suffix: str = Field(
        "\nGive the final answer between <answer> and </answer>.", description="Added to every question."
    )
    params: dict[str, Any] = Field(default_factory=dict, description="Parameters of the dataset.")

    @model_validator(mode="before")
    @classmethod
    def _collect(cls, data: dict[str, Any]) -> dict[str, Any]:
        """Parameters that are not fields of this class are the dataset's."""
        own = {key: value for key, value in data.items() if key in cls.model_fields}
        other = {key: value for key, value in data.items() if key not in cls.model_fields}
        return own | {"params": {**own.get("params", {}), **other}}

    @model_validator(mode="after")
    def _known(self) -> "ReasoningGym":
        datasets = _registry()
        if self.dataset not in datasets:
            raise ValueError(f"reasoning-gym has no dataset {self.dataset!r}{hint(self.dataset, datasets)}")
        try:
            self._entries()
        except (AssertionError, TypeError, ValueError) as error:
            raise ValueError(f"{self.dataset} refuses {self.params}: {error}") from None
        return self

    def _entries(self) -> Any:
        return _dataset(self.dataset, self.seed, json.dumps(self.params, sort_keys=True))

    def example(self, split: str, index: int) -> Example:
        check(split, index)
        for draw in range(DRAWS):
            number = stable_hash(self.label, self.seed, split, index, draw) % 2**31
            entry = _entry(self._entries(), number)
            if in_split(entry["question"], split):
                answer = entry["answer"]
                return Example(
                    prompt=entry["question"] + self.suffix,
                    answer={"entry": number, "text": answer if isinstance(answer, str) else None},
                    task=self.label,
                    index=index,
                    solution=f"<answer>{answer}</answer>" if isinstance(answer, str) else None,
                    attributes=_numbers(entry["metadata"]),
                )
        raise ValueError(
            f"task {self.label!r} has too few different problems to fill the split {split!r}: "
            f"widen the dataset's parameters"
        )

    def score(self, example: Example, completion: str) -> float:
        entry = _entry(self._entries(), example.answer["entry"])
        if entry["question"] + self.suffix != example.prompt:
            raise RuntimeError(f"{self.label} generated a different problem from the one in the prompt")
        value = float(self._entries().score_answer(extract(completion, example.answer["text"]), entry))
        return min(1.0, max(0.0, value))

    def prepare(self) -> None:
        self._entries()


def extract(completion: str, expected: str | None) -> str:
    """The answer in a completion: the last <answer>, else the last line or its last number."""
    tagged: list[str] = re.findall(r"<answer>(.*?)</answer>", completion, re.DOTALL)
    if tagged:
        return tagged[-1].strip()
    lines = [line.strip() for line in completion.splitlines() if line.strip()]
    last = lines[-1] if lines else ""
    number = r"-?\d+(?:\.\d+)?"
    if expected is not None and re.fullmatch(number, expected):
        numbers: list[str] = re.findall(number, last)
        return numbers[-1] if numbers else last
    return last


@lru_cache(maxsize=1)
def _registry() -> dict[str, Any]:
    try:
        import reasoning_gym  # noqa: F401
        from reasoning_gym.factory import DATASETS
    except ImportError:
        raise ValueError("reasoning_gym tasks need the package reasoning-gym: pip install 'fspo[tasks]'") from None
    datasets: dict[str, Any] = DATASETS
    return datasets


@lru_cache(maxsize=16)
def _dataset(name: str, seed: int, params: str) -> Any:
    _registry()
    import reasoning_gym

    return reasoning_gym.create_dataset(name, seed=seed, size=SIZE, **json.loads(params))


@lru_cache(maxsize=256)
def _entry(dataset: Any, number: int) -> dict[str, Any]:
    """One entry; cached, because the answers of a group share their prompt."""
    entry: dict[str, Any]
    try:
        entry = dataset[number]
    except IndexError:
        entry = dataset[number % SIZE]
    return entry


def _numbers(metadata: dict[str, Any]) -> dict[str, str | float]:
    """The numeric metadata, without the index, which is no property of the problem."""
    plain = {k: v for k, v in metadata.items() if isinstance(v, int | float) and k != "source_index"}
    return {key: float(value) for key, value in plain.items()}
