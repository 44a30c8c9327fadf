"""An objective owns its band: what it says from outside of training is what its surrogate does."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

import fspo
from fspo.objectives import Objective, Responses, Totals
from fspo.objectives.batch import Batch

SIGMA = 0.02
ADAPTIVE = ("fspo_adaptive", "fspo_gate")


def simulated(n: int, seed: int = 0, signed: bool = True) -> Responses:
    """Gaussian token log-ratios with the drift of an importance weight of mean 1."""
    rng = np.random.default_rng(seed)
    L = np.exp(rng.uniform(math.log(4), math.log(400), n)).round()
    tokens = rng.normal(-(SIGMA**2) / 2, SIGMA, int(L.sum()))
    S = np.add.reduceat(tokens, np.cumsum(L.astype(int)) - L.astype(int))
    sign = rng.choice([-1.0, 0.0, 1.0], n, p=[0.45, 0.1, 0.45]) if signed else np.zeros(n)
    return Responses(S, L, sign, tokens, mu=float(S.sum() / L.sum()))


WITH_BAND = [
    name for name in fspo.objectives.names()
    if fspo.objectives.get(name).band(np.ones(1), Totals(1, 1, 0.0)) is not None
]  # fmt: skip
SCALABLE = [name for name in fspo.objectives.names() if fspo.objectives.get(name).scaled(1.0) is not None]


def test_which_objectives_have_a_range() -> None:
    without = {"cispo", "sapo", "vespo", "reinforce", "gpg", "dppo", "kl_cov"}
    assert set(fspo.objectives.names()) - set(WITH_BAND) == without
    assert set(fspo.objectives.names()) - set(SCALABLE) == {"reinforce", "gpg", "dppo", "kl_cov"}


@pytest.mark.parametrize("name", [n for n in WITH_BAND if not fspo.objectives.get(n).clips_tokens])
def test_the_surrogate_clips_what_lies_outside_the_band(name: str) -> None:
    rows = simulated(2000)
    objective = fspo.objectives.get(name)
    band = objective.band(rows.lengths, rows.totals)
    assert band is not None
    low, high = band.bounds
    up = rows.log_ratio > np.where(rows.sign > 0, high, band.centre + band.dual)
    outside = np.where(rows.sign > 0, up, np.where(rows.sign < 0, up | (rows.log_ratio < low), False))
    accepted = fspo.objectives.accepted(objective, rows)
    assert np.array_equal(accepted == 0, outside)
    assert 0 < outside.mean() < 1


@pytest.mark.parametrize("rate", [0.05, 0.3])
@pytest.mark.parametrize("signed", [True, False], ids=["advantages known", "unknown"])
@pytest.mark.parametrize("name", SCALABLE)
def test_at_a_clip_rate_the_objective_clips_that_share(name: str, signed: bool, rate: float) -> None:
    rows = simulated(3000, signed=signed)
    found = fspo.objectives.get(name).at_clip_rate(rows, rate)
    assert found.objective is not None, found.note
    assert found.accepted is not None
    lost = 1 - found.accepted[rows.has_gradient]
    assert lost.mean() == pytest.approx(rate, abs=2e-3)
    assert found.objective.name == name
    if name in ADAPTIVE:  # it learns its band: the parameter is the rate itself
        assert found.objective.clip_parameters["clip_rate"] == pytest.approx(rate if not signed else 2 * rate, abs=0.02)
        return
    if signed:  # by the surrogate, with the parameters that were found
        again = fspo.objectives.accepted(found.objective, rows)
        assert np.abs(again - found.accepted)[rows.has_gradient].mean() < 1e-3


def test_notes_in_the_place_of_a_range() -> None:
    rows = simulated(200)
    without = Responses(rows.log_ratio, rows.lengths, rows.sign, None, rows.mu)
    assert fspo.objectives.get("reinforce").at_clip_rate(rows, 0.1).note == "has no clip range to set"
    assert fspo.objectives.get("grpo").at_clip_rate(without, 0.1).note == "needs per-token log-probs"
    one_sided = Responses(np.full(50, -0.1), np.full(50, 10.0), np.ones(50), None, 0.0)
    assert "cannot clip 10.0%" in fspo.objectives.get("gspo").at_clip_rate(one_sided, 0.1).note
    with pytest.raises(ValueError, match="the rule sapo looks at tokens"):
        fspo.objectives.accepted(fspo.objectives.get("sapo"), without)


@pytest.mark.parametrize("name", fspo.objectives.LENGTH_LAWS)
def test_the_gaussian_rate_is_the_simulated_one(name: str) -> None:
    objective = fspo.objectives.get(name, **({"clip_low": 0.004, "clip_high": 0.005} if name == "gspo" else {}))
    rng = np.random.default_rng(1)
    n, mu = 200_000, -(SIGMA**2) / 2
    for length in (8.0, 64.0, 512.0):
        L = np.full(n, length)
        S = rng.normal(mu * L, SIGMA * np.sqrt(L))
        rows = Responses(S, L, rng.choice([-1.0, 1.0], n), None, mu)
        predicted = fspo.objectives.gaussian_rate(objective, np.array([length]), mu, SIGMA)
        assert predicted is not None
        assert predicted[0] == pytest.approx(1 - fspo.objectives.accepted(objective, rows).mean(), abs=4e-3)
    assert fspo.objectives.gaussian_rate(fspo.objectives.get("grpo"), np.ones(3), mu, SIGMA) is None


def test_a_recorded_band_takes_the_place_of_a_learnt_one() -> None:
    metrics = {"c_low": 0.02, "c_high": 0.04, "drift": -1e-4, "loss": 3.0}
    totals = Totals(1, 1, 0.0)
    for objective in (fspo.objectives.get("fspo", clip_rate=0.1, drift="kl"), fspo.objectives.get("fspo_adaptive")):
        band = objective.recorded(metrics).band(np.array([100.0]), totals)
        assert band is not None
        assert [float(v[0]) for v in band] == pytest.approx([-0.01, 0.2, 0.4, 0.8])
    assert fspo.objectives.get("gspo").recorded(metrics) == fspo.objectives.get("gspo")


def test_tensors_and_arrays_give_the_same_band() -> None:
    lengths = np.array([3.0, 50.0, 900.0])
    for name in WITH_BAND:
        objective: Objective = fspo.objectives.get(name)
        totals = Totals(10, 100, -0.3)
        arrays, tensors = objective.band(lengths, totals), objective.band(torch.tensor(lengths), totals)
        assert arrays is not None
        assert tensors is not None
        for a, b in zip(arrays, tensors, strict=True):
            assert np.allclose(np.asarray(a), np.asarray(b), rtol=1e-12), name


def test_an_objective_that_names_no_band_still_trains_and_answers() -> None:
    class Plain(fspo.objectives.Objective):
        """Only what docs/own-objective.md asks for at the least."""

        name = "plain"
        summary = "the ratio without a clip"
        aggregation = "sequence_mean_of_sums"

        def surrogate(self, batch: Batch) -> fspo.objectives.Surrogate:
            A = batch.row_advantages
            return fspo.objectives.Surrogate(torch.exp(batch.log_ratio) * A, torch.ones_like(A), torch.zeros_like(A))

    rows = simulated(100)
    assert Plain().at_clip_rate(rows, 0.1).note == "has no clip range to set"
    assert fspo.objectives.accepted(Plain(), rows).tolist() == [1.0] * 100
    assert fspo.objectives.gaussian_rate(Plain(), rows.lengths, 0.0, 0.1) is None
    assert Plain().clip_parameters == {}
