"""An objective owns its band: what it says from outside of training is what its surrogate does."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

import fspo
from fspo.objectives import Objective, Responses, Totals
from helpers.custom_objective import Mine

SIGMA = 0.02


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


@pytest.mark.parametrize("rate", [0.05, 0.3])
@pytest.mark.parametrize("signed", [True, False], ids=["advantages known", "unknown"])
@pytest.mark.parametrize("name", SCALABLE)
def test_at_a_clip_rate_the_objective_clips_that_share(name: str, signed: bool, rate: float) -> None:
    rows = simulated(3000, signed=signed)
    at = fspo.objectives.get(name).at_clip_rate(rows, rate)
    assert at.objective is not None, at.note
    assert at.accepted is not None
    lost = 1 - at.accepted[rows.has_gradient]
    assert lost.mean() == pytest.approx(rate, abs=2e-3)
    assert at.objective.name == name
    if name == "fspo_gate":  # it learns its band: the parameter is the rate itself
        assert at.objective.clip_parameters["clip_rate"] == pytest.approx(rate if signed else rate / 2, abs=0.02)
        return
    if signed:  # by the surrogate, with the parameters that were found
        again = fspo.objectives.accepted(at.objective, rows)
        assert np.abs(again - at.accepted)[rows.has_gradient].mean() < 1e-3


def test_notes_in_the_place_of_a_range() -> None:
    rows = simulated(200)
    without = Responses(rows.log_ratio, rows.lengths, rows.sign, None, rows.mu)
    for objective in (fspo.objectives.get("reinforce"), Mine()):
        assert objective.at_clip_rate(rows, 0.1).note == "has no clip range to set"
    assert fspo.objectives.get("grpo").at_clip_rate(without, 0.1).note == "needs per-token log-probs"
    one_sided = Responses(np.full(50, -0.1), np.full(50, 10.0), np.ones(50), None, 0.0)
    assert "cannot clip 10.0%" in fspo.objectives.get("gspo").at_clip_rate(one_sided, 0.1).note
    with pytest.raises(ValueError, match="the rule sapo looks at tokens"):
        fspo.objectives.accepted(fspo.objectives.get("sapo"), without)


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
