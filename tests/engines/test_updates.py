"""The tracker of another trainer's updates: its results do not depend on how a batch is split."""

from __future__ import annotations

import functools
import math
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fspo import objectives
from fspo.engines.updates import UpdateTracker
from fspo.objectives import Objective, Totals
from fspo.runs.recorder import loggable


def update(seed: int, rows: int = 24, width: int = 12) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """New and old log-probs of an off-policy update, its advantages and its mask."""
    generator = torch.Generator().manual_seed(seed)
    old = -torch.rand(rows, width, generator=generator) - 0.5
    new = (old + 0.1 * torch.randn(rows, width, generator=generator) - 0.01).requires_grad_()
    lengths = torch.randint(1, width + 1, (rows,), generator=generator)
    mask = torch.arange(width) < lengths[:, None]
    return new, old, torch.randn(rows, generator=generator), mask


def counts(mask: Tensor) -> dict[str, Any]:
    return {"sequences": len(mask), "tokens": int(mask.sum())}


def run(objective: Objective, cuts: list[int], rollouts: int = 3, updates: int = 2) -> list[tuple[float, Any, Any]]:
    """Losses, gradients and metrics of a few rollouts whose updates are cut into micro-batches at `cuts`."""
    tracker, results = UpdateTracker(objective, updates), []
    for seed in range(rollouts * updates):
        new, old, A, mask = update(seed)
        loss = torch.tensor(0.0)
        for part in torch.tensor_split(torch.arange(len(mask)), cuts):
            if len(part):
                loss = loss + tracker.loss(new[part], old[part], A[part], mask[part], **counts(mask)).loss
        loss.backward()
        results.append((float(loss.detach()), new.grad, tracker.end_update()))
    return results


CASES: list[tuple[str, dict[str, Any]]] = [(name, {}) for name in objectives.names() if objectives.get(name).additive]
CASES += [("fspo", {"drift": "kl"})]  # a drift that is learnt from the batch


@functools.cache
def whole(case: int) -> list[tuple[float, Any, Any]]:
    name, parameters = CASES[case]
    return run(objectives.get(name, **parameters), [])


@given(st.lists(st.integers(1, 23), max_size=5).map(sorted), st.sampled_from(range(len(CASES))))
@settings(max_examples=60, deadline=None)
def test_the_split_into_micro_batches_changes_nothing(cuts: list[int], case: int) -> None:
    name, parameters = CASES[case]
    parts = run(objectives.get(name, **parameters), cuts)
    for (loss, gradient, metrics), (loss_, gradient_, metrics_) in zip(whole(case), parts, strict=True):
        assert loss == pytest.approx(loss_, rel=1e-5, abs=1e-6)
        torch.testing.assert_close(gradient, gradient_)
        assert metrics["mu"] == pytest.approx(metrics_["mu"], rel=1e-9)
        assert metrics["clip_rate"] == pytest.approx(metrics_["clip_rate"], abs=1e-6)


def test_the_drift_is_that_of_the_same_place_in_the_previous_rollout() -> None:
    objective = objectives.get("fspo", drift="kl")
    tracker = UpdateTracker(objective, updates=2)
    sums: list[Totals] = []
    for seed in range(4):
        new, old, A, mask = update(seed)
        known = tracker.totals(len(mask), int(mask.sum()))
        if seed == 0:
            assert known.drift == 0
        else:
            expected = sums[seed - 2] if seed >= 2 else sums[0]
            assert known.drift == pytest.approx(expected.drift)
        tracker.loss(new, old, A, mask, **counts(mask))
        sums.append(Totals.of(new, old, mask))
        tracker.end_update()
    assert (tracker.step, tracker.update) == (3, 0)


def test_an_on_policy_update_keeps_the_last_estimate() -> None:
    tracker = UpdateTracker(objectives.get("fspo", drift="kl"), updates=2)
    for seed in range(4):
        new, old, A, mask = update(seed)
        tracker.loss(new if seed == 1 else old, old, A, mask, **counts(mask))
        tracker.end_update()
    new, old, _, mask = update(1)
    tracker.update = 1
    known, measured = tracker.totals(len(mask), int(mask.sum())), Totals.of(new, old, mask)
    assert known.drift == pytest.approx(measured.drift)


def test_metrics_of_the_objective_are_those_of_all_rows() -> None:
    objective = objectives.get("grpo", kl={"coef": 0.1})
    new, old, A, mask = update(0)
    whole = objective(new, old, A, mask, ref_logprobs=old - 0.1).metrics["kl_reference"]
    tracker = UpdateTracker(objective, 1)
    for part in (slice(0, 5), slice(5, 24)):
        tracker.loss(new[part], old[part], A[part], mask[part], **counts(mask), ref_logprobs=old[part] - 0.1)
    metrics = tracker.end_update()
    assert metrics["kl_reference"] == pytest.approx(whole, rel=1e-5)
    l = (new - old).detach()[mask]
    assert metrics["kl"] == pytest.approx(float((l.expm1() - l).mean()), rel=1e-5)


def test_updates_without_rows_and_a_rollout_that_ends_early(tmp_path: Path) -> None:
    tracker = UpdateTracker(objectives.get("fspo"), updates=3, folder=tmp_path)
    new, old, A, mask = update(0)
    for trained in (mask & False, mask):
        tracker.loss(new, old, A, trained, **counts(mask)).loss.backward()
        tracker.end_update()
    assert not (tmp_path / "records").exists()
    tracker.flush()
    assert set(pl.read_parquet(tmp_path / "records")["update"]) == {1}
    for _ in range(4):  # to the end of this rollout, and one with nothing to train on, which leaves no record
        tracker.loss(new, old, A, mask & False, sequences=len(mask), tokens=1)
        assert tracker.end_update() == {}
    assert (tracker.step, tracker.update) == (3, 0)
    assert set(pl.read_parquet(tmp_path / "records")["step"]) == {1}


def test_a_trainers_log_gets_plain_finite_numbers() -> None:
    tracker = UpdateTracker(objectives.get("fspo", clip_rate=0.2), 1)
    new, old, A, mask = update(0)
    tracker.loss(new, old, A, mask, **counts(mask))
    metrics = tracker.end_update()
    logged = loggable(metrics | {"unbounded": math.inf})
    assert logged["c_low"] == metrics["c_low"]
    assert "unbounded" not in logged
    assert logged["clip_by_length/1"] == metrics["clip_by_length"][0].clip_rate
    assert logged["on_policy"] == 0.0
    assert all(isinstance(value, float) and math.isfinite(value) for value in logged.values())


def test_an_update_without_a_loss_is_refused() -> None:
    with pytest.raises(RuntimeError, match="the update has no loss"):
        UpdateTracker(objectives.get("fspo"), 1).end_update()
