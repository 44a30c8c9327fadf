"""The loop on a small model: what it writes, what stops it, and every option once."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import polars as pl
import pytest
import torch
from safetensors.torch import load_file

import fspo
from fspo.config import read
from fspo.model.forward import LogProbs
from fspo.model.loading import Policy
from fspo.objectives import Objective, Output
from fspo.runs import Evaluated, Metrics, Sample, Timing, read_lines
from fspo.training import checkpoint
from fspo.training.loop import train
from fspo.training.update import Learner
from helpers.processes import Listener, fingerprint, importable


class Run(Protocol):
    def __call__(self, folder: Path, *overrides: str, observer: Any = None) -> Policy: ...


@pytest.fixture
def run(small: list[str]) -> Run:
    def go(folder: Path, *overrides: str, observer: Any = None) -> Policy:
        return train(read(None, [*small, *overrides]), folder, observer=observer)

    return go


def metrics_of(folder: Path) -> list[Metrics]:
    return read_lines(folder, Metrics)


def weights(policy: Policy) -> torch.Tensor:
    return torch.cat([p.detach().reshape(-1).double() for p in policy.model.parameters()])


def rows(folder: Path) -> pl.DataFrame:
    return pl.read_parquet(folder / "records" / "*.parquet")


def test_what_a_run_writes(run: Run, tmp_path: Path) -> None:
    run(tmp_path)
    metrics = metrics_of(tmp_path)
    assert [m.step for m in metrics] == [1, 2, 3, 4, 5, 6]
    for m in metrics:
        assert m.on_policy is False
        assert m.groups == 8
        assert m.reward is not None
        assert 0 <= m.reward <= 1
        assert all(value is not None and value > 0 for value in (m.kl, m.entropy, m.grad_norm, m.ess))
        assert m.ess is not None
        assert m.ess <= 1
    table = rows(tmp_path)
    assert len(table) == 6 * 4 * 16  # steps, updates, responses of a minibatch
    computed = table.drop_nulls("log_ratio")
    assert not computed.filter(update=0)["off_policy"].any()
    assert computed.filter(pl.col("update") > 0, pl.col("step") > 1)["off_policy"].all()
    assert (table["log_ratio"].is_null() == (table["advantage"] == 0)).all()
    # Clip rates are of answers with a gradient, in the updates that are off-policy.
    for m in metrics:
        pulled = table.filter(pl.col("off_policy"), pl.col("advantage") != 0, step=m.step)
        assert sum(b.count for b in m.clip_by_length) == len(pulled) > 0
        assert m.clip_rate == pytest.approx(1 - np.mean(pulled["accepted"].clip(0, 1).to_numpy()), abs=1e-6)
    first = table.filter(pl.col("staleness") == 0)
    assert (first["log_ratio"] == 0).all()
    assert (first["accepted"] == 1).all()
    last = table.filter(pl.col("staleness") == 3)
    assert (last["log_ratio"] != 0).all()
    assert set(table["update"]) == {0, 1, 2, 3}
    assert json.loads(table["attributes"][0])["size"] >= 2
    # Every response is trained once per epoch, and advantages of a group add up to nothing.
    for (_, index), part in table.filter(pl.col("step") == 2).group_by("step", "index"):
        assert len(part) == 4 * 2, index
        assert abs(np.sum(part["advantage"].to_numpy())) < 1e-5
    assert [e.step for e in read_lines(tmp_path, Evaluated)] == [0, 3, 6]
    assert {c.name for c in (tmp_path / "checkpoints").iterdir()} == {"step-000004", "step-000006"}
    assert len(read_lines(tmp_path, Sample)) == 6 * 4
    assert len(read_lines(tmp_path, Timing)) == 6


def reward_task(folder: Path, body: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """A reward of the user's own, as a task."""
    (folder / "data.jsonl").write_text(
        "".join(json.dumps({"prompt": f"q{i}=", "answer": str(i)}) + "\n" for i in range(99))
    )
    (folder / "own_reward.py").write_text(f"def reward(prompt, completion, answer):\n{body}")
    monkeypatch.setenv("PYTHONPATH", str(folder), prepend=":")
    importable(monkeypatch, folder / "own_reward.py")
    return f"task={{name: 'python:own_reward:reward', path: {folder / 'data.jsonl'}}}"


def test_reinforcement_learns(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    task = reward_task(tmp_path, "    return completion.count('b') / 10\n", monkeypatch)
    run(tmp_path / "run", task, "steps=25", "update.lr=0.002", "eval.every=25")
    rewards = [m.reward or 0.0 for m in metrics_of(tmp_path / "run")]
    assert rewards[0] < 0.6  # the warm start writes other letters too
    assert rewards[-1] > rewards[0] + 0.3


def test_another_task_to_evaluate_on(run: Run, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    run(folder, "steps=1", "eval.task=[{name: sort, n_min: 2, n_max: 3, letters: 4}, {name: count}]", "eval.prompts=32")
    by_task = read_lines(folder, Evaluated)[0].by_task
    assert set(by_task) == {"sort", "count"}
    assert sum(rate.count for rate in by_task.values()) == 32
    assert by_task["sort"].accuracy > 0 == by_task["count"].accuracy
    with pytest.raises(ValueError, match="there is no task 'sorting'"):
        run(tmp_path / "other", "eval.task=sorting")


def test_staleness_trains_on_older_answers(run: Run, tmp_path: Path) -> None:
    run(tmp_path, "rollout.staleness=2")
    assert [m.loss is not None for m in metrics_of(tmp_path)] == [False, False, True, True, True, True]
    table = rows(tmp_path)
    # In updates between sampling and training; before step 3 there were none.
    ages = table.group_by("step").agg(pl.col("staleness").unique().sort()).sort("step")
    assert ages["staleness"].to_list() == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11], [8, 9, 10, 11]]
    # Step 3 trains the answers of step 1, before any update: their first update is on-policy in fact.
    assert (table.filter((pl.col("step") == 3) & (pl.col("update") == 0))["log_ratio"].abs() < 1e-5).all()
    assert (table.filter((pl.col("step") == 5) & (pl.col("update") == 0))["log_ratio"].abs() > 1e-5).any()
    assert set(table.filter(pl.col("step") == 5)["index"]) == set(range(16, 24))


def test_on_policy_truncated_and_flat_runs_are_warned_about(run: Run, tmp_path: Path) -> None:
    watch = Listener()
    run(
        tmp_path, "steps=2", "update.epochs=1", "update.minibatches=1", "rollout.max_new_tokens=2",
        "task={name: sort, n_min: 20, n_max: 30}", observer=watch,
    )  # fmt: skip
    text = " ".join(watch.warnings)
    assert "clipping cannot act" in text
    assert "were truncated" in text
    assert "no variance" in text
    assert metrics_of(tmp_path)[-1].on_policy
    assert len(watch.warnings) == 3, "each is said once"


def test_updates_without_a_finite_gradient_are_skipped_counted_and_stop_the_run(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The weights stay finite, and every loss is made infinite."""
    call = Objective.__call__

    def overflowing(self: Objective, *inputs: Any, **options: Any) -> Output:
        out = call(self, *inputs, **options)
        return replace(out, loss=out.loss * math.inf)

    monkeypatch.setattr(Objective, "__call__", overflowing)
    with pytest.raises(FloatingPointError, match=r"more than update\.max_skipped = 2"):
        run(tmp_path, "update.max_skipped=2", "steps=20")
    metrics = metrics_of(tmp_path)
    assert (metrics[-1].skipped or 0) > 2
    assert len(metrics) < 20


def test_a_run_with_a_skipped_update_can_be_audited(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    forward, calls = Learner._forward, []

    def failing(self: Learner, *inputs: Any) -> LogProbs:
        out = forward(self, *inputs)
        calls.append(out)
        return out._replace(logprobs=out.logprobs * math.nan) if len(calls) == 2 else out

    monkeypatch.setattr(Learner, "_forward", failing)
    run(tmp_path, "steps=3")
    assert metrics_of(tmp_path)[-1].skipped == 1
    assert fspo.audit(tmp_path).rows > 0


@pytest.mark.parametrize("options", [[], ["eval.every=1000", "checkpoint.every=1"]])
def test_weights_that_are_not_finite_stop_the_run_and_are_not_saved(
    run: Run, tmp_path: Path, options: list[str]
) -> None:
    """Whether the next thing that the run does is to sample, to evaluate or to save."""
    with pytest.raises(FloatingPointError, match="not finite"):
        run(tmp_path, "update.lr=1e30", "update.max_skipped=1000", *options)
    for saved in (tmp_path / "checkpoints").glob("step-*"):
        assert all(torch.isfinite(w).all() for w in load_file(saved / "model.safetensors").values())


def test_a_checkpoint_is_not_replaced_by_one_that_is_not_finite(run: Run, tmp_path: Path) -> None:
    policy = run(tmp_path, "steps=2")
    before, optimizer = fingerprint(tmp_path), torch.optim.AdamW(policy.trainable())
    policy.trainable()[0].data.view(-1)[0] = math.nan
    with pytest.raises(FloatingPointError, match="not finite and were not saved"):
        checkpoint.write(tmp_path / "checkpoints", checkpoint.State(step=2), policy, optimizer, 1)
    assert fingerprint(tmp_path) == before


def test_a_reward_that_scores_nothing_stops_the_run(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    task = reward_task(tmp_path, "    raise RuntimeError('no key')\n", monkeypatch)
    with pytest.raises(
        ValueError, match=r"no answer of the evaluation at step 0 could be scored .*RuntimeError: no key"
    ):
        run(tmp_path / "run", task)
    with pytest.raises(ValueError, match=r"no answer of step 1 could be scored .*RuntimeError: no key"):
        run(tmp_path / "other", task, "eval.task={name: sort, n_min: 2, n_max: 3}")


@pytest.mark.parametrize("option", ["model.dtype=bfloat16", "model.lora={rank: 4}"])
def test_the_local_engine_trains_all_weights_in_float32(run: Run, tmp_path: Path, option: str) -> None:
    with pytest.raises(ValueError, match="the local engine trains all weights in float32"):
        run(tmp_path, option)


def test_unscorable_answers_count_apart(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    body = "    if len(completion) % 3 == 0:\n        raise RuntimeError('no')\n    return len(completion) / 10\n"
    task = reward_task(tmp_path, body, monkeypatch)
    watch = Listener()
    run(tmp_path / "run", task, "steps=2", observer=watch)
    metrics = metrics_of(tmp_path / "run")
    assert sum(m.unscored or 0 for m in metrics) > 0
    assert [m.unscored for m in metrics] == [m.unscored_by_kind.get("error", 0) for m in metrics], metrics
    assert all(m.unscored_example == ({"error": "RuntimeError: no"} if m.unscored else {}) for m in metrics)
    said = [w for w in watch.warnings if "could not be scored" in w and "RuntimeError: no" in w]
    assert 1 <= len(said) <= 2, "once for the rollouts, once for the evaluations"
    assert any("RuntimeError: no" in text for m in metrics for text in m.warnings.values())
    table = rows(tmp_path / "run")
    assert table.filter(pl.col("reward").is_nan())["advantage"].abs().sum() == 0


def test_loggers_write_what_their_own_readers_find(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))
    monkeypatch.setenv("MLFLOW_TRACKING_URI", (tmp_path / "mlflow").as_uri())
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")  # no server and no database here
    run(tmp_path / "run", "steps=1", "log={tensorboard: true, trackio: mine, mlflow: mine}")
    from mlflow.tracking import MlflowClient
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from trackio.sqlite_storage import SQLiteStorage

    wanted = {"reward", "grad_norm", "eval/accuracy"}
    events = EventAccumulator(str(tmp_path / "run" / "tensorboard"))
    events.Reload()
    assert wanted <= set(events.Tags()["scalars"])
    assert wanted <= set().union(*SQLiteStorage.get_logs("mine", "run"))
    client = MlflowClient()
    experiment = client.get_experiment_by_name("mine")
    assert experiment is not None
    (logged,) = client.search_runs([experiment.experiment_id])
    assert wanted <= set(logged.data.metrics)
    assert logged.data.params["steps"] == "1"
