"""The limit on the norm of a gradient."""

from __future__ import annotations

import math
from statistics import median

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fspo.config import UpdateConfig
from fspo.training.update import WINDOW, NormLimit

norms = st.lists(st.floats(0.01, 100), min_size=1, max_size=100)


def limited(limit: NormLimit, norm: float) -> tuple[float, bool, float]:
    """What the limit says about a gradient of this norm, and the norm that it leaves."""
    weight = torch.zeros(4, dtype=torch.float64, requires_grad=True)
    weight.grad = torch.full((4,), norm / 2, dtype=torch.float64)
    before, clipped = limit.apply([weight])
    return before, clipped, float(weight.grad.norm())


@given(values=norms, scale=st.sampled_from([2.0**-20, 0.25, 4.0, 2.0**20]), ratio=st.floats(0.5, 4))
def test_a_relative_limit_does_not_depend_on_the_scale(values: list[float], scale: float, ratio: float) -> None:
    plain, scaled = (NormLimit(UpdateConfig(clip_ratio=ratio)) for _ in range(2))
    for value in values:
        before, clipped, after = limited(plain, value)
        other = limited(scaled, scale * value)
        assert other[::2] == pytest.approx((scale * before, scale * after))
        assert other[1] == clipped


@given(values=norms)
def test_the_limit_is_a_multiple_of_the_median_norm(values: list[float]) -> None:
    limit = NormLimit(UpdateConfig(clip_ratio=1.5))
    for k, value in enumerate(values):
        known = values[:k][-WINDOW:]
        largest = 1.5 * median(known) if known else math.inf
        assert limit.largest == pytest.approx(largest)
        assert limited(limit, value)[2] == pytest.approx(min(value, largest))


def test_both_limits_and_none() -> None:
    assert limited(NormLimit(UpdateConfig(clip_norm=1.0, clip_ratio=None)), 8.0) == (8.0, True, 1.0)
    assert limited(NormLimit(UpdateConfig(clip_norm=None, clip_ratio=None)), 8.0) == (8.0, False, 8.0)
    both = NormLimit(UpdateConfig(clip_norm=3.0, clip_ratio=2.0))
    for norm, largest in ((1.0, 2.0), (5.0, 3.0)):
        both.norms.clear()
        both.norms.append(norm)
        assert both.largest == largest


@pytest.mark.parametrize("norm", [0.0, math.nan, math.inf])
def test_what_is_no_gradient_is_not_remembered(norm: float) -> None:
    """Batches without a gradient must not pull the median, and with it the limit, down to zero."""
    limit = NormLimit(UpdateConfig())
    limited(limit, 1.0)
    limited(limit, norm)
    assert list(limit.norms) == [1.0]
