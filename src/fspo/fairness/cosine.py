"""The cosine guarantee: a small LRE keeps the clipped update close in direction to the true one.

g_k the true update of bin k, p_k its share, a_k its acceptance, G = sum p_k g_k; the clipped update is
sum p_k (a_k g_k + e_k) with |e_k| <= eta a_k |g_k|. With kappa = sum p_k |g_k| / |G| and
delta = kappa (LRE (1 + eta) + eta) < 1,

    cos(clipped, true) >= sqrt(1 - delta^2).

With eta = 0, delta may also be sum p_k |r_k - 1| |g_k| / |G|, which is never larger. The constants are this
project's (docs/method.md has the proof).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

from fspo.fairness.bins import column

if TYPE_CHECKING:  # torch is loaded by the functions that need it: the rest of the package works without
    from torch import Tensor


@dataclass(frozen=True)
class CosineBound:
    """The guarantee: `float(bound)` is the guaranteed cosine, -1 where nothing is guaranteed."""

    cosine: float
    delta: float
    kappa: float
    lre: float
    eta: float

    def __float__(self) -> float:
        return self.cosine


def cosine_bound(
    shares: ArrayLike, acceptances: ArrayLike, norms: ArrayLike, total_norm: float, eta: float = 0.0
) -> CosineBound:
    """The least cosine between the clipped and the true update.

    shares p_k, acceptances a_k, norms |g_k|, total_norm |G|; eta bounds the part of clipping that is correlated with
    the gradient inside a bin.
    """
    p = column(shares, "shares")
    a, g = column(acceptances, "acceptances", len(p)), column(norms, "norms", len(p))
    if p.min() < 0 or not math.isclose(p.sum(), 1, rel_tol=1e-6):
        raise ValueError(f"shares must not be negative and must add up to 1, not to {p.sum():g}")
    if a.min() < 0 or a.max() > 1 or g.min() < 0:
        raise ValueError("acceptances must lie in [0, 1] and norms must not be negative")
    if not total_norm > 0 or eta < 0:
        raise ValueError(f"total_norm = {total_norm} must be positive and eta = {eta} must not be negative")
    overall = float(p @ a)
    if not overall:
        return CosineBound(-1.0, math.inf, float(p @ g) / total_norm, math.inf, eta)
    off = np.abs(a / overall - 1)
    kappa, lre = float(p @ g) / total_norm, float(off.max())
    delta = kappa * (lre * (1 + eta) + eta) if eta else float(p @ (off * g)) / total_norm
    return CosineBound(math.sqrt(1 - delta * delta) if delta < 1 else -1.0, delta, kappa, lre, eta)


@dataclass(frozen=True)
class MeasuredCosine:
    """Both sides of the guarantee on a real model."""

    measured: float
    bound: CosineBound
    tight: CosineBound  # the bound with eta = 0: what reweighting alone explains


def measure_cosine(
    true_values: Tensor, clipped_values: Tensor, accepted: Tensor, index: Tensor, parameters: Iterable[Tensor]
) -> MeasuredCosine:
    """The cosine between the clipped and the true update of a model, and its bound, from the gradients of the bins.

    true_values, clipped_values: (B,) objectives of each response, differentiable, without and with clipping; accepted:
    (B,); index: (B,) the bin of each response.
    """
    import torch

    parameters = [p for p in parameters if p.requires_grad]
    index = torch.unique(index, return_inverse=True)[1]
    n, shares, rates, true, clipped = len(index), [], [], [], []
    for k in range(int(index.max()) + 1):
        inside = index == k
        shares.append(float(inside.sum()) / n)
        rates.append(float(accepted[inside].mean()))
        true.append(_flat_gradient(true_values[inside].mean(), parameters))
        clipped.append(_flat_gradient(clipped_values[inside].mean(), parameters))
    p, a = torch.tensor(shares, dtype=torch.float64), torch.tensor(rates, dtype=torch.float64)
    g, h = torch.stack(true), torch.stack(clipped)
    G, H = p @ g, p @ h
    norms, rest = g.norm(dim=1), (h - a[:, None] * g).norm(dim=1)
    if not G.norm() or not H.norm():
        raise ValueError("an update is zero: there is no direction to compare")
    live = (norms > 0) & (a > 0)
    eta = float((rest[live] / (a[live] * norms[live])).max()) if live.any() else 0.0
    columns = (p.numpy(), a.numpy(), norms.numpy(), float(G.norm()))
    measured = float(torch.dot(G, H) / (G.norm() * H.norm()))
    return MeasuredCosine(measured, cosine_bound(*columns, eta=eta), cosine_bound(*columns))


def _flat_gradient(value: Tensor, parameters: Sequence[Tensor]) -> Tensor:
    import torch

    gradients = torch.autograd.grad(value, parameters, retain_graph=True, allow_unused=True)
    flat = [torch.zeros_like(p) if g is None else g for p, g in zip(parameters, gradients, strict=True)]
    return torch.cat([g.detach().reshape(-1).cpu().double() for g in flat])
