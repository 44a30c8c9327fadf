"""`python:module:function`: the user's own reward function on the user's own prompts."""

import importlib
from collections.abc import Callable
from typing import Any, ClassVar

from pydantic import Field, field_validator

from fspo.settings import hint
from fspo.tasks.datasets import QUESTION_COLUMNS, RowTask, read_jsonl
from fspo.tasks.task import Example


class Custom(RowTask):
    """Prompts are the rows of a JSON-lines file; the function is imported in the scoring process only."""

    name: ClassVar[str] = "python"
    summary: ClassVar[str] = "your own reward, function(prompt, completion, answer): python:module:function"
    argument: ClassVar[str | None] = "function"

    function: str = Field(description="module and name of the reward function, as in python:my_rewards:exact.")
    path: str = Field(description="JSON-lines file with a prompt and, if the reward needs one, an answer.")
    eval_path: str | None = Field(
        None, description="File whose rows are the eval split; without it a tenth of `path` is held out."
    )

    @field_validator("function")
    @classmethod
    def _module_and_function(cls, value: str) -> str:
        if value.count(":") != 1 or not all(value.split(":")):
            raise ValueError("it must read module:function")
        return value

    def rows(self) -> tuple[list[dict[str, Any]], list[dict[str, Any]] | None]:
        return read_jsonl(self.path), read_jsonl(self.eval_path) if self.eval_path else None

    def content(self, row: dict[str, Any]) -> str:
        for name in ("prompt", *QUESTION_COLUMNS):
            if name in row:
                return str(row[name])
        raise ValueError(f"a row of {self.path!r} has no prompt (it has {', '.join(row)}): add a prompt")

    def example(self, split: str, index: int) -> Example:
        row = self.row(split, index)
        return Example(
            prompt=self.content(row),
            answer=row.get("answer"),
            task=self.label,
            index=index,
            solution=row.get("solution"),
        )

    def score(self, example: Example, completion: str) -> float:
        return _resolve(self.function)(example.prompt, completion, example.answer)

    def prepare(self) -> None:
        _resolve(self.function)


def _resolve(where: str) -> Callable[[str, str, Any], float]:
    module_name, function_name = where.split(":")
    module = importlib.import_module(module_name)
    function: Callable[[str, str, Any], float] | None = getattr(module, function_name, None)
    if not callable(function):
        public = [name for name, value in vars(module).items() if callable(value)]
        raise ValueError(f"module {module_name!r} has no function {function_name!r}{hint(function_name, public)}")
    return function
