"""What an objective says to somebody who calls it from a loop of their own."""

from __future__ import annotations

import pytest
import torch

from fspo import objectives


def batch(rows: int = 16) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Log-probs, old log-probs, advantages and mask; every answer has become likelier and is to become more so."""
    old = -torch.rand(rows, 8, generator=torch.Generator().manual_seed(0))
    return (old + 0.1).requires_grad_(), old, torch.ones(rows), torch.ones(rows, 8, dtype=torch.bool)


def test_an_empty_mask_is_counted_and_has_no_gradient() -> None:
    logprobs, old, advantages, mask = batch()
    mask[3] = False
    out = objectives.get("fspo", c_low=1.0, c_high=1.0)(logprobs, old, advantages, mask)
    out.loss.backward()
    assert out.metrics["empty"] == 1
    assert logprobs.grad is not None
    assert [bool(row.any()) for row in logprobs.grad] == [k != 3 for k in range(16)]


def test_a_wrong_shape_or_kind_is_refused_with_its_fix() -> None:
    logprobs, old, advantages, mask = batch()
    objective = objectives.get("fspo")
    with pytest.raises(ValueError, match=r"advantages\.squeeze\(-1\) makes it"):
        objective(logprobs, old, advantages[:, None], mask)
    with pytest.raises(ValueError, match=r"mask\.bool\(\) makes one"):
        objective(logprobs, old, advantages, mask.long())
