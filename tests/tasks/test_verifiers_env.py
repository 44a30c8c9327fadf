"""`vf:NAME`: data and reward of a verifiers environment.

verifiers brings dozens of packages and is not installed for the tests: a stand-in has the functions that the task
calls, with the signatures of verifiers 0.1.10 to 0.3.1. Where the package is installed, its own classes are used.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from fspo.tasks import verifiers_env
from fspo.tasks.verifiers_env import Verifiers

ROWS = [
    {"prompt": [{"role": "system", "content": "Add."}, {"role": "user", "content": f"{n} + {n} = ?"}],
     "answer": str(2 * n), "info": '{"difficulty": 1}', "example_id": n}
    for n in range(200)
]  # fmt: skip


def right(completion: list[dict[str, str]], answer: str, info: dict[str, Any]) -> float:
    return float(info["difficulty"]) * (completion[-1]["content"] == answer)


class Rubric:
    async def score_rollout(self, state: dict[str, Any]) -> None:
        state["reward"] = 0.5 * right(state["completion"], state["answer"], state["info"])


def environment(**changed: Any) -> SimpleNamespace:
    values = {"max_turns": 1, "rubric": Rubric(), "build_dataset": lambda: ROWS, "build_eval_dataset": lambda: None}
    return SimpleNamespace(**(values | changed))


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    verifiers_env._loaded.cache_clear()
    yield
    verifiers_env._loaded.cache_clear()


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The environments of a stand-in for the package, by name; those with arguments are functions."""
    environments: dict[str, Any] = {"sums": environment()}
    module = ModuleType("verifiers")
    vars(module)["load_environment"] = lambda name, **given: (
        environments[name](**given) if given else environments[name]
    )
    monkeypatch.setitem(sys.modules, "verifiers", module)
    return environments


def test_prompts_splits_and_rewards(installed: dict[str, Any]) -> None:
    task = Verifiers(environment="sums")
    assert task.label == "vf:sums"
    example = task.example("train", 3)
    assert example.prompt.startswith("Add.\n\n")
    assert task.score(example, example.answer["answer"]) == 0.5
    assert task.score(example, "no") == 0
    assert task.example("train", 3) == example
    prompts = [{task.example(split, i).prompt for i in range(task.size(split))} for split in ("train", "eval")]
    assert not prompts[0] & prompts[1]
    assert task.size("train") + task.size("eval") + task.size("validation") == 200


def test_the_environments_own_held_out_rows_are_eval(installed: dict[str, Any]) -> None:
    installed["split"] = lambda n: environment(build_eval_dataset=lambda: ROWS[:n])
    task = Verifiers(environment="split", arguments='{"n": 20}')
    assert task.size("eval") == 20
    assert task.size("train") + task.size("validation") == 180


def test_what_cannot_be_used_is_one_sentence(installed: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    installed["chat"], installed["empty"] = environment(max_turns=-1), environment(build_dataset=lambda: None)
    with pytest.raises(ValueError, match="'chat' has more than one turn"):
        Verifiers(environment="chat").example("train", 0)
    with pytest.raises(ValueError, match="'empty' has no data"):
        Verifiers(environment="empty").example("train", 0)
    monkeypatch.setitem(sys.modules, "verifiers", None)
    with pytest.raises(ValueError, match="vf:missing needs verifiers"):
        Verifiers(environment="missing").prepare()


def test_an_environment_of_the_package_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    vf = pytest.importorskip("verifiers")
    from datasets import Dataset

    def load_environment(n: int = 50) -> Any:
        rows = [{"question": f"{i} + 1?", "answer": str(i + 1), "info": {"difficulty": 1}} for i in range(n)]
        return vf.SingleTurnEnv(dataset=Dataset.from_list(rows), rubric=vf.Rubric(funcs=[right]), system_prompt="Add.")

    module = ModuleType("plus_one")
    vars(module)["load_environment"] = load_environment
    monkeypatch.setitem(sys.modules, "plus_one", module)
    task = Verifiers(environment="plus_one")
    example = task.example("train", 0)
    assert example.prompt.startswith("Add.\n\n")
    assert task.score(example, example.answer["answer"]) == 1
    assert task.score(example, "no") == 0
