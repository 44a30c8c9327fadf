"""Tasks whose prompts are the rows of a data set: `jsonl:PATH` and `hf:NAME` with answers, `python:` with a reward.

Rows are split by content and shuffled anew in every epoch.
"""

import importlib
import re
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar

from pydantic import Field, field_validator

from fspo.files import BadLine, json_lines
from fspo.settings import hint
from fspo.tasks.task import Example, Task, check, generator, in_split
from fspo.tasks.verify import equal, final_answer, reference

QUESTION_COLUMNS = ("question", "problem", "prompt")
ANSWER_COLUMNS = ("answer", "solution")


class RowTask(Task):
    """A subclass returns its rows; `row` maps an index to one of them."""

    def rows(self) -> tuple[list[dict[str, Any]], list[dict[str, Any]] | None]:
        """The rows to train on, and the separate held-out rows if there are any."""
        raise NotImplementedError

    def content(self, row: dict[str, Any]) -> str:
        """The text that identifies the problem: rows with the same text are in the same split."""
        raise NotImplementedError

    def size(self, split: str) -> int:
        return len(_assign(self, split))

    def row(self, split: str, index: int) -> dict[str, Any]:
        check(split, index)
        rows = _assign(self, split)
        epoch, position = divmod(index, len(rows))
        return rows[_order(len(rows), f"{self.seed}/{split}/{epoch}")[position]]


class FileTask(RowTask):
    """The rows of a local file."""

    path: str = Field(description="path of a JSON-lines file, as in jsonl:gsm8k_train.jsonl.")
    eval_path: str | None = Field(
        None, description="File whose rows are the eval split; without it a tenth of `path` is held out."
    )

    def rows(self) -> tuple[list[dict[str, Any]], list[dict[str, Any]] | None]:
        return read_jsonl(self.path), read_jsonl(self.eval_path) if self.eval_path else None


@lru_cache(maxsize=32)
def _assign(task: RowTask, split: str) -> list[dict[str, Any]]:
    """The rows of a split: by the hash of their content, or the separate held-out rows for eval."""
    check(split)
    rows, held_out = task.rows()
    if held_out is None:
        chosen = [row for row in rows if in_split(task.content(row), split)]
    elif split == "eval":
        chosen = held_out
    else:
        excluded = {task.content(row) for row in held_out}
        # Eval has rows of its own, so the tenth that would be held out for it is trained on.
        free = [row for row in rows if task.content(row) not in excluded]
        chosen = [row for row in free if in_split(task.content(row), "validation") == (split == "validation")]
    if not chosen:
        raise ValueError(f"task {task.label!r} has no rows left for the split {split!r}: give it more rows")
    return chosen


@lru_cache(maxsize=32)
def _order(n: int, key: str) -> list[int]:
    order = list(range(n))
    generator("order", key).shuffle(order)
    return order


@lru_cache(maxsize=32)
def read_jsonl(path: str) -> list[dict[str, Any]]:
    """The objects of a JSON-lines file; a bad line is an error."""
    file = Path(path).expanduser()
    if not file.is_file():
        raise ValueError(f"there is no file {path!r}: give the path of a JSON-lines file")
    rows = []
    for row in json_lines(file):
        if isinstance(row, BadLine):
            raise ValueError(f"line {row.number} of {path!r} {row.problem}: fix that line")
        rows.append(row)
    if not rows:
        raise ValueError(f"{path!r} has no rows: write one JSON object per line")
    return rows


def column(row: dict[str, Any], wanted: str | None, candidates: tuple[str, ...], what: str) -> Any:
    """The value of the column `wanted`, or of the first of `candidates` that the row has."""
    for name in (wanted,) if wanted else candidates:
        if name in row:
            return row[name]
    names = ", ".join(row)
    asked = wanted or " / ".join(candidates)
    raise ValueError(f"a row has no {what} column {asked!r} (it has {names}): set {what}_column to one of them")


class QuestionAnswer(RowTask):
    """The reward is 1 when the final answer equals the reference answer as a number or an expression."""

    question_column: str | None = Field(
        None, description="Column of the question; default: the first of question, problem, prompt."
    )
    answer_column: str | None = Field(
        None, description="Column of the reference answer; default: the first of answer, solution."
    )
    suffix: str = Field("\nPut the final answer in \\boxed{}.", description="Instruction added to every question.")

    def content(self, row: dict[str, Any]) -> str:
        return str(column(row, self.question_column, QUESTION_COLUMNS, "question"))

    def example(self, split: str, index: int) -> Example:
        row = self.row(split, index)
        raw = str(column(row, self.answer_column, ANSWER_COLUMNS, "answer"))
        gold = reference(raw)
        attributes: dict[str, str | float] = {key: str(row[key]) for key in ("subject", "level", "type") if key in row}
        level = re.search(r"\d+", str(row.get("level", "")))
        return Example(
            prompt=self.content(row) + self.suffix,
            answer=gold,
            task=self.label,
            index=index,
            difficulty=min(1.0, int(level.group()) / 5) if level else 0.0,
            solution=worked(raw, str(row.get("solution", "")), gold),
            attributes=attributes,
        )

    def score(self, example: Example, completion: str) -> float:
        return float(equal(example.answer, completion))

    def prepare(self) -> None:
        equal("x", "\\boxed{1}")  # math-verify and sympy, which plain numbers do not need


class Jsonl(FileTask, QuestionAnswer):
    """Rows of a local file."""

    name: ClassVar[str] = "jsonl"
    summary: ClassVar[str] = "question-answer rows of a JSON-lines file, checked by math-verify: jsonl:PATH"
    argument: ClassVar[str | None] = "path"


class HuggingFace(QuestionAnswer):
    """Rows of a dataset of the Hugging Face hub, or of a local folder in its format."""

    name: ClassVar[str] = "hf"
    summary: ClassVar[str] = "question-answer rows of a Hugging Face dataset, checked by math-verify: hf:NAME"
    argument: ClassVar[str | None] = "dataset"

    dataset: str = Field(description="name or folder of a dataset, as in hf:openai/gsm8k.")
    config: str | None = Field(None, description="Configuration of the dataset, such as main.")
    train_split: str = Field("train", description="The dataset's split to train on.")
    eval_split: str | None = Field(
        None, description="The dataset's split for eval; without it a tenth of train_split is held out."
    )

    def rows(self) -> tuple[list[dict[str, Any]], list[dict[str, Any]] | None]:
        held_out = _load(self.dataset, self.config, self.eval_split) if self.eval_split else None
        return _load(self.dataset, self.config, self.train_split), held_out


@lru_cache(maxsize=8)
def _load(name: str, config: str | None, split: str) -> list[dict[str, Any]]:
    try:
        from datasets import load_dataset
    except ImportError:
        raise ValueError("hf tasks need the package datasets: pip install 'fspo[tasks]'") from None
    try:
        rows: list[dict[str, Any]] = load_dataset(name, config, split=split).to_list()
    except (OSError, ValueError) as error:  # no such data set, configuration or split, or no network
        raise ValueError(f"the data set {name!r} cannot be loaded: {' '.join(str(error).split())}") from None
    return rows


def worked(answer: str, solution: str, gold: str) -> str:
    """A completion that earns the reward: the row's derivation, if it has one, ending in a box."""
    # GSM8K writes the derivation into the answer, with calculator annotations <<2+3=5>>.
    text = re.sub(r"<<.*?>>", "", answer.rsplit("####", 1)[0]) if "####" in answer else solution
    text = text.strip()
    boxed = "\\boxed" in text and final_answer(text) == gold
    return text if boxed else f"{text}\n\\boxed{{{gold}}}".lstrip()


class PromptTask(FileTask):
    """Rows with a prompt and, if there is one, a solution; `answer` is what a subclass scores with."""

    def content(self, row: dict[str, Any]) -> str:
        for name in ("prompt", *QUESTION_COLUMNS):
            if name in row:
                return str(row[name])
        raise ValueError(f"a row of {self.path!r} has no prompt (it has {', '.join(row)}): add a prompt")

    def answer(self, row: dict[str, Any]) -> Any:
        return row.get("answer")

    def example(self, split: str, index: int) -> Example:
        row = self.row(split, index)
        return Example(self.content(row), self.answer(row), self.label, index, solution=row.get("solution"))


class Custom(PromptTask):
    """Prompts are the rows of a JSON-lines file; the function is imported in the scoring process only."""

    name: ClassVar[str] = "python"
    summary: ClassVar[str] = "your own reward, function(prompt, completion, answer): python:module:function"
    argument: ClassVar[str | None] = "function"

    function: str = Field(description="module and name of the reward function, as in python:my_rewards:exact.")
    path: str = Field(description="JSON-lines file with a prompt and, if the reward needs one, an answer.")

    @field_validator("function")
    @classmethod
    def _module_and_function(cls, value: str) -> str:
        if value.count(":") != 1 or not all(value.split(":")):
            raise ValueError("it must read module:function")
        return value

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
