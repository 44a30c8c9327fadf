import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path

import psutil
import pytest

import fspo.tasks as tasks
from fspo.tasks import Score, Scorer

HERE = Path(__file__).parent


@pytest.fixture
def rewards(tmp_path, monkeypatch):
    """A task for each function of rewards.py."""
    monkeypatch.syspath_prepend(str(HERE))
    path = tmp_path / "prompts.jsonl"
    path.write_text("".join(json.dumps({"prompt": f"p{i}", "answer": 1000}) + "\n" for i in range(50)))
    return lambda function: tasks.get({"name": f"python:rewards:{function}", "path": str(path)})


FAILURES = {
    "loop": "timeout",
    "loop_in_c": "timeout",
    "fork_and_loop": "timeout",
    "allocate": "memory",
    "fail": "error",
    "leave": "error",
    "not_a_number": "error",
    "infinite": "error",
    "words": "error",
    "nothing": "error",
    "vanish": "crash",
    "segfault": "crash",
    "fork_and_vanish": "crash",
}
VALUES = {
    "good": 1.0,
    "integer": 1.0,
    "binary": 0.5,
    "fork_and_sleep": 0.25,
    "fork_and_return": 0.25,
    "daemonise": 0.25,
}


def test_bad_rewards_are_counted_and_the_others_go_on(rewards, no_process_left, capfd):
    task = rewards("reward")
    bad = [*FAILURES, *VALUES]
    completions = [name for pair in zip(bad, ["good"] * len(bad), strict=True) for name in pair]
    examples = [task.example("train", i) for i in range(len(completions))]
    with Scorer(task, workers=2, timeout=1.0, memory_mb=96) as scorer:
        everything = scorer.score(examples, completions)
    scores = dict(zip(bad, everything[::2], strict=True))
    assert {name: score.failure for name, score in scores.items() if score.failure} == FAILURES
    assert {name: score.value for name, score in scores.items() if not score.failure} == VALUES
    assert all(score.value is None for score in scores.values() if score.failure)
    assert everything[1::2] == [Score(1.0)] * len(bad)
    assert scorer.failures == Counter(FAILURES.values())
    assert "no reward today" in scores["fail"].detail
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("name", ["fork_and_sleep", "daemonise", "fork_and_vanish", "fork_and_loop"])
def test_children_of_a_reward_end_with_its_sample(name, rewards, children, no_process_left):
    task = rewards("reward")
    with Scorer(task, workers=1, timeout=1.0) as scorer:
        score = scorer.score([task.example("train", 0)], [name])[0]
        assert (score.value, score.failure) == (VALUES.get(name), FAILURES.get(name))
        scorer.score([task.example("train", 0)], ["good"])
        # the nursery and its worker
        assert len(children()) == 2


def test_a_dead_nursery_is_replaced(rewards, children, no_process_left):
    task = rewards("reward")
    examples = [task.example("train", i) for i in range(6)]
    with Scorer(task, timeout=5) as scorer:
        assert scorer.score(examples[:1], ["kill_the_nursery"])[0].failure == "crash"
        assert scorer.score(examples, ["good"] * 6) == [Score(1.0)] * 6
        nursery = next(child for child in children() if child.ppid() == os.getpid())
        nursery.kill()  # between two batches, as an out-of-memory killer would
        assert scorer.score(examples, ["good"] * 6) == [Score(1.0)] * 6


def test_order_and_throughput(rewards, no_process_left):
    task = rewards("echo")
    n = 3000
    examples = [task.example("train", i) for i in range(n)]
    with Scorer(task) as scorer:
        scorer.score(examples[:10], ["1"] * 10)
        start = time.perf_counter()
        scores = scorer.score(examples, [str(i) for i in range(n)])
        seconds = time.perf_counter() - start
    assert [score.value for score in scores] == [i / 1000 for i in range(n)]
    assert seconds / n < 1e-3
    assert not scorer.failures


def test_one_hanging_sample_costs_only_itself(rewards):
    task = rewards("reward")
    examples = [task.example("train", i) for i in range(64)]
    completions = ["good"] * 64
    completions[7] = completions[40] = "loop"
    with Scorer(task, timeout=0.5) as scorer:
        scores = scorer.score(examples, completions)
    assert [i for i, score in enumerate(scores) if score != Score(1.0)] == [7, 40]
    assert scorer.failures == {"timeout": 2}


def test_an_interrupt_does_not_mix_up_the_next_batch(rewards, no_process_left):
    task = rewards("reward")
    examples = [task.example("train", i) for i in range(4)]
    with Scorer(task, timeout=20) as scorer:
        stopped = threading.Event()

        def press() -> None:
            """Again where Python lost the first: an interrupt that meets a collector's callback is only printed."""
            while not stopped.wait(0.5):
                os.kill(os.getpid(), signal.SIGINT)

        threading.Thread(target=press, daemon=True).start()
        with pytest.raises(KeyboardInterrupt):
            scorer.score(examples, ["loop", "loop", "binary", "binary"])
        stopped.set()
        assert scorer.score(examples, ["good"] * 4) == [Score(1.0)] * 4


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_nothing_survives_a_killed_trainer(how, rewards, tmp_path, no_process_left):
    task = rewards("reward")
    pids = tmp_path / "pids"
    code = (
        f"import sys; sys.path[:] = {sys.path!r}\n"
        "import os, time\n"
        "import fspo.tasks as t\n"
        f"task = t.get({{'name': 'python:rewards:reward', 'path': {task.path!r}}})\n"
        "scorer = t.Scorer(task, timeout=500).__enter__()\n"
        "bystander = os.fork()\n"  # it inherits every connection, so that none of them closes
        "if not bystander: time.sleep(60); os._exit(0)\n"
        "print(bystander, flush=True)\n"
        "scorer.score([task.example('train', 0)], ['tell_pid_and_loop'])\n"
    )
    env = {**os.environ, "FSPO_TEST_PIDS": str(pids)}
    trainer = subprocess.Popen([sys.executable, "-c", code], env=env, stdout=subprocess.PIPE)
    bystander = int(trainer.stdout.readline())
    try:
        end = time.monotonic() + 20
        while not (pids.exists() and len(pids.read_text().split()) == 2) and time.monotonic() < end:
            time.sleep(0.02)
        family = [int(pid) for pid in pids.read_text().split()]
        assert all(psutil.pid_exists(pid) for pid in family)
    finally:
        trainer.send_signal(how)
        trainer.wait()
    end = time.monotonic() + 5
    while any(map(psutil.pid_exists, family)) and time.monotonic() < end:
        time.sleep(0.02)
    os.kill(bystander, signal.SIGKILL)
    trainer.stdout.close()
    time.sleep(0.05)
    assert not any(map(psutil.pid_exists, family))


def test_a_reward_that_cannot_be_loaded_is_refused_at_the_start(rewards, no_process_left):
    with pytest.raises(ValueError, match="no function 'rewrd'; did you mean 'reward'"):
        Scorer(rewards("rewrd")).__enter__()


def test_trusted_tasks_start_no_process(children):
    task = tasks.get("sort")
    examples = [task.example("train", i) for i in range(500)]
    with Scorer(task) as scorer:
        scores = scorer.score(examples, [example.solution for example in examples])
        assert not children()
    assert scores == [Score(1.0)] * 500


def test_a_mixture_sends_only_the_untrusted_part_to_processes(rewards):
    task = tasks.Mixture(parts=(tasks.get("sort"), rewards("echo")), weights=(1.0, 1.0))
    examples = [task.example("train", i) for i in range(40)]
    completions = [example.solution if example.task == "sort" else "500" for example in examples]
    with Scorer(task) as scorer:
        scores = scorer.score(examples, completions)
    assert [score.value for score in scores] == [1.0 if e.task == "sort" else 0.5 for e in examples]


def test_arguments_are_checked():
    task = tasks.get("sort")
    for bad in ({"workers": 0}, {"timeout": 0.0}, {"memory_mb": 1}):
        with pytest.raises(ValueError, match=next(iter(bad))):
            Scorer(task, **bad)
    with pytest.raises(ValueError, match="1 examples have 2 completions"):
        Scorer(task).score([task.example("train", 0)], ["a", "b"])
