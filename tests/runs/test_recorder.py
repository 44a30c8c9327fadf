"""The metrics of a step are a fact about its updates, not about how they were split into micro-batches."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from fspo import objectives, ratios, tasks
from fspo.config import read
from fspo.model.answers import Answers, split
from fspo.model.loading import load
from fspo.runs import Metrics, RunWarning, RunWriter, read_lines
from fspo.runs.recorder import Recorder, Update, warnings_of
from fspo.tasks.scoring import Scorer
from fspo.training.collect import collect
from fspo.training.processes import Team
from fspo.training.update import Learner

WHOLE, PARTS = 100_000, 40  # tokens of a micro-batch


def learned(small: list[str], token_budget: int, objective: str) -> tuple[Answers, list[Update], Metrics]:
    """One step in double precision, where the split changes a forward pass by less than 1e-12."""
    config = read(None, [*small, f"objective={objective}", f"update.token_budget={token_budget}", "update.lr=0.001"])
    policy = load(config.model.path)
    policy.model.double()
    task = tasks.get(config.task)
    with Scorer(task, **config.scoring.model_dump()) as scorer:
        sampled, _ = collect(policy, task, scorer, config, 1, 0, Team())
    updates = Learner(policy, objectives.get(**config.objective), config).learn(sampled, 1)
    recorder = Recorder()
    for update in updates:
        recorder.add(update)
    return sampled, updates, recorder.close(1)


@pytest.mark.parametrize("objective", ["fspo", "{name: fspo, drift: kl}", "fspo_adaptive", "gspo", "grpo"])
def test_no_metric_depends_on_the_token_budget(small: list[str], objective: str) -> None:
    sampled, _, whole = learned(small, WHOLE, objective)
    _, _, parts = learned(small, PARTS, objective)
    assert len(split(sampled, WHOLE)) == 1 < len(split(sampled, PARTS))
    expected, found = (
        {key: value for key, value in m.model_dump().items() if isinstance(value, float)} for m in (whole, parts)
    )
    assert {"mu", "sigma", "ess", "clip_rate", "kl", "grad_norm", "lre"} <= found.keys()
    assert found == pytest.approx(expected, rel=1e-9, abs=1e-12)
    assert parts.clip_by_length == whole.clip_by_length


def test_mu_sigma_and_ess_are_those_of_the_responses(small: list[str]) -> None:
    """mu and sigma of the last update, and the least effective sample size of those that are off-policy."""
    sampled, updates, metrics = learned(small, PARTS, "fspo")
    last = updates[-1]
    rows = [last.members[k] for k in last.computed]
    S, L = last.log_ratio, np.array(sampled.lengths, dtype=float)[rows]
    assert metrics.mu == pytest.approx(ratios.drift(S, L), rel=1e-12)
    assert metrics.sigma == pytest.approx(ratios.scale(S, L, ratios.drift(S, L)), rel=1e-12)
    least = min(ratios.effective_share(u.log_ratio) for u in updates if u.off_policy)
    assert metrics.ess == pytest.approx(least, rel=1e-12)


def test_the_objectives_own_numbers_are_metrics_and_replace_no_others(small: list[str]) -> None:
    _, updates, metrics = learned(small, PARTS, "'helpers.custom_objective:Talkative'")
    mean = float(np.mean([u.metrics["own_number"] for u in updates if u.computed]))
    assert metrics.model_dump()["own_number"] == pytest.approx(mean, rel=1e-12)
    assert mean > 0


WARNED: list[tuple[dict[str, Any], set[str]]] = [
    ({"clip_rate": 0.85}, {"clip_rate"}),
    ({"clip_rate": 0.75}, set()),
    ({"ess": 0.05}, {"drift"}),
    ({"truncated": 0.6}, {"truncated"}),
    ({"groups": 8, "groups_without_variance": 6, "groups_single": 1}, {"variance"}),
    ({"groups": 8, "groups_without_variance": 6}, set()),
    ({"on_policy": True, "updates": 1}, {"on_policy"}),
    ({"on_policy": True, "updates": 2}, set()),
    ({"unscored_by_kind": {"error": 2}, "unscored_example": {"error": "no"}}, {"unscored_error"}),
    ({}, set()),
]


@pytest.mark.parametrize(("values", "kinds"), WARNED, ids=str)
def test_what_is_worth_a_warning(values: dict[str, Any], kinds: set[str]) -> None:
    assert warnings_of(Metrics(step=1, **values)).keys() == kinds


def update(k: int, log_ratio: list[float | None], skipped: bool = False) -> Update:
    n = len(log_ratio)
    columns: dict[str, list[Any]] = {"log_ratio": log_ratio, "length": [4] * n, "advantage": [1.0] * n}
    columns["accepted"] = [None if S is None else float(S < 1) for S in log_ratio]
    return Update(k, k, columns, {"loss": float(k)}, skipped=skipped)


def test_a_step_is_written_with_its_rows_and_the_next_begins_empty(tmp_path: Path) -> None:
    recorder = Recorder(RunWriter(tmp_path))
    for each in (update(0, [0.0, 0.0, None]), update(1, [2.0, 0.5]), update(2, [9.0], skipped=True)):
        recorder.add(each)
    metrics = recorder.close(7, reward=0.5)
    (line,) = read_lines(tmp_path, Metrics)
    assert line == metrics
    assert (line.step, line.reward, line.updates, line.rows, line.rows_computed) == (7, 0.5, 3, 6, 5)
    assert line.loss == 0.5, "a skipped update is in no mean"
    assert line.clip_rate == 0.5, "of the off-policy update alone"
    rows = pl.read_parquet(tmp_path / "records")
    assert rows["update"].to_list() == [0, 0, 0, 1, 1, 2]
    assert rows["off_policy"].to_list() == [False] * 3 + [True] * 3
    assert rows["log_ratio"].null_count() == rows["accepted"].null_count() == 1
    assert recorder.updates == []


def test_a_step_that_cannot_be_written_is_counted_and_warned_about_once(tmp_path: Path) -> None:
    writer = RunWriter(tmp_path)
    (tmp_path / "metrics.jsonl").mkdir()
    with pytest.raises(OSError, match="directory"):
        Recorder(writer, optional=False).close(1)
    recorder = Recorder(writer)
    recorder.add(update(0, [0.5, 0.2]))
    with pytest.warns(RunWarning, match="the run goes on without records") as caught:
        closed = [recorder.close(step) for step in (1, 2, 3)]
    assert [(metrics.step, metrics.updates) for metrics in closed] == [(1, 1), (2, None), (3, None)]
    assert (recorder.lost, len(caught)) == (3, 1)
