"""`code:PATH`: the answer is a Python program, run on inputs whose output is known."""

import re
from typing import Any, ClassVar

from pydantic import Field

from fspo.tasks.rows import PromptTask
from fspo.tasks.sandbox import GRACE, Isolation, Limits, run_python
from fspo.tasks.task import Example


class Code(PromptTask):
    """Each row has a prompt and tests, [{"input": ..., "output": ...}]; the reward is 1 when all tests pass."""

    name: ClassVar[str] = "code"
    summary: ClassVar[str] = "Python programs run in a sandbox against input-output tests: code:PATH"
    argument: ClassVar[str | None] = "path"

    path: str = Field(description="JSON-lines file with `prompt` and `tests`, as in code:problems.jsonl.")
    graded: bool = Field(False, description="Reward the share of tests that pass instead of 0 or 1.")
    seconds: float = Field(4.0, gt=0, le=600, description="Time limit of one test.")
    answer_seconds: float = Field(
        10.0, gt=0, le=3600, description="Time limit of all tests of one answer; tests that it does not reach fail."
    )
    memory_mb: int = Field(512, ge=64, description="Memory limit of a program with all its processes.")
    processes: int = Field(8, ge=1, description="Most processes and threads at once.")
    isolation: Isolation = Field(
        "full", description="limits: run programs even if this machine cannot isolate them; they can read your files."
    )

    def answer(self, row: dict[str, Any]) -> list[list[str]]:
        """Pairs of input and expected output; raises `ValueError` if no program could pass them."""
        tests, name = row.get("tests"), f"the row {self.content(row)[:40]!r} of {self.path!r}"
        if not tests or not all(isinstance(test, dict) and {"input", "output"} <= set(test) for test in tests):
            raise ValueError(f'{name} has no usable tests: write "tests": [{{"input": "...", "output": "..."}}]')
        return [[str(test["input"]), str(test["output"])] for test in tests]

    def score(self, example: Example, completion: str) -> float:
        inputs = [given for given, _ in example.answer]
        limits = Limits(self.seconds, self.memory_mb, self.processes, answer_seconds=self.answer_seconds)
        outcomes = run_python(extract_program(completion), inputs, limits, self.isolation, stop_early=not self.graded)
        passed = [
            outcome.status == "ok" and _same(outcome.stdout, expected)
            for outcome, (_, expected) in zip(outcomes, example.answer, strict=False)
        ]
        return sum(passed) / len(inputs) if self.graded else float(sum(passed) == len(inputs))

    def longest(self, example: Example) -> float:
        return 2 * GRACE + self.answer_seconds

    def prepare(self) -> None:
        """Fail at the start of a run, not at its first answer, if this machine has no sandbox or a row no test."""
        rows, held_out = self.rows()
        for row in (*rows, *(held_out or ())):
            self.answer(row)
        outcome = run_python("", [""], Limits(GRACE, self.memory_mb), self.isolation)[0]
        if outcome.status != "ok":
            raise RuntimeError(f"Python cannot start in the sandbox ({outcome.status}): raise memory_mb")


_FENCE = re.compile(r"```[ \t]*(\w*)[^\n`]*\n(.*?)(?:```|\Z)", re.DOTALL)
_PYTHON = re.compile(r"py(?:thon)?[23]?", re.IGNORECASE)


def extract_program(completion: str) -> str:
    """The last fenced block that is named Python, else the last one without a name, else the whole text.

    A block may be unclosed at the end of the text. Blocks of other languages, such as a sample output, do not count.
    """
    blocks: list[tuple[str, str]] = _FENCE.findall(completion.replace("\r\n", "\n"))
    named = [code for name, code in blocks if _PYTHON.fullmatch(name)]
    unnamed = [code for name, code in blocks if not name]
    return (named or unnamed or [completion])[-1]


def _same(printed: str, expected: str) -> bool:
    """Equal line by line, ignoring white space at the end of lines and of the text."""
    return [line.rstrip() for line in printed.rstrip().splitlines()] == [
        line.rstrip() for line in expected.rstrip().splitlines()
    ]
