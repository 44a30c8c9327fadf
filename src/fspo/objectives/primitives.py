"""The few tensor operations that every objective is composed of.

A pessimistic clip, min(exp(x) A, exp(clamp(x, low, high)) A), is a one-sided clamp of the exponent: from above
where A > 0, from below where A < 0. Written so, nothing is exponentiated before it is clamped.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

from fspo.tensors import Tensor, torch


class Clip(NamedTuple):
    """An exponent after clamping, and what the clamping did."""

    ratio: Tensor  # exp of the clamped exponent, differentiable where nothing was clamped
    accepted: Tensor  # bool: the gradient passes
    capped: Tensor  # bool: the hard cap on the exponent acted, and nothing tighter


def pessimistic(
    log_ratio: Tensor,
    advantages: Tensor,
    low: Tensor | float,
    high: Tensor | float,
    cap: float,
    dual: Tensor | float = math.inf,
    spread: Callable[[Tensor], Tensor] = lambda rows: rows,
) -> Clip:
    """exp of `log_ratio`, clamped where that makes the objective smaller, as in PPO.

    `low`, `high` and `dual` are in log space. `dual` bounds the exponent where A < 0 (dual clip); `cap` bounds it
    everywhere, because the pessimistic rule alone leaves it unbounded for A < 0. `spread` takes bounds of the shape of
    `advantages` to that of `log_ratio`.
    """
    infinite = advantages.new_tensor(torch.inf)
    lower = spread(torch.where(advantages < 0, low, -infinite))
    upper = spread(torch.where(advantages > 0, high, torch.where(advantages < 0, dual, infinite)))
    exponent = torch.clamp(log_ratio, lower, upper.clamp(max=cap))
    with torch.no_grad():
        accepted, capped = exponent == log_ratio, (log_ratio > cap) & (upper > cap)
    return Clip(torch.exp(exponent), accepted, capped)


def capped_ratio(log_ratio: Tensor, cap: float) -> tuple[Tensor, Tensor]:
    """exp of `log_ratio` with the hard cap alone, and where it acted."""
    return torch.exp(log_ratio.clamp(max=cap)), log_ratio.detach() > cap


def log_range(clip_low: float, clip_high: float) -> tuple[float, float]:
    """Half-widths in log space, below and above 0, of a ratio held in 1 - clip_low .. 1 + clip_high."""
    return -math.log1p(-clip_low), math.log1p(clip_high)


def scaled_range(clip_low: float, clip_high: float, k: float) -> dict[str, float]:
    """clip_low and clip_high of a range k times as wide in log space."""
    low, high = log_range(clip_low, clip_high)
    return {"clip_low": -math.expm1(-k * low), "clip_high": math.expm1(k * high)}


def with_gradient(x: Tensor, value: Tensor, kept: Tensor, backward: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    """The constant `value`, whose gradient in `x` is backward(gradient of the value, `kept`).

    For gradients that are known in closed form: one tensor is kept for the backward pass.
    """
    result: Tensor = _known_gradient().apply(x, value, kept, backward)
    return result


@functools.cache
def _known_gradient() -> Any:
    """The operation of `with_gradient`, defined when torch is first needed."""

    class KnownGradient(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, value: Tensor, kept: Tensor, backward: Any) -> Tensor:
            ctx.save_for_backward(kept)
            ctx.rule = backward
            return value.clone()

        @staticmethod
        def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
            return ctx.rule(gradient, *ctx.saved_tensors), None, None, None

    return KnownGradient


def low_variance_kl(log_ratio: Tensor, cap: float = 20.0) -> Tensor:
    """exp(l) - 1 - l >= 0, the k3 estimate of a KL divergence; its exponent is capped."""
    return torch.expm1(log_ratio.clamp(max=cap)) - log_ratio
