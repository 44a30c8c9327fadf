"""The length family: its members equal the published objectives, and a = h = 1/2 treats every length alike."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import fspo
from fspo.objectives import Objective, Responses, Totals
from fspo.objectives.batch import Batch
from helpers.batches import Inputs, assert_equal, random_batch

SIGMA = 0.02
LENGTHS = (8, 64, 512, 4096, 32768)
seeds = st.integers(0, 10**6)
drifts = st.sampled_from(["zero", "kl", "k3", "bounded", -0.01])
plain_options = [{}, {"mismatch": {"c": 0.2}}, {"exponent_cap": 0.3}, {"entropy_coef": 0.1}]
options = st.sampled_from([*plain_options, {"kl": {"coef": 0.2, "kind": "k3"}}])


def member(a: float, h: float, g: float, **parameters: Any) -> Objective:
    return fspo.objectives.get(
        "length_family", ratio_exponent=a, band_exponent=h, gain_exponent=g, **({"dual": None} | parameters)
    )


def assert_same(ours: Objective, theirs: Objective, batch: Inputs) -> None:
    """Loss, gradient and what is accepted."""

    def loss(objective: Objective, logprobs: torch.Tensor) -> torch.Tensor:
        return objective(
            logprobs, *batch.arguments()[1:], ref_logprobs=batch.ref_logprobs,
            sampler_logprobs=batch.sampler_logprobs, entropy=batch.entropy,
        ).loss  # fmt: skip

    assert_equal(lambda x: loss(ours, x), lambda x: loss(theirs, x), batch, ours.name)
    one, other = (Batch.check(*batch.arguments()) for _ in range(2))
    assert torch.equal(ours.surrogate(one).accepted, theirs.surrogate(other).accepted)


@given(
    seed=seeds, c_low=st.floats(0.001, 2), c_high=st.floats(0.001, 2), drift=drifts, option=options,
    dual=st.sampled_from([None, 1.5, 2.0, 10.0]), unit=st.floats(0.1, 1000),
)  # fmt: skip
def test_zero_half_zero_is_fspo(
    seed: int, c_low: float, c_high: float, drift: Any, option: dict[str, Any], dual: float | None, unit: float
) -> None:
    """With every drift, dual clip and option, and whatever the unit length."""
    parameters = {"c_low": c_low, "c_high": c_high, "drift": drift, "dual": dual, **option}
    ours = member(0, 0.5, 0, unit_length=unit, **parameters)
    assert_same(ours, fspo.objectives.get("fspo", **parameters), random_batch(seed))


@given(
    seed=seeds, low=st.floats(0.001, 0.9), high=st.floats(0.001, 2), option=st.sampled_from(plain_options),
    case=st.sampled_from([("gspo", 1, 1, 0), ("luspo", 1, 1, 1), ("rloo", 0, 0, 0)]),
)  # fmt: skip
def test_members_equal_the_published_objectives(
    seed: int, low: float, high: float, option: dict[str, Any], case: tuple[str, float, float, float]
) -> None:
    name, a, h, g = case
    ours = member(a, h, g, c_low=-math.log1p(-low), c_high=math.log1p(high), **option)
    assert_same(ours, fspo.objectives.get(name, clip_low=low, clip_high=high, **option), random_batch(seed))


@given(seed=seeds, c=st.floats(0.001, 2), dual=st.sampled_from([None, 2.0]))
def test_halves_are_a_fixed_range_on_exp_of_s_over_root_l(seed: int, c: float, dual: float | None) -> None:
    """The loss of responses of any lengths is that of responses of one token whose log-ratio is S / sqrt(L)."""
    batch = random_batch(seed)
    L = batch.mask.sum(-1).double()
    x = torch.where(batch.mask, batch.logprobs - batch.old_logprobs, 0).sum(-1) / L.sqrt()
    one = fspo.objectives.get("fspo", exponent=0, c_low=c, c_high=c, dual=dual)(
        x.unsqueeze(-1), torch.zeros(len(x), 1).double(), batch.advantages, torch.ones(len(x), 1, dtype=torch.bool)
    )
    ours = member(0.5, 0.5, 0, c_low=c, c_high=c, dual=dual)(*batch.arguments())
    assert float(ours.loss) == pytest.approx(float(one.loss), rel=1e-12, abs=1e-12)
    assert torch.equal(ours.accepted, one.accepted)


@given(
    seed=seeds, a=st.floats(0, 1), h=st.floats(0, 1), g=st.floats(-1, 1), c=st.floats(0.001, 2),
    length=st.integers(1, 9),
)  # fmt: skip
def test_at_the_unit_length_every_member_is_fspo(
    seed: int, a: float, h: float, g: float, c: float, length: int
) -> None:
    batch = random_batch(seed, positions=length)
    batch.mask[:] = True
    ours = member(a, h, g, c_low=c, c_high=c, dual=2.0, unit_length=length)
    assert_same(ours, fspo.objectives.get("fspo", c_low=c, c_high=c), batch)


def gradient_norms(objective: Objective, length: int, rows: int = 400) -> float:
    """The mean norm of a response's gradient in 64 parameters, with independent scores at each token.

    The score of a token is a random unit vector, so that only the sum over the tokens is needed: a Gaussian vector.
    """
    rng = np.random.default_rng(length)
    scores = torch.from_numpy(rng.normal(size=(rows, 64)) * math.sqrt(length / 64))
    S = torch.from_numpy(rng.normal(-(SIGMA**2) / 2 * length, SIGMA * math.sqrt(length), rows)).requires_grad_()
    column, A = S.detach().unsqueeze(-1), torch.from_numpy(rng.choice([-1.0, 1.0], rows))
    L = torch.full((rows,), float(length)).double()
    totals = Totals.of_moments(0.0, SIGMA)
    batch = Batch(column, column, S, L, A, torch.ones(rows, 1, dtype=torch.bool), totals, 1)
    value = objective.surrogate(batch).value
    (slope,) = torch.autograd.grad(value.sum(), S)
    accepted = slope != 0
    return float((slope.unsqueeze(-1) * scores).norm(dim=-1)[accepted].mean())


@pytest.mark.parametrize(("a", "g"), [(0.5, 0.0), (1.0, 0.5)])
def test_norm_of_a_response_gradient_does_not_depend_on_length(a: float, g: float) -> None:
    norms = [gradient_norms(member(a, 0.5, g, c_low=0.05, c_high=0.05), L) for L in LENGTHS]
    assert norms == pytest.approx([norms[0]] * len(norms), rel=0.03)


@pytest.mark.parametrize(("a", "g", "power"), [(0.0, 0.0, 0.5), (1.0, 0.0, -0.5), (1.0, 1.0, 0.5)])
def test_norm_of_other_members_is_a_power_of_length(a: float, g: float, power: float) -> None:
    norms = [gradient_norms(member(a, 0.5, g, c_low=0.05, c_high=0.05), L) for L in (8, 64, 512)]
    assert norms == pytest.approx([norms[0] * (L / 8) ** power for L in (8, 64, 512)], rel=0.1)


@pytest.mark.parametrize("a", [0.0, 0.5, 1.0])
def test_clip_rate_is_flat_for_a_band_of_root_l_whatever_the_ratio(a: float) -> None:
    rng = np.random.default_rng(0)
    n, mu = 400_000, -(SIGMA**2) / 2
    L = np.exp(rng.uniform(math.log(8), math.log(32768), n)).round()
    S = rng.normal(mu * L, SIGMA * np.sqrt(L))
    rows = Responses(S, L, rng.choice([-1.0, 1.0], n), None, mu)
    objective = member(a, 0.5, 0, c_low=0.03, c_high=0.03, drift=mu)
    report = fspo.fairness.measure(L, fspo.objectives.accepted(objective, rows))
    assert report.lre < 0.01
    predicted = fspo.objectives.gaussian_rate(objective, np.array([8.0, 32768.0]), mu, SIGMA)
    assert predicted is not None
    assert predicted == pytest.approx([report.clip_rate] * 2, abs=2e-3)
    steep = member(a, 1.0, 0, c_low=0.003, c_high=0.003)
    assert fspo.fairness.measure(L, fspo.objectives.accepted(steep, rows)).lre > 0.2


def test_weighting_is_the_derivative_of_the_surrogate() -> None:
    """What an objective says about its ratio and gain, against its own loss, for every objective that says it."""
    rng = np.random.default_rng(3)
    L = np.exp(rng.uniform(0, math.log(500), 200)).round()
    S, A = rng.normal(0, SIGMA * np.sqrt(L)), rng.choice([-1.0, 1.0], 200)
    said = []
    for name in fspo.objectives.names():
        objective = fspo.objectives.get(name, **({"reference_length": 3.0} if name == "fspo" else {}))
        weighting = objective.weighting(L)
        if weighting is None:
            continue
        said.append(name)
        s = torch.from_numpy(S).requires_grad_()
        column = s.detach().unsqueeze(-1)
        mask = torch.ones(200, 1, dtype=torch.bool)
        totals = Totals(200, float(L.sum()), float(S.sum()), float((S * S / L).sum()))
        batch = Batch(column, column, s, torch.from_numpy(L), torch.from_numpy(A), mask, totals, 1)
        surrogate = objective.surrogate(batch)
        if surrogate.slope is not None:  # gspo_token: per token
            slope = surrogate.slope.sum(-1).numpy() / L
        else:
            slope = torch.autograd.grad(surrogate.value.sum(), s)[0].numpy()
        scale, gain = weighting
        expected = gain * scale * np.exp(scale * S) * A * (surrogate.accepted.numpy() > 0)
        assert slope == pytest.approx(expected, rel=1e-12), name
    assert {"fspo", "fspo_adaptive", "gspo", "gspo_token", "luspo", "rloo", "length_family"} <= set(said)


@given(
    seed=seeds, c_low=st.floats(0.001, 2), c_high=st.floats(0.001, 2), drift=drifts, option=options,
    dual=st.sampled_from([None, 2.0]), reference=st.floats(1, 4000),
)  # fmt: skip
def test_fspo_root_is_the_member_of_halves(
    seed: int, c_low: float, c_high: float, drift: Any, option: dict[str, Any], dual: float | None, reference: float
) -> None:
    """With a reference length it is that member times a constant, and the band is FSPO's whatever it is."""
    parameters = {"c_low": c_low, "c_high": c_high, "drift": drift, "dual": dual, **option}
    batch = random_batch(seed)
    root = fspo.objectives.get("fspo_root", **parameters)
    assert_same(root, member(0.5, 0.5, 0, **parameters), batch)
    if not option:
        scaled = fspo.objectives.get("fspo_root", **parameters, reference_length=reference)
        plain, divided = (float(each(*batch.arguments()).loss) for each in (root, scaled))
        assert divided == pytest.approx(plain / math.sqrt(reference), rel=1e-12, abs=1e-15)
        theirs = fspo.objectives.get("fspo", **parameters)(*batch.arguments())
        assert torch.equal(scaled(*batch.arguments()).accepted, theirs.accepted)


@given(seed=seeds, length=st.integers(1, 9), c=st.floats(0.001, 2))
def test_fspo_root_has_the_size_of_fspo_at_the_reference_length(seed: int, length: int, c: float) -> None:
    """One update on-policy: all responses of one length, the same gradient under `mean`."""
    batch = random_batch(seed, positions=length)
    batch.mask[:] = True
    on_policy = Inputs(**(vars(batch) | {"logprobs": batch.old_logprobs.clone()}))
    parameters = {"c_low": c, "c_high": c, "reference_length": "mean"}
    gradients = []
    for name in ("fspo", "fspo_root"):
        x = on_policy.logprobs.clone().requires_grad_()
        loss = fspo.objectives.get(name, **parameters)(x, *on_policy.arguments()[1:]).loss
        gradients.append(torch.autograd.grad(loss, x)[0])
    assert torch.allclose(gradients[0], gradients[1], rtol=1e-12)


@given(seed=seeds)
def test_the_adaptive_form_is_fspo_root_with_the_band_that_was_learnt(seed: int) -> None:
    ours = fspo.objectives.get("fspo_root_adaptive", c_max=0.3, reference_length=7.0)
    rng = np.random.default_rng(seed)
    L = torch.from_numpy(rng.integers(4, 4000, 256)).double()
    for _ in range(5):
        ours.observe(torch.from_numpy(rng.normal(0, 0.1, 256)) * L.sqrt(), L, staleness=2)
    batch = random_batch(seed)
    adaptive = ours(*batch.arguments(), staleness=2)
    fixed = ours.recorded(adaptive.metrics)
    assert fixed.name == "fspo_root"
    assert_equal(
        lambda x: ours(x, *batch.arguments()[1:], staleness=2).loss,
        lambda x: fixed(x, *batch.arguments()[1:]).loss, batch, "adaptive",
    )  # fmt: skip
    assert torch.equal(adaptive.accepted, fixed(*batch.arguments()).accepted)
    again = fspo.objectives.get("fspo_root_adaptive", c_max=0.3, reference_length=7.0)
    again.load_state_dict(json.loads(json.dumps(ours.state_dict())))
    assert float(again(*batch.arguments(), staleness=2).loss) == float(adaptive.loss)


@pytest.mark.parametrize(
    ("parameters", "sentence"),
    [
        ({"ratio_exponent": 1.5}, "LengthFamily.ratio_exponent = 1.5: Input should be less than or equal to 1"),
        ({"unit_length": 0}, "LengthFamily.unit_length = 0"),
        ({"drift": "bounded", "band_exponent": 1.0}, "a bounded drift is bounded by the c of c sqrt"),
        ({"exponent": 0.5}, "LengthFamily has no parameter 'exponent'"),
    ],
)
def test_bad_parameters_are_one_clear_sentence(parameters: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence) as error:
        fspo.objectives.get("length_family", **parameters)
    assert "\n" not in str(error.value)
