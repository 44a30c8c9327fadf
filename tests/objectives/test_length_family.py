"""The length family: named members are its presets, and its exponents do what they say at every length."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import fspo
from fspo.objectives import Batch, LogBand, Objective, SequenceClip, Totals
from helpers.batches import Inputs, assert_equal, of_sums, random_batch

SIGMA = 0.02
seeds = st.integers(0, 10**6)
OPTIONS = [{}, {"mismatch": {"c": 0.2}}, {"exponent_cap": 0.3}, {"entropy_coef": 0.1}]


def member(a: float, h: float, g: float, **parameters: Any) -> Objective:
    chosen = {"dual": None, "reference_length": 1} | parameters
    return fspo.objectives.get("length_family", ratio_exponent=a, band_exponent=h, gain_exponent=g, **chosen)


def assert_same(ours: Objective, theirs: Objective, batch: Inputs) -> None:
    """Loss, gradient and what is accepted."""

    def loss(objective: Objective, logprobs: torch.Tensor) -> torch.Tensor:
        return objective(logprobs, *batch.arguments()[1:], **batch.options()).loss

    assert_equal(lambda x: loss(ours, x), lambda x: loss(theirs, x), batch, ours.name)
    one, other = (Batch.check(*batch.arguments()) for _ in range(2))
    assert torch.equal(ours.surrogate(one).accepted, theirs.surrogate(other).accepted)


def by_definition(objective: LogBand, batch: Inputs) -> float:
    """J of the module's formula, response by response, in floats."""
    a, h, g = objective.exponents
    L = batch.mask.sum(-1).double()
    S = torch.where(batch.mask, batch.logprobs - batch.old_logprobs, 0.0).sum(-1)
    mu = {"zero": 0.0, "kl": float(S.sum() / L.sum())}.get(str(objective.drift), objective.drift)
    R = float(L.mean()) if objective.reference_length == "mean" else objective.reference_length
    total = 0.0
    for s, n, A in zip(S.tolist(), L.tolist(), batch.advantages.tolist(), strict=True):
        low, high = mu * n - objective.c_low * n**h, mu * n + objective.c_high * n**h
        held = min(max(s, low), high)
        value = min(math.exp(s / n**a) * A, math.exp(held / n**a) * A)
        if A < 0 and objective.dual is not None:
            value = max(value, math.exp((mu * n + objective.dual * objective.c_high * n**h) / n**a) * A)
        total += n**g * value / R ** (1 + g - a)
    return total / len(L)


@given(
    seed=seeds, name=st.sampled_from(["fspo", "fspo_root", "fspo_gate", "length_family"]), c_low=st.floats(0.001, 2),
    c_high=st.floats(0.001, 2), drift=st.sampled_from(["zero", "kl", -0.01]), dual=st.sampled_from([None, 1.5, 10.0]),
    reference=st.sampled_from([1.0, 40.0, "mean"]), exponent=st.sampled_from([0.5, 0.75]),
)  # fmt: skip
def test_the_loss_is_the_formula(
    seed: int, name: str, c_low: float, c_high: float, drift: Any, dual: float | None, reference: Any, exponent: float
) -> None:
    width = {"fspo": "exponent", "length_family": "band_exponent"}.get(name)
    objective = fspo.objectives.get(
        name, c_low=c_low, c_high=c_high, drift=drift, dual=dual, reference_length=reference, clip_rate=None,
        **({width: exponent} if width else {}),
    )  # fmt: skip
    assert isinstance(objective, LogBand)
    assert objective.exponents[1] == (exponent if width else 0.5)
    batch = random_batch(seed)
    assert float(objective(*batch.arguments()).loss) == pytest.approx(-by_definition(objective, batch), rel=1e-9)


@given(
    seed=seeds, low=st.floats(0.001, 0.9), high=st.floats(0.001, 2), option=st.sampled_from(OPTIONS),
    name=st.sampled_from(["gspo", "luspo", "rloo"]),
)  # fmt: skip
def test_published_ranges_are_members(seed: int, low: float, high: float, option: dict[str, Any], name: str) -> None:
    """`clip_low` and `clip_high` are c in log space; the peers' own code is the test of these objectives."""
    theirs = fspo.objectives.get(name, clip_low=low, clip_high=high, **option)
    assert isinstance(theirs, SequenceClip)
    ours = member(*theirs.exponents, c_low=-math.log1p(-low), c_high=math.log1p(high), **option)
    assert_same(ours, theirs, random_batch(seed))


@given(seed=seeds, a=st.floats(0, 1))
def test_on_policy_g_equal_a_is_the_true_gradient(seed: int, a: float) -> None:
    """Whatever the ratio: every response has its own share, as under FSPO."""
    batch = random_batch(seed)
    gradients = []
    for g in (a, 0.0):
        x = batch.old_logprobs.clone().requires_grad_()
        loss = member(g, 0.5, g)(x, *batch.arguments()[1:]).loss
        gradients.append(torch.autograd.grad(loss, x)[0])
    torch.testing.assert_close(gradients[0], gradients[1], rtol=1e-10, atol=1e-12)


@given(seed=seeds, c=st.floats(0.01, 0.5))
def test_the_weight_of_the_gate_stays_within_its_band(seed: int, c: float) -> None:
    """Off-policy every accepted response has a weight within exp(± c) of its true gradient, at any length."""
    rng = np.random.default_rng(seed)
    L = np.exp(rng.uniform(0, math.log(1e5), 200)).round()
    S = rng.normal(0, 2 * c * np.sqrt(L))
    s = torch.from_numpy(S).requires_grad_()
    A = torch.from_numpy(rng.choice([-1.0, 1.0], 200))
    gate = fspo.objectives.get(
        "fspo_gate", c_low=c, c_high=c, clip_rate=None, drift="zero", reference_length=1, dual=1.0
    )
    surrogate = gate.surrogate(of_sums(s, torch.from_numpy(L), A))
    weight = (torch.autograd.grad(surrogate.value.sum(), s)[0] / A)[
        (surrogate.accepted > 0) & torch.from_numpy(-c * np.sqrt(L) < S)
    ]
    assert len(weight)
    assert (weight.log().abs() <= c + 1e-9).all()


def test_weighting_is_the_derivative_of_the_surrogate() -> None:
    """What an objective says about its ratio and gain, against its own loss, for every objective that says it."""
    rng = np.random.default_rng(3)
    L = np.exp(rng.uniform(0, math.log(500), 200)).round()
    S, A = rng.normal(0, SIGMA * np.sqrt(L)), rng.choice([-1.0, 1.0], 200)
    said = []
    for name in fspo.objectives.names():
        scalable = "reference_length" in fspo.objectives.get_class(name).model_fields
        objective = fspo.objectives.get(name, **({"reference_length": 3.0} if scalable else {}))
        totals = Totals(200, float(L.sum()), float(S.sum()))
        weighting = objective.weighting(L)
        if weighting is None:
            continue
        said.append(name)
        s = torch.from_numpy(S).requires_grad_()
        surrogate = objective.surrogate(of_sums(s, torch.from_numpy(L), torch.from_numpy(A), totals))
        slope = torch.autograd.grad(surrogate.value.sum(), s)[0].numpy()
        scale, gain = weighting
        expected = gain * scale * np.exp(scale * S) * A * (surrogate.accepted.numpy() > 0)
        assert slope == pytest.approx(expected, rel=1e-12), name
    assert {"fspo", "fspo_gate", "fspo_root", "gspo", "luspo", "rloo", "length_family"} <= set(said)
