"""Random batches for the tests: ragged masks, log-ratios from tiny to large, advantages of both signs and zero."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fspo.objectives import Objective, Totals
from fspo.objectives.batch import Batch

BATCHES = 200  # of each comparison with a peer
NO_TOTALS = Totals(1, 1, 0.0)


@dataclass
class Inputs:
    """The arguments of an objective, plus what its options need."""

    logprobs: Tensor
    old_logprobs: Tensor
    advantages: Tensor
    mask: Tensor
    ref_logprobs: Tensor
    sampler_logprobs: Tensor
    entropy: Tensor

    def arguments(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        return self.logprobs, self.old_logprobs, self.advantages, self.mask

    def options(self) -> dict[str, Any]:
        """What the options of an objective may need."""
        return {name: getattr(self, name) for name in ("ref_logprobs", "sampler_logprobs", "entropy")}

    def __getitem__(self, rows: slice | Tensor) -> Inputs:
        return Inputs(*(value[rows] for value in vars(self).values()))


def random_batch(
    seed: int,
    dtype: torch.dtype = torch.float64,
    rows: int | None = None,
    positions: int | None = None,
    most: float = 15,
) -> Inputs:
    """A batch whose token log-ratios lie between 1e-4 and 5 in size, with |S| at most `most` a response."""
    g = torch.Generator().manual_seed(seed)

    def uniform(*shape: int) -> Tensor:
        return torch.rand(*shape, generator=g, dtype=torch.float64)

    B = rows or int(torch.randint(2, 9, (), generator=g))
    T = positions or int(torch.randint(2, 33, (), generator=g))
    mask = uniform(B, T) < 0.2 + 0.8 * uniform(B, 1)
    mask[torch.arange(B), torch.randint(T, (B,), generator=g)] = True
    size = torch.exp(torch.log(torch.tensor(1e-4)) + uniform(B, 1) * torch.log(torch.tensor(5 / 1e-4)))
    l = (size * torch.randn(B, T, generator=g, dtype=torch.float64)).clamp(-5, 5)
    S = torch.where(mask, l, 0).sum(-1, keepdim=True)
    l = l * (most / S.abs()).clamp(max=1)
    old = -3 * uniform(B, T) - 0.01
    advantages = torch.randn(B, generator=g, dtype=torch.float64)
    advantages[uniform(B) < 0.15] = 0
    noise = 0.3 * torch.randn(2, B, T, generator=g, dtype=torch.float64)
    values = (old + l, old, advantages, mask, old + noise[0], old + noise[1], 2 * uniform(B, T))
    return Inputs(*(v if v.dtype == torch.bool else v.to(dtype) for v in values))


def of_sums(S: Tensor, lengths: Tensor, advantages: Tensor, totals: Totals = NO_TOTALS) -> Batch:
    """Responses of which only S is known: as many tokens as they have would not fit."""
    column = S.detach().unsqueeze(-1)
    return Batch(column, column, S, lengths, advantages, torch.ones_like(column, dtype=torch.bool), totals, 1)


def loss_by(objective: Objective, batch: Inputs, **more: Any) -> Callable[[Tensor], Tensor]:
    """The objective's loss of the batch, as a function of the log-probs."""
    return lambda logprobs: objective(logprobs, *batch.arguments()[1:], **more).loss


def with_gradient(loss: Callable[[Tensor], Tensor], batch: Inputs) -> tuple[Tensor, Tensor]:
    """A loss at the log-probs of the batch, and its gradient."""
    logprobs = batch.logprobs.clone().requires_grad_()
    value = loss(logprobs)
    (gradient,) = torch.autograd.grad(value, logprobs)
    return value.detach(), gradient


def assert_equal(
    ours: Callable[[Tensor], Tensor], theirs: Callable[[Tensor], Tensor], batch: Inputs, context: str
) -> None:
    """Loss and gradient agree to 1e-6 relative in float64, 1e-5 in float32."""
    tolerance = 1e-6 if batch.logprobs.dtype == torch.float64 else 1e-5
    (loss, gradient), (expected, expected_gradient) = with_gradient(ours, batch), with_gradient(theirs, batch)
    # A loss is a sum of terms of either sign: it is compared on the scale of the terms, as is the gradient.
    scale = max(float(expected.abs()), float((expected_gradient.abs() * batch.mask).sum()))
    assert abs(float(loss - expected)) <= tolerance * scale, (context, float(loss), float(expected))
    assert float((gradient - expected_gradient).norm()) <= tolerance * float(expected_gradient.norm()), context
