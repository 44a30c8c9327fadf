"""Input columns: lists, arrays or tensors on any device, checked and turned into float64 arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Column = NDArray[np.float64]


def column(values: Any, name: str, n: int | None = None) -> Column:
    """A finite (N,) float64 array."""
    if hasattr(values, "detach"):
        values = values.detach().cpu().numpy()
    numbers = np.asarray(values, dtype=np.float64)
    if numbers.ndim != 1 or not len(numbers):
        raise ValueError(f"{name} must be a non-empty column of numbers, not of shape {numbers.shape}")
    if n is not None and len(numbers) != n:
        raise ValueError(f"{name} has {len(numbers)} rows where {n} are needed")
    finite = np.isfinite(numbers)
    if not finite.all():
        raise ValueError(f"{name} holds NaN or inf in row {int(finite.argmin())}")
    return numbers


def positive(values: Any, name: str, n: int | None = None) -> Column:
    """A column of positive numbers."""
    numbers = column(values, name, n)
    if numbers.min() <= 0:
        raise ValueError(f"{name} must be positive, and row {int(numbers.argmin())} is {numbers.min():g}")
    return numbers


def log_ratio_and_length(log_ratio: Any, lengths: Any) -> tuple[Column, Column]:
    """S and L of the same responses."""
    S = column(log_ratio, "log_ratio")
    return S, positive(lengths, "lengths", len(S))
