"""Facts about sequence log-ratios that every layer shares: drift, scale, effective sample size, and which rows count.

S    (N,) sum of a response's token log-ratios        L   (N,) its trained tokens        A   (N,) its advantage

A response is *off-policy* when the policy had moved between sampling it and the update: only then can S differ from 0
and clipping act. A response *has a gradient* when its advantage is not 0: only then can clipping remove something.
Clip rates, LRE and everything else about clipping are taken over responses that are both.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

ROUNDING = 1e-5
"""A root mean square of S / sqrt(L) up to this is rounding between two forward passes, not a move of the policy."""


def drift(S: Floats, L: Floats) -> float:
    """mu: the mean token log-ratio."""
    return float(S.sum() / L.sum())


def scale(S: Floats, L: Floats, mu: float) -> float:
    """sigma: the root mean square of z = (S - mu L) / sqrt(L)."""
    return float(np.sqrt(np.mean(((S - mu * L) / np.sqrt(L)) ** 2)))


def effective_share(S: Floats) -> float:
    """Effective sample size under the weights exp(S), as a share of the responses."""
    w = np.exp(S - S.max())
    return float(w.sum() ** 2 / (w * w).sum() / len(w))


def off_policy(S: Floats, L: Floats) -> bool:
    """Whether the policy had moved at an update, from the rows of that update."""
    return len(S) > 0 and scale(S, L, 0.0) > ROUNDING


def has_gradient(advantage: Any) -> Any:
    """Which responses have a gradient; works on arrays, tensors and polars expressions."""
    return advantage != 0
