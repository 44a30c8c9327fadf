"""A sampler that differs from the trainer: the policy's weights rounded, as an inference engine would hold them.

A mismatch of known size, to test corrections for it (`objective.mismatch`) without a second engine.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

import torch
from torch import Tensor

from fspo.model.loading import Policy

Precision = Literal["bfloat16", "float8"] | int

LARGEST_FLOAT8 = torch.finfo(torch.float8_e4m3fn).max


@contextmanager
def rounded(policy: Policy, precision: Precision | None) -> Iterator[None]:
    """The policy with rounded weights; the exact ones are back afterwards. Nothing happens for None."""
    if precision is None:
        yield
        return
    exact = {parameter: parameter.data for parameter in policy.model.parameters()}
    try:
        for parameter, weights in exact.items():
            parameter.data = round_weights(weights, precision)
        yield
    finally:
        for parameter, weights in exact.items():
            parameter.data = weights


def round_weights(weights: Tensor, precision: Precision) -> Tensor:
    """To bfloat16, to float8 (e4m3, one scale per tensor), or to a number of mantissa bits; as float32."""
    if precision == "bfloat16":
        return weights.bfloat16().to(weights.dtype)
    if precision == "float8":
        scale = weights.abs().max().clamp(min=torch.finfo(weights.dtype).tiny) / LARGEST_FLOAT8
        return (weights / scale).to(torch.float8_e4m3fn).to(weights.dtype) * scale
    fraction, exponent = torch.frexp(weights)  # the fraction is in [1/2, 1): its first bit is implicit
    steps = 2.0 ** (precision + 1)
    return torch.ldexp(torch.round(fraction * steps) / steps, exponent)
