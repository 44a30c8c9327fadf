"""What a rule accepts, computed from its band without torch, is what its loss accepts in training."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fspo import objectives
from fspo.objectives.clipping import surrogate_accepted

CHANGED: dict[str, dict[str, Any]] = {
    "fspo": {"c_low": 0.02, "c_high": 0.04, "drift": "kl", "dual": 1.5},
    "fspo_studentized": {"drift": "kl", "c_low": 1.1},  # with 1, a response of one token lies on the bound
    "ppo": {"dual_clip": 1.5},
}
NEITHER = ("dppo", "clip_cov")  # looks at probabilities; leaves a few random tokens out as well
RULES = [objectives.get(name) for name in objectives.names() if name not in NEITHER]
RULES += [objectives.get(name, **parameters) for name, parameters in CHANGED.items()]


@pytest.mark.parametrize("rule", RULES, ids=[f"{rule.name}-{i}" for i, rule in enumerate(RULES)])
@given(seed=st.integers(0, 10_000), sigma=st.sampled_from([1e-4, 0.02, 0.3, 5.0]))
def test_the_band_accepts_what_the_loss_accepts(rule: objectives.Objective, seed: int, sigma: float) -> None:
    random = np.random.default_rng(seed)
    lengths = random.integers(1, 60, 40).astype(float)
    tokens = random.normal(0.1 * sigma, sigma, int(lengths.sum()))
    starts = np.cumsum(lengths.astype(int)) - lengths.astype(int)
    rows = objectives.Responses(
        np.add.reduceat(tokens, starts), lengths, random.choice([-1.0, 0.0, 1.0], 40), tokens=tokens
    )
    rows.sign[0] = 1.0
    np.testing.assert_allclose(objectives.accepted(rule, rows), surrogate_accepted(rule, rows), atol=1e-6)
