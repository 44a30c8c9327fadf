"""The bounded drift: the mean log-ratio, and no further than Gaussian log-ratios of scale c would drift."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import fspo
from helpers.batches import random_batch


def at_mean(seed: int, mean: float) -> tuple[torch.Tensor, ...]:
    """A random batch whose token log-ratios are shifted to this mean."""
    batch = random_batch(seed)
    l = torch.where(batch.mask, batch.logprobs - batch.old_logprobs, 0.0)
    shift = mean - l.sum() / batch.mask.sum()
    return batch.logprobs + shift, *batch.arguments()[1:]


@given(seed=st.integers(0, 10**6), c=st.floats(0.01, 0.5), share=st.floats(-5, 5), c_high=st.floats(0.01, 0.5))
def test_bounded_is_the_mean_log_ratio_down_to_its_bound(seed: int, c: float, share: float, c_high: float) -> None:
    bound = c * c / 2
    arguments = at_mean(seed, share * bound)
    widths = {"c_low": c, "c_high": c_high}
    bounded, kl = (fspo.objectives.get("fspo", drift=drift, **widths)(*arguments) for drift in ("bounded", "kl"))
    assert kl.metrics["drift"] == pytest.approx(share * bound, abs=1e-12)
    assert bounded.metrics["drift"] == max(-bound, min(bound, kl.metrics["drift"]))
    same = (
        kl if abs(share) < 1 else fspo.objectives.get("fspo", drift=math.copysign(bound, share), **widths)(*arguments)
    )
    if abs(abs(share) - 1) > 1e-6:
        assert torch.equal(bounded.loss, same.loss)
        assert torch.equal(bounded.accepted, same.accepted)


@pytest.mark.parametrize(("drift", "kept"), [("zero", True), ("bounded", True), ("kl", False)])
def test_only_a_drift_that_runs_away_clips_what_has_not_moved(drift: str, kept: bool) -> None:
    """Most answers are pressed down, as training does; a good one whose ratio is 1 must keep its gradient."""
    l = torch.full((8, 16), -0.5, dtype=torch.float64)
    l[0] = 0
    out = fspo.objectives.get("fspo", drift=drift, c_low=0.1, c_high=0.1)(
        l, torch.zeros_like(l), torch.ones(8, dtype=torch.float64), torch.ones_like(l, dtype=torch.bool)
    )
    assert out.accepted[0].item() == kept
