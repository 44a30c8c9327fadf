"""`jsonl:PATH` and `hf:NAME`: questions with a mathematical answer, compared by math-verify."""

import logging
import re
from functools import lru_cache
from typing import Any, ClassVar

from pydantic import Field

from fspo.tasks.datasets import ANSWER_COLUMNS, QUESTION_COLUMNS, RowTask, column, read_jsonl
from fspo.tasks.task import Example


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
        equal("1", "\\boxed{1}")


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
        raise ValueError("hf tasks need the package datasets: pip install fspo[tasks]") from None
    rows: list[dict[str, Any]] = load_dataset(name, config, split=split).to_list()
    return rows


def reference(text: str) -> str:
    """The final answer in a reference solution: after GSM8K's ####, else in the last box, else the whole text."""
    if "####" in text:
        return text.rsplit("####", 1)[1].strip().replace(",", "")
    return boxed(text) or text.strip()


def boxed(text: str) -> str | None:
    """The content of the last \\boxed{...}, including nested braces; None if there is no complete box."""
    start = text.rfind("\\boxed{")
    if start < 0:
        return None
    depth = 0
    for i in range(start + 6, len(text)):
        depth += {"{": 1, "}": -1}.get(text[i], 0)
        if depth == 0:
            return text[start + 7 : i].strip()
    return None


def worked(answer: str, solution: str, gold: str) -> str:
    """A completion that earns the reward: the row's derivation, if it has one, ending in a box."""
    # GSM8K writes the derivation into the answer, with calculator annotations <<2+3=5>>.
    text = re.sub(r"<<.*?>>", "", answer.rsplit("####", 1)[0]) if "####" in answer else solution
    text = text.strip()
    return text if boxed(text) == gold else f"{text}\n\\boxed{{{gold}}}".lstrip()


def equal(gold: str, completion: str) -> bool:
    """Whether the completion's final answer equals the reference.

    math-verify's own time limits are signals, which work in a main thread only and turn every score into zero
    elsewhere. They are off here; the scorer limits the time.
    """
    try:
        from math_verify import ExprExtractionConfig, LatexExtractionConfig, parse, verify
    except ImportError:
        raise ValueError("question-answer tasks need the package math-verify: pip install fspo[tasks]") from None
    logging.getLogger("math_verify").setLevel(logging.ERROR)
    final = boxed(completion)
    if final is None and "####" in completion:
        final = completion.rsplit("####", 1)[1].strip()
    if final is not None and _plain(final) == _plain(gold):
        return True
    how = [LatexExtractionConfig(), ExprExtractionConfig()]
    wanted = parse(f"${gold}$", extraction_config=how, parsing_timeout=None)
    if not wanted:
        raise ValueError(f"math-verify cannot read the reference answer {gold!r}: correct that row")
    text = completion if final is None else f"\\boxed{{{final}}}"
    given = parse(text, extraction_config=how, parsing_timeout=None)
    return bool(verify(wanted, given, timeout_seconds=None))


def _plain(text: str) -> str:
    """The text without LaTeX font commands and surplus white space, so that words can be compared too."""
    bare = re.sub(r"\\(?:text|mathrm|textbf)\{([^{}]*)\}", r"\1", text)
    return re.sub(r"\s+", " ", bare).strip("$. ")
