"""The measured direction of updates: 1 where nothing is clipped, above its bound, and without a trace in training."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import fspo
from fspo.config import read
from fspo.runs import Cosine, Metrics, read_lines
from fspo.training.loop import train
from fspo.training.update import measure_direction
from helpers.batches import random_batch
from helpers.processes import fingerprint


def cosines(small: list[str], folder: Path, *overrides: str) -> list[Cosine]:
    train(read(None, [*small, "log.cosine=1", *overrides]), folder)
    return read_lines(folder, Cosine)


@pytest.mark.parametrize(
    "objective",
    ["{name: gspo, clip_low: 0.002, clip_high: 0.002}", "{name: fspo, c_low: 0.005, c_high: 0.005}"],
)
def test_clipping_turns_the_update_no_further_than_the_bound(small: list[str], tmp_path: Path, objective: str) -> None:
    rows = cosines(small, tmp_path, f"objective={objective}", "update.lr=0.001")
    assert {row.update for row in rows} == {3}, "the last of four"
    for row in rows:
        assert -1 <= row.bound <= row.measured <= 1 + 1e-9
        assert row.bound <= row.bound_tight
    clipped = {m.step for m in read_lines(tmp_path, Metrics) if m.clip_rate}
    assert clipped & {row.step for row in rows}, "clipping must have acted where the direction was measured"


CASES: list[tuple[str, dict[str, Any]]] = [(name, {}) for name in fspo.objectives.names()]
CASES += [("fspo", {"drift": "kl"})]
SUMS = ("fspo", "fspo_adaptive", "rloo", "reinforce", "dr_grpo", "luspo")  # on-policy the true update, up to a constant


@pytest.mark.parametrize(("name", "parameters"), CASES, ids=str)
def test_the_cosine_of_the_loss_itself_and_its_bound_on_a_linear_model(name: str, parameters: dict[str, Any]) -> None:
    """Log-probs that are linear in few parameters, with |S| of up to 0.3."""
    objective, measured = fspo.objectives.get(name, **parameters), 0
    for seed in range(40):
        batch = random_batch(seed, rows=24, positions=12, most=0.3)
        features = torch.randn(24, 12, 3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        w = torch.zeros(3, dtype=torch.float64, requires_grad=True)
        inputs = (batch.logprobs + features @ w, batch.old_logprobs, batch.advantages, batch.mask)
        direction = measure_direction(objective, inputs, None, 1, [w], 4)
        if direction is not None:
            assert direction.bound <= direction.measured + 1e-9, seed
            assert sum(share.clipped for share in direction.shares) == pytest.approx(1)
            S = torch.where(batch.mask, inputs[0] - inputs[1], 0.0).sum(-1)
            (true,) = torch.autograd.grad((S.exp() * batch.advantages).mean(), w, retain_graph=True)
            (ours,) = torch.autograd.grad(-objective(*inputs, staleness=1).loss, w)
            assert direction.measured == pytest.approx(float(torch.cosine_similarity(true, ours, 0)), abs=1e-9), seed
            measured += 1
        assert w.grad is None
    assert measured > 20
    now = batch.logprobs + features @ w
    if name in SUMS:
        direction = measure_direction(objective, (now, now.detach(), batch.advantages, batch.mask), None, 0, [w], 4)
        assert direction is not None
        assert (direction.measured, direction.bound_tight) == pytest.approx((1, 1), abs=1e-6)
    zero = (now, batch.old_logprobs, torch.zeros_like(batch.advantages), batch.mask)
    assert measure_direction(objective, zero, None, 1, [w], 4) is None, "an update without a direction"


@pytest.mark.parametrize("objective", ["{name: fspo, drift: kl}", "grpo"])
def test_training_is_the_same_to_the_bit(small: list[str], tmp_path: Path, objective: str) -> None:
    """Several micro-batches too: their first is measured, with the band of the whole minibatch."""
    options = [f"objective={objective}", "update.token_budget=120", "rollout.group=8", "steps=4"]
    train(read(None, [*small, *options]), tmp_path / "plain")
    assert cosines(small, tmp_path / "measured", *options)
    plain, measured = fingerprint(tmp_path / "plain"), fingerprint(tmp_path / "measured")
    del measured["cosine.jsonl"]
    assert plain == measured
