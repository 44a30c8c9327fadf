"""Tasks by name, by `module:Class`, from other packages and in mixtures; bad specifications give one sentence."""

import pickle
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fspo.tasks as tasks
from fspo.config import TrainConfig
from fspo.tasks import Score, Scorer
from helpers.processes import importable, printed, write_package

MODULE = """
from typing import ClassVar

from pydantic import Field

from fspo.tasks import Example, Task


class Repeat(Task):
    name: ClassVar[str] = "repeat"
    summary: ClassVar[str] = "repeat a letter: 3a -> aaa"

    most: int = Field(4, ge=1, description="Most repetitions.")

    def example(self, split, index):
        n = 1 + index % self.most
        return Example(prompt=f"{n}a", answer="a" * n, task=self.label, index=index)

    def score(self, example, completion):
        return float(completion == example.answer)


class Outer:
    class Inner(Repeat):
        pass
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A module with a task, on the path of this process."""
    (tmp_path / "own_tasks.py").write_text(MODULE)
    return importable(monkeypatch, tmp_path / "own_tasks.py")


def test_every_name_has_one_line() -> None:
    assert set(tasks.names()) == set(tasks.summaries())
    assert all(line and "\n" not in line and len(line) < 100 for line in tasks.summaries().values())
    assert {"sort", "add", "reasoning_gym", "jsonl", "hf", "python", "code"} <= set(tasks.names())


@pytest.mark.parametrize(
    ("spec", "sentence"),
    [
        ("srt", "there is no task 'srt'; did you mean 'sort'?"),
        ({"name": "sort", "n_mx": 5}, "task sort has no parameter 'n_mx'; did you mean 'n_max'?"),
        ({"name": "sort", "n_max": 0}, "task sort.n_max = 0: Input should be greater than or equal to 1"),
        ({"name": "sort", "n_min": 9, "n_max": 3}, "n_min 9 is above n_max 3: swap them"),
        ({"n_max": 5}, "has no name: add 'name'"),
        ("sort:5", "task 'sort' takes nothing after a colon"),
        ("jsonl", "task jsonl needs the parameter 'path': path of a JSON-lines file"),
        ({"name": "python:module", "path": "p"}, "it must read module:function"),
        ([], "is not a task: write a name"),
        (7, "7 is not a task: write a name"),
        ([{"name": "sort", "weight": -1}], "weight -1.0 is not positive"),
    ],
)
def test_a_wrong_specification_gives_one_sentence(spec: Any, sentence: str) -> None:
    assert sentence in refused(spec)


def refused(spec: Any) -> str:
    """The one line with which a specification is refused."""
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        tasks.get(spec)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_class_of_a_module_is_a_task_with_parameters(module: str) -> None:
    task = tasks.get({"name": f"{module}:Repeat", "most": 3})
    examples = [task.example("train", i) for i in range(4)]
    assert [example.prompt for example in examples] == ["1a", "2a", "3a", "1a"]
    with Scorer(task) as scorer:  # in processes that import the module themselves
        assert scorer.score(examples[:2], ["a", "a"]) == [Score(1.0), Score(0.0)]
    assert TrainConfig(task={"name": f"{module}:Repeat", "most": 3}).task["most"] == 3
    mixture = tasks.get([f"{module}:Repeat", "sort"])
    assert {mixture.example("train", i).task for i in range(100)} == {"repeat", "sort"}
    assert "repeat" not in tasks.names()


def test_a_class_within_a_class_is_written_and_found_again(module: str) -> None:
    task = tasks.get(f"{module}:Outer.Inner")
    assert tasks.spec(task) == {"name": f"{module}:Outer.Inner"}
    assert tasks.get(tasks.spec(task)) == task


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"prompt": 5}, "the prompt 5 of the task 't' is not text"),
        ({"difficulty": float("nan")}, "the difficulty nan of the prompt 'a' is not finite"),
        ({"difficulty": None}, "the difficulty None of the prompt 'a' is not finite"),
    ],
)
def test_an_example_is_checked(values: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        tasks.Example(**({"prompt": "a", "answer": None, "task": "t", "index": 0} | values))


def test_an_installed_package_adds_a_task_by_its_entry_point(tmp_path: Path) -> None:
    write_package(tmp_path, "other_tasks", MODULE, "fspo.tasks", {"repeat": "other_tasks:Repeat"})
    task = "fspo.tasks.get({'name': 'repeat', 'most': 2})"
    assert printed(f"import json, fspo; print(json.dumps({task}.example('train', 1).answer))", tmp_path) == "aa"


def test_a_task_is_its_parameters() -> None:
    task = tasks.get({"name": "sort", "n_max": 10})
    assert task == tasks.get({"n_max": 10, "name": "sort"})
    assert tasks.get(task) is task
    assert pickle.loads(pickle.dumps(task)) == task
    with pytest.raises(ValueError, match="frozen"):
        task.__setattr__("n_max", 5)


def test_a_mixture_keeps_its_proportions_and_leaves_no_gap() -> None:
    mixture = tasks.get([{"name": "sort", "weight": 3}, "add", {"name": "sort", "n_max": 8, "weight": 0.01}])
    examples = [mixture.example("train", i) for i in range(2000)]
    counts = Counter(example.task for example in examples)
    assert counts == {"sort": 1496, "add": 498, "sort#2": 6}
    for name, part in (("sort", "sort"), ("add", "add")):
        alone = [tasks.get(part).example("train", i).prompt for i in range(counts[name])]
        assert [e.prompt for e in examples if e.task == name] == alone
    assert [example.index for example in examples] == list(range(2000))
    assert all(mixture.score(example, example.answer) == 1.0 for example in examples)
    assert mixture.component(next(e for e in examples if e.task == "sort#2")) == tasks.get({"name": "sort", "n_max": 8})
    assert counts["sort"] / 2000 == pytest.approx(3 / 4.01, abs=0.001)


@given(st.lists(st.floats(1e-6, 1e6), min_size=1, max_size=8))
@settings(max_examples=50, deadline=None)
def test_any_positive_weights_make_a_mixture(weights: list[float]) -> None:
    mixture = tasks.get([{"name": "add", "weight": weight, "seed": i} for i, weight in enumerate(weights)])
    seen = {mixture.example("train", i).task for i in range(1000)}
    assert len(seen) == len(weights)
