"""`vf:NAME`: a single-turn environment of the verifiers library, with its own data and reward.

The classic environments, verifiers from 0.1.10 to before 0.4 (`load_environment`, `SingleTurnEnv`, `Rubric`): an
environment is an installed module NAME. Those of `verifiers.v1` bring a harness and a runtime of their own.
"""

from __future__ import annotations

import asyncio
import json
from functools import lru_cache
from typing import Any, ClassVar

from pydantic import Field, field_validator

from fspo.tasks.rows import RowTask
from fspo.tasks.task import Example


class Verifiers(RowTask):
    """Prompts are the rows of the environment's data set; the reward is its rubric's, taken in a scoring process."""

    name: ClassVar[str] = "vf"
    summary: ClassVar[str] = "a single-turn environment of the verifiers library: vf:NAME"
    argument: ClassVar[str | None] = "environment"

    environment: str = Field(description="name of the installed environment, as in vf:gsm8k.")
    arguments: str = Field("{}", description="Arguments of the environment, as a JSON object.")

    @field_validator("arguments")
    @classmethod
    def _is_object(cls, text: str) -> str:
        if not isinstance(json.loads(text), dict):
            raise ValueError('give a JSON object, such as {"n": 20}')
        return text

    def rows(self) -> tuple[list[dict[str, Any]], list[dict[str, Any]] | None]:
        environment = _loaded(self.environment, self.arguments)
        train, held_out = environment.build_dataset(), environment.build_eval_dataset()
        if train is None:
            raise ValueError(f"the environment {self.environment!r} has no data to train on: use another")
        return list(train), None if held_out is None else list(held_out)

    def content(self, row: dict[str, Any]) -> str:
        """The text of all messages of the prompt: a model is asked one text, as one message if it is a chat model."""
        messages = row["prompt"]
        return messages if isinstance(messages, str) else "\n\n".join(str(part["content"]) for part in messages)

    def example(self, split: str, index: int) -> Example:
        row = self.row(split, index)
        return Example(prompt=self.content(row), answer=row, task=self.label, index=index)

    def score(self, example: Example, completion: str) -> float:
        row = dict(example.answer)
        if isinstance(row.get("info"), str):  # as verifiers reads it
            row["info"] = json.loads(row["info"])
        state = {
            **row, "input": row, "completion": [{"role": "assistant", "content": completion}], "trajectory": [],
            "timing": {"scoring_ms": 0.0, "total_ms": 0.0},
        }  # fmt: skip
        asyncio.run(_loaded(self.environment, self.arguments).rubric.score_rollout(state))
        return float(state["reward"])

    def prepare(self) -> None:
        _loaded(self.environment, self.arguments)


@lru_cache(maxsize=8)
def _loaded(name: str, arguments: str) -> Any:
    try:
        from verifiers import load_environment
    except ImportError as error:
        raise ValueError(f"vf:{name} needs verifiers ({error}): pip install 'verifiers>=0.1.10,<0.4'") from None
    environment = load_environment(name, **json.loads(arguments))
    if getattr(environment, "max_turns", None) != 1:
        raise ValueError(f"the environment {name!r} has more than one turn: only single-turn environments can be used")
    return environment
