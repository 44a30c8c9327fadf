"""`jsonl:PATH` and `hf:NAME`: questions with a mathematical answer, compared by math-verify."""

import re
from functools import lru_cache
from typing import Any, ClassVar

from pydantic import Field

from fspo.tasks.datasets import ANSWER_COLUMNS, QUESTION_COLUMNS, RowTask, column, read_jsonl
from fspo.tasks.task import Example
from fspo.tasks.verify import Mode, equal, final_answer, reference


class QuestionAnswer(RowTask):
    """The reward is 1 when the final answer equals the reference answer as a number or an expression."""

    question_column: str | None = Field(
        None, description="Column of the question; default: the first of question, problem, prompt."
    )
    answer_column: str | None = Field(
        None, description="Column of the reference answer; default: the first of answer, solution."
    )
    verify: Mode = Field(
        "boxed",
        description="boxed: the final answer must be stated as such; any: the result in the last sentence counts too.",
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
        return float(equal(example.answer, completion, self.verify))

    def prepare(self) -> None:
        equal("x", "\\boxed{1}")  # math-verify and sympy, which plain numbers do not need


class Jsonl(QuestionAnswer):
    """Rows of a local file."""

    name: ClassVar[str] = "jsonl"
    summary: ClassVar[str] = "question-answer rows of a JSON-lines file, checked by math-verify: jsonl:PATH"
    argument: ClassVar[str | None] = "path"

    path: str = Field(description="path of a JSON-lines file, as in jsonl:gsm8k_train.jsonl.")
    eval_path: str | None = Field(
        None, description="File whose rows are the eval split; without it a tenth of `path` is held out."
    )

    def rows(self) -> tuple[list[dict[str, Any]], list[dict[str, Any]] | None]:
        return read_jsonl(self.path), read_jsonl(self.eval_path) if self.eval_path else None


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
    stated = final_answer(text) if "\\boxed" in text else None
    return text if stated is not None and stated.parts == (gold,) else f"{text}\n\\boxed{{{gold}}}".lstrip()
