"""An adaptive band: half-widths learnt online for a wanted clip rate, without pilot runs to choose c. Ours.

    z = (S - mu L) / L^h,     half-widths  c_low = sigma u_low,  c_high = sigma u_high

Separately for every staleness (optimiser steps since the answers were sampled: z is 0 on the first and widens with
each) it tracks

    mu, sigma   moving averages of the drift per token and of the scale of z, from all responses
    u           the quantile that leaves clip_rate / 2 outside on its side, in units of sigma: it starts at the
                Gaussian one and takes a step up when too many fell outside, down when too few, so that the
                rate is met for any shape of z, without bias however small the batches

    log u  +=  step * (share outside on that side / (clip_rate / 2) - 1)

The objective's own c_low and c_high are hard caps, so that a wanted clip rate never means an unbounded move of the
policy. The band of an update is what was known before it; `observe` is called once after it with the whole batch, so
that micro-batches and ranks all use the same band.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from statistics import NormalDist
from typing import Any, NamedTuple

from fspo.tensors import Tensor, torch

START = 0.03
"""Half-width until the first update at a staleness has been seen."""

FLOOR = 1e-3
"""Smallest half-width: nothing is clipped for rounding noise."""


class HalfWidths(NamedTuple):
    """A band at one token: the drift per token, and the half-widths below and above it."""

    mu: float
    low: float
    high: float


@dataclass
class _Tracked:
    """What is known about z at one staleness."""

    updates: int
    mu: float
    sigma: float
    u_low: float
    u_high: float


@dataclass
class BandTracker:
    """Moving estimates of z by staleness."""

    memory: int = 30  # updates that the moving averages remember
    step: float = 0.01  # of log u, for an update with nothing outside
    tracked: dict[int, _Tracked] = field(default_factory=dict)

    def half_widths(self, staleness: int, caps: tuple[float, float]) -> HalfWidths:
        """The measured drift, and the half-widths under these caps, that an update at this staleness will use."""
        known = self.tracked.get(staleness)
        if known is None:
            return HalfWidths(0.0, *(_held(START, cap) for cap in caps))
        low, high = known.sigma * known.u_low, known.sigma * known.u_high
        return HalfWidths(known.mu, _held(low, caps[0]), _held(high, caps[1]))

    def observe(
        self, log_ratio: Tensor, lengths: Tensor, staleness: int, *, used: HalfWidths, clip_rate: float,
        caps: tuple[float, float], exponent: float,
    ) -> None:  # fmt: skip
        """Learn from the whole batch of an update that used these half-widths around `used.mu`."""
        S, L = torch.stack([log_ratio, lengths.to(log_ratio.dtype)]).detach().cpu().double()
        S, L = S[L > 0], L[L > 0]  # a response without a trained token says nothing
        if not torch.isfinite(S).all():
            raise ValueError("observe needs finite log-ratios")
        if not len(S):
            return
        width = L**exponent
        z = (S - used.mu * L) / width
        drift = float(S.sum() / L.sum())
        # From the mean size, not the mean square, of z: a few outliers must not set the scale.
        sigma = math.sqrt(math.pi / 2) * float(((S - drift * L).abs() / width).mean())
        u = NormalDist().inv_cdf(1 - clip_rate / 2)
        known = self.tracked.setdefault(staleness, _Tracked(0, 0.0, 0.0, u, u))
        if known.updates:  # the first band was a guess: what fell outside it says nothing about u
            below, above = float((z < -used.low).double().mean()), float((z > used.high).double().mean())
            known.u_low = self._stepped(known.u_low, known.sigma, 2 * below / clip_rate - 1, caps[0])
            known.u_high = self._stepped(known.u_high, known.sigma, 2 * above / clip_rate - 1, caps[1])
        known.updates += 1
        weight = max(1 / self.memory, 1 / known.updates)
        known.mu += weight * (drift - known.mu)
        known.sigma += weight * (sigma - known.sigma)

    def _stepped(self, u: float, sigma: float, excess: float, cap: float) -> float:
        """One step of the quantile; none beyond the floor or the cap, where the clip rate no longer depends on it."""
        if (excess > 0 and sigma * u >= cap) or (excess < 0 and sigma * u <= FLOOR):
            return u
        return u * math.exp(self.step * excess)

    def state_dict(self) -> dict[str, Any]:
        return {str(staleness): asdict(known) for staleness, known in sorted(self.tracked.items())}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.tracked = {int(staleness): _Tracked(**known) for staleness, known in state.items()}


def _held(c: float, cap: float) -> float:
    return max(FLOOR, min(cap, c))
