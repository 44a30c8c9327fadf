"""Scoring processes: rewards that hang, crash or fork harm only their own answer, and no process is left."""

import json
import math
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import psutil
import pytest

import fspo.tasks as tasks
from fspo.tasks import Score, Scorer, Task
from fspo.tasks.scoring import failures, first_messages

Rewards = Callable[[str], Task]
Children = Callable[[], list[psutil.Process]]
TIMEOUT = 0.5  # seconds for answers that never end; those beside them have the time of their row, 1000 s


@pytest.fixture
def rewards(tmp_path: Path) -> Rewards:
    """The task of a function in helpers/rewards.py, which scoring processes import like a user's module."""
    path = tmp_path / "prompts.jsonl"
    path.write_text("".join(json.dumps({"prompt": f"p{i}", "answer": 1000}) + "\n" for i in range(50)))
    return lambda function: tasks.get(
        {"name": "helpers.rewards:Timed", "function": f"helpers.rewards:{function}", "path": str(path)}
    )


def asked(task: Task, completions: list[str]) -> list[tasks.Example]:
    """One example per completion; those that never end have no time of their own."""
    examples = [task.example("train", i) for i in range(len(completions))]
    endless = [FAILURES.get(completion) == "timeout" for completion in completions]
    return [replace(e, answer=0) if end else e for e, end in zip(examples, endless, strict=True)]


FAILURES = {
    "loop": "timeout", "fork_and_loop": "timeout", "allocate": "memory", "fail": "error", "leave": "error",
    "vanish": "crash", "segfault": "crash", "fork_and_vanish": "crash",
}  # fmt: skip
VALUES = {"good": 1.0, "binary": 0.5, "fork_and_sleep": 0.25, "fork_and_return": 0.25}


@pytest.mark.usefixtures("no_process_left")
def test_bad_rewards_are_counted_and_the_others_go_on(rewards: Rewards, capfd: pytest.CaptureFixture[str]) -> None:
    task = rewards("reward")
    bad = [*FAILURES, *VALUES]
    completions = [name for pair in zip(bad, ["good"] * len(bad), strict=True) for name in pair]
    with Scorer(task, workers=2, timeout=TIMEOUT, memory_mb=96) as scorer:
        everything = scorer.score(asked(task, completions), completions)
    scores = dict(zip(bad, everything[::2], strict=True))
    assert {name: score.failure for name, score in scores.items() if score.failure} == FAILURES
    assert {name: score.value for name, score in scores.items() if not score.failure} == VALUES
    assert all(score.value is None for score in scores.values() if score.failure)
    assert everything[1::2] == [Score(1.0)] * len(bad)
    assert failures(everything) == Counter(FAILURES.values())
    assert "no reward today" in scores["fail"].detail
    assert capfd.readouterr() == ("", "")


def test_numbers_of_all_libraries_are_rewards(rewards: Rewards) -> None:
    right = ["bool", "np.bool_", "np.int64", "np.float32", "np.float16", "array", "bool array", "Fraction", "Decimal"]
    wrong = [
        "np.nan", "Decimal NaN", "np.inf", "past float32", "nan array", "vector", "str", "np.str_", "complex", "list",
        "huge", "text array",
    ]  # fmt: skip
    task = rewards("typed")
    with Scorer(task, workers=1) as scorer:
        scores = scorer.score(asked(task, right + wrong), right + wrong)
    assert [score.value for score in scores] == [1.0] * len(right) + [None] * len(wrong)
    assert failures(scores) == {"error": len(wrong)}
    details = dict(zip(wrong, (score.detail for score in scores[len(right) :]), strict=True))
    assert all("not finite" in details[name] for name in ("np.nan", "Decimal NaN", "np.inf", "nan array"))
    assert all("not a number" in details[name] for name in ("vector", "str", "np.str_", "complex", "list"))
    assert "str '1.0'" in details["str"]
    assert "is beyond 1e+18: scale it down" in details["past float32"]
    assert first_messages(scores) == {"error": details["np.nan"]}


@pytest.mark.usefixtures("no_process_left")
@pytest.mark.parametrize("name", ["fork_and_vanish", "fork_and_loop"])
def test_children_of_a_reward_end_with_its_process(name: str, rewards: Rewards, children: Children) -> None:
    task = rewards("reward")
    with Scorer(task, workers=1, timeout=TIMEOUT) as scorer:
        assert scorer.score(asked(task, [name]), [name])[0].failure == FAILURES[name]
        assert scorer.score([task.example("train", 0)], ["good"]) == [Score(1.0)]
        assert len(children()) == 2  # the server and its worker


@pytest.mark.usefixtures("no_process_left")
def test_a_dead_server_is_replaced(rewards: Rewards, children: Children) -> None:
    task = rewards("reward")
    examples = [task.example("train", i) for i in range(6)]
    with Scorer(task) as scorer:
        assert scorer.score(examples[:1], ["kill_the_server"])[0].failure == "crash"
        assert scorer.score(examples, ["good"] * 6) == [Score(1.0)] * 6
        worker = next(child for child in children() if child.ppid() != os.getpid())
        worker.kill()  # between two batches, as an out-of-memory killer would
        assert scorer.score(examples, ["good"] * 6) == [Score(1.0)] * 6


@pytest.mark.usefixtures("no_process_left")
def test_scores_are_in_order(rewards: Rewards) -> None:
    task = rewards("echo")
    examples = [task.example("train", i) for i in range(600)]
    with Scorer(task) as scorer:
        for _ in range(2):  # the second time in larger chunks
            scores = scorer.score(examples, [str(i) for i in range(600)])
            assert [score.value for score in scores] == [i / 1000 for i in range(600)]


@pytest.mark.usefixtures("no_process_left")
def test_a_batch_that_is_given_up_does_not_mix_up_the_next(rewards: Rewards) -> None:
    task = rewards("reward")
    examples = [task.example("train", i) for i in range(4)]
    with Scorer(task) as scorer:
        with pytest.raises(KeyboardInterrupt):
            scorer.score(examples, ["interrupt_the_trainer", "good", "good", "good"])
        assert scorer.score(examples, ["binary"] * 4) == [Score(0.5)] * 4


@pytest.mark.usefixtures("no_process_left")
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_nothing_survives_a_killed_trainer(how: signal.Signals, rewards: Rewards, tmp_path: Path) -> None:
    prompts = rewards("reward").model_dump()["path"]
    pids = tmp_path / "pids"
    # The bystander inherits every connection, so that none of them closes.
    code = f"""
import os, sys, time
sys.path[:] = {sys.path!r}
import fspo.tasks as t
task = t.get({{"name": "python:helpers.rewards:reward", "path": {prompts!r}}})
scorer = t.Scorer(task, timeout=500).__enter__()
bystander = os.fork()
if not bystander: time.sleep(600); os._exit(0)
print(bystander, flush=True)
scorer.score([task.example("train", 0)], ["tell_pid_and_loop"])
"""
    env = {**os.environ, "FSPO_TEST_PIDS": str(pids)}
    trainer = subprocess.Popen([sys.executable, "-c", code], env=env, stdout=subprocess.PIPE)
    assert trainer.stdout is not None
    bystander = int(trainer.stdout.readline())
    try:
        while not (pids.exists() and len(pids.read_text().split()) == 2) and trainer.poll() is None:
            time.sleep(0.02)
        family = [int(pid) for pid in pids.read_text().split()]
        assert all(psutil.pid_exists(pid) for pid in family)
    finally:
        trainer.send_signal(how)
        trainer.wait()
    for _ in range(3000):
        if not any(map(psutil.pid_exists, family)):
            break
        time.sleep(0.02)
    os.kill(bystander, signal.SIGKILL)
    trainer.stdout.close()
    assert not any(map(psutil.pid_exists, family))


@pytest.mark.usefixtures("no_process_left")
def test_a_reward_that_cannot_be_loaded_is_refused_at_the_start(rewards: Rewards) -> None:
    with pytest.raises(ValueError, match="no function 'rewrd'; did you mean 'reward'"):
        Scorer(rewards("rewrd")).__enter__()


@pytest.mark.parametrize("returned", [None, "1", math.nan, 1e300, KeyError("x")])
def test_bad_rewards_of_a_trusted_task_are_counted_too(returned: Any, children: Children) -> None:
    class Own(tasks.Task):
        name: ClassVar[str] = "own"
        summary: ClassVar[str] = "scores the first answer wrongly"
        trusted: ClassVar[bool] = True

        def score(self, example: tasks.Example, completion: str) -> float:
            if example.index:
                return 1.0
            if isinstance(returned, Exception):
                raise returned
            value: float = returned
            return value

    examples = [tasks.Example("a", None, "own", i) for i in range(2)]
    with Scorer(Own()) as scorer:
        scores = scorer.score(examples, ["", ""])
        assert not children()
    assert [(score.value, score.failure) for score in scores] == [(None, "error"), (1.0, None)]
    assert tasks.get("sort").trusted


def test_the_parts_of_a_mixture_are_scored_by_their_own_rules(rewards: Rewards) -> None:
    task = tasks.Mixture(parts=(tasks.get("sort"), rewards("echo")), weights=(1.0, 1.0))
    examples = [task.example("train", i) for i in range(40)]
    completions = [example.answer if example.task == "sort" else "500" for example in examples]
    with Scorer(task) as scorer:
        scores = scorer.score(examples, completions)
    assert [score.value for score in scores] == [1.0 if e.task == "sort" else 0.5 for e in examples]


def test_an_example_needs_a_completion() -> None:
    task = tasks.get("sort")
    with pytest.raises(ValueError, match="1 examples have 2 completions"):
        Scorer(task).score([task.example("train", 0)], ["a", "b"])
