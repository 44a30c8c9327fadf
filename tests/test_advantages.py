"""Advantages by hand, and what happens to groups that carry no signal."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import fspo

REWARDS = torch.tensor([1.0, 0, 0, 1, 1, 0.5, 1, math.nan])
GROUPS = torch.tensor([7, 7, 7, 3, 3, 1, 9, 9])
LENGTHS = torch.tensor([10, 20, 70, 5, 5, 5, 5, 5])


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("dr_grpo", [2 / 3, -1 / 3, -1 / 3]),
        ("grpo", [2 / 3 / (3**-0.5 + 1e-4), -1 / 3 / (3**-0.5 + 1e-4), -1 / 3 / (3**-0.5 + 1e-4)]),
        ("rloo", [1.0, -0.5, -0.5]),
        ("opo", [0.9, -0.1, -0.1]),
    ],
)
def test_by_hand(name: str, expected: list[float]) -> None:
    advantages = fspo.advantages.get(name)(REWARDS, GROUPS, lengths=LENGTHS)
    assert advantages[:3].tolist() == pytest.approx(expected)
    # No variance, one answer, one scored answer and its unscored companion: no signal, and no NaN.
    assert advantages[3:].tolist() == [0, 0, 0, 0, 0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", fspo.advantages.names())
@given(reward=st.floats(0.01, 100), size=st.integers(2, 32))
def test_a_group_without_variance_has_exactly_no_advantage(
    name: str, dtype: torch.dtype, reward: float, size: int
) -> None:
    """Also where the mean of equal rewards is another number by rounding."""
    rewards = torch.tensor([1.0, 0.0] + size * [reward], dtype=dtype)
    groups = [0, 0] + size * [1]
    lengths = torch.arange(1, len(rewards) + 1)
    assert not fspo.advantages.get(name)(rewards, groups, lengths=lengths)[2:].any()
    assert fspo.advantages.count(rewards, groups).without_variance == 1


def test_half_precision_rewards_are_widened() -> None:
    rewards = torch.tensor([0.0, 300, 600, 900])
    assert torch.equal(fspo.advantages.grpo(rewards.half(), [0] * 4), fspo.advantages.grpo(rewards, [0] * 4))


def test_groups_without_signal_are_counted() -> None:
    counts = fspo.advantages.count(REWARDS, GROUPS)
    assert vars(counts) == {"groups": 4, "single": 2, "without_variance": 1, "unscored": 1}


@pytest.mark.parametrize("name", fspo.advantages.names())
def test_bad_input(name: str) -> None:
    estimator = fspo.advantages.get(name)
    with pytest.raises(ValueError, match="reward of row 1 is infinite"):
        estimator(torch.tensor([1.0, math.inf]), [0, 0], lengths=torch.tensor([1, 1]))
    with pytest.raises(ValueError, match="rewards must be a floating-point tensor"):
        estimator(torch.tensor([1, 0]), [0, 0], lengths=torch.tensor([1, 1]))
    for groups in ([0], ["a", "a"]):
        with pytest.raises(ValueError, match="groups must be 2 whole numbers"):
            estimator(torch.tensor([1.0, 0]), groups, lengths=torch.tensor([1, 1]))  # type: ignore[arg-type]


def test_lengths_are_checked_where_they_count() -> None:
    with pytest.raises(ValueError, match="pass lengths="):
        fspo.advantages.get("opo")(REWARDS, GROUPS)
    with pytest.raises(ValueError, match="lengths must be 8 positive numbers"):
        fspo.advantages.get("opo")(REWARDS, GROUPS, lengths=LENGTHS - 5)
