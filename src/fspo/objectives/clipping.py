"""What an objective clips of recorded rows, and its range for a wanted clip rate.

All in numpy. The objective defines what it clips (`Objective.band`) and how its range widens (`Objective.scaled`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fspo import ratios
from fspo.objectives.batch import Batch, Totals
from fspo.objectives.packing import Packing
from fspo.tensors import torch

if TYPE_CHECKING:
    from fspo.objectives.objective import Objective

Array = NDArray[Any]


class Band(NamedTuple):
    """Where nothing is clipped: centre - below <= x <= centre + above, each a number or an array of one per response.

    x is S for an objective that clips whole responses and a token's log-ratio for one that clips tokens. `dual` is the
    width above the centre where A < 0: the dual clip, infinite without one.
    """

    centre: Any
    below: Any
    above: Any
    dual: Any = math.inf

    @property
    def bounds(self) -> tuple[Any, Any]:
        """The lower and the upper end."""
        return self.centre - self.below, self.centre + self.above


class Weighting(NamedTuple):
    """How S enters the objective of a response that is not clipped: gain exp(scale S) A, up to a factor per batch.

    Each is a number or an array of one per response.
    """

    scale: Any = 1.0
    gain: Any = 1.0


@dataclass(frozen=True)
class Responses:
    """Recorded responses: S, L, the sign of A (all 0: unknown), token log-ratios if known, and a drift to centre on."""

    log_ratio: Array
    lengths: Array
    sign: Array
    tokens: Array | None = None  # of all responses, one after the other
    mu: float = 0.0

    @cached_property
    def has_gradient(self) -> Array:
        """Every response may have one where advantages are not known."""
        return ratios.has_gradient(self.sign) if self.sign.any() else np.ones(len(self.sign), bool)

    @cached_property
    def starts(self) -> Array:
        L = self.lengths.astype(np.intp)
        return np.cumsum(L) - L

    @cached_property
    def totals(self) -> Totals:
        return Totals(len(self.log_ratio), float(self.lengths.sum()), float(self.log_ratio.sum()))

    def per_token(self, values: Array) -> Array:
        return np.repeat(values, self.lengths.astype(np.intp))

    def token_mean(self, values: Array) -> Array:
        return np.add.reduceat(values, self.starts) / self.lengths


@dataclass(frozen=True)
class AtRate:
    """An objective whose range clips a wanted share of given responses; or a note why there is none."""

    objective: Objective | None = None
    accepted: Array | None = None  # (N,) share of each response's gradient that survives
    note: str = ""


def at_rate(objective: Objective, rows: Responses, clip_rate: float) -> AtRate:
    """The objective with the range that clips `clip_rate` of the responses that have a gradient.

    For a hard clip k is a quantile of how far out x lies; for a soft objective it is found by root search.
    """
    if objective.needs_tokens and rows.tokens is None:
        return AtRate(note="needs per-token log-probs")
    objective = objective.centred(rows.mu)
    if objective.scaled(1.0) is None:
        return AtRate(note="has no clip range to set")
    band = objective.band(rows.lengths, rows.totals)
    if band is None:
        return _at_rate_softly(objective, rows, clip_rate)
    if not (np.all(band.below > 0) and np.all(band.above > 0)):
        return AtRate(note="has a half-width of 0, which cannot be widened")
    x = rows.tokens if objective.clips_tokens else rows.log_ratio
    return at_threshold(objective.scaled, np.asarray(x), band, rows, clip_rate, tokens=objective.clips_tokens)


def at_threshold(
    scaled: Callable[[float], Objective | None],
    x: Array,
    band: Band,
    rows: Responses,
    clip_rate: float,
    *,
    tokens: bool = False,
) -> AtRate:
    """The k at which `clip_rate` of the values x, one per response or per token, lie outside k times the band."""
    sign, weights = rows.sign, rows.has_gradient.astype(np.float64)
    if tokens:
        sign, weights = rows.per_token(sign), rows.per_token(weights / rows.lengths)
    outward = _outward(x, sign, band)
    k = _threshold(outward, clip_rate, weights)
    if k < 0:
        return AtRate(note=f"cannot clip {clip_rate:.1%} with any range")
    outside = (outward > k).astype(np.float64)
    return AtRate(scaled(k), 1 - (rows.token_mean(outside) if tokens else outside))


def _outward(x: Array, sign: Array, band: Band) -> Array:
    """Distance from the centre in half-widths, on the side that clips: above for A > 0, below for A < 0, else both."""
    off = x - band.centre
    up, down = off / band.above, -off / band.below
    if not sign.any():
        return np.asarray(np.maximum(up, down))
    if np.isfinite(band.dual).all():
        down = np.maximum(down, off / band.dual)
    return np.where(sign > 0, up, np.where(sign < 0, down, -np.inf))


def _threshold(t: Array, rate: float, weights: Array) -> float:
    """k such that the share `rate` of the weight has t > k."""
    live = weights > 0
    t, weights = t[live], weights[live]
    if weights.min() == weights.max():
        index = len(t) - 1 - round(rate * len(t))
        return float(np.partition(t, index)[index]) if index >= 0 else -math.inf
    order = np.argsort(t)
    passed = np.cumsum(weights[order])
    return float(t[order[min(len(t) - 1, int(np.searchsorted(passed, (1 - rate) * passed[-1])))]])


def _at_rate_softly(objective: Objective, rows: Responses, rate: float) -> AtRate:
    """The scale, between 1e-6 and 1e6, at which the mean acceptance is 1 - rate."""
    from scipy.optimize import brentq

    accepted = objective.survival(rows)

    def miss(log_scale: float) -> float:
        return float(accepted(math.exp(log_scale))[rows.has_gradient].mean()) - (1 - rate)

    ends = (math.log(1e-6), math.log(1e6))
    if miss(ends[0]) * miss(ends[1]) > 0:
        return AtRate(note=f"cannot clip {rate:.1%} with any scale")
    k = math.exp(brentq(miss, *ends, xtol=1e-3))
    return AtRate(objective.scaled(k), accepted(k))


def accepted(objective: Objective, rows: Responses) -> Array:
    """(N,) the acceptance of each response, see `Objective`."""
    if objective.needs_tokens and rows.tokens is None:
        raise ValueError(
            f"the rule {objective.name} looks at tokens: give per-token log-probs (--logprobs, --old-logprobs)"
        )
    return _either_sign(lambda signed: _accepted(objective, signed), rows)


def _either_sign(survives: Callable[[Responses], Array], rows: Responses) -> Array:
    """Acceptance; with unknown advantages, the smaller of those for A > 0 and A < 0."""
    if rows.sign.any():
        return survives(rows)
    return np.minimum(*(survives(replace(rows, sign=np.full_like(rows.sign, s))) for s in (1, -1)))


def _accepted(objective: Objective, rows: Responses) -> Array:
    band = objective.band(rows.lengths, rows.totals)
    if band is None:
        return objective.survival(rows)(1.0)
    if objective.clips_tokens:
        return rows.token_mean(_inside(rows.tokens, rows.per_token(rows.sign), band, objective.cap(1.0)))
    return _inside(rows.log_ratio, rows.sign, band, objective.cap(rows.lengths))


def _inside(x: Any, sign: Array, band: Band, cap: Any) -> Array:
    """1 where the gradient of x passes a pessimistic clip and the hard cap, else 0."""
    low, high = band.bounds
    passes = np.where(sign > 0, x <= high, (sign == 0) | ((x >= low) & (x <= band.centre + band.dual)))
    return np.asarray(passes & (x <= cap), np.float64)


def surrogate_accepted(objective: Objective, rows: Responses) -> Array:
    """Acceptance by the objective's surrogate, which needs torch; for one without a band or its own `survival`."""
    S, L, sign = (torch.from_numpy(np.asarray(v, np.float64)) for v in (rows.log_ratio, rows.lengths, rows.sign))
    if objective.needs_tokens and rows.tokens is not None:
        l = torch.from_numpy(rows.tokens)
        packing = Packing.of(len(l), None, None, [0, *np.cumsum(rows.lengths.astype(np.intp)).tolist()])
        batch = Batch(l, l, S, L, sign, None, rows.totals, 0, packing=packing)
    else:  # one token per response, which holds all of S
        column, mask = S.unsqueeze(-1), torch.ones(len(S), 1, dtype=torch.bool)
        batch = Batch(column, column, S, L, sign, mask, rows.totals, 0)
    return np.asarray(objective.surrogate(batch).accepted.double().numpy())


def default_survival(objective: Objective, rows: Responses) -> Callable[[float], Array]:
    """Acceptance as a function of the scale, by the surrogate of the scaled objective."""

    def at(k: float) -> Array:
        scaled = objective if k == 1 else objective.scaled(k)
        assert scaled is not None
        return _either_sign(lambda signed: surrogate_accepted(scaled, signed), rows)

    return at
