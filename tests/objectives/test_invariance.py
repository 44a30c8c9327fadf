"""What must not change a loss: padding, order, the split into micro-batches, and whatever stands outside the mask."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import fspo
from fspo.objectives import Objective, Totals
from fspo.objectives.batch import Batch
from helpers.batches import Inputs, random_batch

OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "kl": {"kl": {"coef": 0.2, "kind": "k3", "importance": True}},
    "entropy": {"entropy_coef": 0.1},
    "token mismatch": {"mismatch": {"level": "token", "mode": "truncate", "high": 1.5}},
    "sqrt(L) mismatch": {"mismatch": {"c": 0.2, "drift": -0.01}},
}
CASES = [(name, "plain") for name in fspo.objectives.names()] + [
    (name, option)
    for name in ("fspo", "grpo", "gspo", "gmpo", "dr_grpo", "length_family")
    for option in list(OPTIONS)[1:]
]
VARIANTS: list[tuple[str, dict[str, Any]]] = [
    ("fspo", {"drift": "kl"}),
    ("fspo", {"drift": "bounded", "c_low": 0.1, "c_high": 0.1}),
    ("fspo", {"clip_rate": 0.2, "drift": "kl"}),
    ("fspo", {"dual": 10.0, "exponent": 0.6, "drift": "zero"}),
    ("grpo", {"dual_clip": 2.0}),
    ("length_family", {"ratio_exponent": 0.3, "band_exponent": 0.8, "gain_exponent": -0.5}),
    ("length_family", {"drift": "bounded"}),
]
MADE = [fspo.objectives.get(n, **OPTIONS[o]) for n, o in CASES] + [fspo.objectives.get(n, **v) for n, v in VARIANTS]
IDS = [f"{n}, {o}" for n, o in CASES] + [f"{n}, {v}" for n, v in VARIANTS]
every_objective = pytest.mark.parametrize("objective", MADE, ids=IDS)
additive_objective = pytest.mark.parametrize(  # the others rank or draw tokens of the batch they are given
    "objective",
    [objective for objective in MADE if objective.additive],
    ids=[name for name, objective in zip(IDS, MADE, strict=True) if objective.additive],
)
seeds = st.integers(0, 10**6)


def loss_and_gradient(objective: Objective, batch: Inputs, totals: Totals | None = None) -> tuple[Tensor, Tensor]:
    logprobs = batch.logprobs.clone().requires_grad_()
    loss = objective(logprobs, *batch.arguments()[1:], totals=totals, **batch.options()).loss
    (gradient,) = torch.autograd.grad(loss, logprobs)
    return loss.detach(), gradient


def assert_same(a: Tensor, b: Tensor) -> None:
    torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-10)


@every_objective
@given(seed=seeds, left=st.integers(0, 5), right=st.integers(0, 5))
def test_padding(objective: Objective, seed: int, left: int, right: int) -> None:
    batch = random_batch(seed)
    padded = Inputs(*(torch.nn.functional.pad(v, (left, right)) if v.dim() == 2 else v for v in vars(batch).values()))
    loss, gradient = loss_and_gradient(objective, batch)
    padded_loss, padded_gradient = loss_and_gradient(objective, padded)
    assert_same(loss, padded_loss)
    assert_same(gradient, padded_gradient[:, left : padded_gradient.shape[1] - right])


@additive_objective
@given(seed=seeds)
def test_order_of_the_batch(objective: Objective, seed: int) -> None:
    batch = random_batch(seed)
    order = torch.randperm(len(batch.mask), generator=torch.Generator().manual_seed(seed))
    loss, gradient = loss_and_gradient(objective, batch)
    moved_loss, moved_gradient = loss_and_gradient(objective, batch[order])
    assert_same(loss, moved_loss)
    assert_same(gradient[order], moved_gradient)


@additive_objective
@given(seed=seeds, cuts=st.sets(st.integers(1, 11), max_size=11))
def test_any_split_into_micro_batches(objective: Objective, seed: int, cuts: set[int]) -> None:
    batch = random_batch(seed, rows=12)
    edges = [0, *sorted(cuts), 12]
    parts = [batch[slice(a, b)] for a, b in itertools.pairwise(edges)]
    totals = [Totals.of(part.logprobs, part.old_logprobs, part.mask) for part in parts]
    total = Totals.from_vector(torch.tensor([t.vector() for t in totals], dtype=torch.float64).sum(0).tolist())
    whole, whole_gradient = loss_and_gradient(objective, batch)
    pieces = [loss_and_gradient(objective, part, total) for part in parts]
    assert_same(torch.stack([loss for loss, _ in pieces]).sum(), whole)
    assert_same(torch.cat([gradient for _, gradient in pieces]), whole_gradient)


@every_objective
@pytest.mark.parametrize("filling", [torch.inf, -torch.inf, torch.nan])
def test_what_stands_outside_the_mask(objective: Objective, filling: float) -> None:
    batch = random_batch(3)
    filled = Inputs(
        *(v if v.dim() == 1 or v is batch.mask else torch.where(batch.mask, v, filling) for v in vars(batch).values())
    )
    for part in ("logprobs", "old_logprobs"):
        assert not torch.isfinite(getattr(filled, part)).all()
    for ours, expected in zip(loss_and_gradient(objective, filled), loss_and_gradient(objective, batch), strict=True):
        assert torch.equal(ours, expected)


@every_objective
def test_old_and_reference_policies_get_no_gradient(objective: Objective) -> None:
    batch = random_batch(5)
    logprobs, old, ref = (x.clone().requires_grad_() for x in (batch.logprobs, batch.old_logprobs, batch.ref_logprobs))
    options = batch.options() | {"ref_logprobs": ref}
    objective(logprobs, old, batch.advantages, batch.mask, **options).loss.backward()
    assert old.grad is None
    assert ref.grad is None


# Where a weight is held constant by definition, the gradient is not the value's: the peers are the test of those.
CONSTANT_WEIGHTS = {"cispo", "vespo", "dppo"}


@pytest.mark.parametrize("name", sorted(set(fspo.objectives.names()) - CONSTANT_WEIGHTS))
def test_gradient_agrees_with_finite_differences(name: str) -> None:
    batch = random_batch(11, rows=4, positions=6, most=0.5)
    # A drift taken from the data is a constant of the gradient but not of a finite difference.
    objective = fspo.objectives.get(name, **({"drift": -0.01} if name == "fspo" else {}))

    def f(logprobs: Tensor) -> Tensor:
        return objective(logprobs, *batch.arguments()[1:]).loss

    assert torch.autograd.gradcheck(f, batch.logprobs.clone().requires_grad_(), eps=1e-7, atol=1e-5)


PLAIN: list[tuple[str, dict[str, Any]]] = [(name, {}) for name in fspo.objectives.names()]


@pytest.mark.parametrize(("name", "parameters"), PLAIN + VARIANTS, ids=str)
@given(seed=seeds)
def test_the_parts_of_the_responses_add_up_to_the_objective(name: str, parameters: dict[str, Any], seed: int) -> None:
    objective, batch = fspo.objectives.get(name, **parameters), random_batch(seed)
    logprobs = batch.logprobs.clone().requires_grad_()
    parts, _ = objective.per_response(Batch.check(logprobs, *batch.arguments()[1:]))
    assert parts.shape == batch.advantages.shape
    loss, gradient = loss_and_gradient(objective, batch)
    assert_same(-parts.sum().detach(), loss)
    assert_same(-torch.autograd.grad(parts.sum(), logprobs)[0], gradient)
