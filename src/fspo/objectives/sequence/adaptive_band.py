"""An adaptive band: half-widths learnt online for a wanted clip rate, without pilot runs to choose c. Ours.

    z = (S - mu L) / L^h,     half-widths  c_low = sigma u_low,  c_high = sigma u_high

Separately for every staleness (optimiser steps since the answers were sampled: z is 0 on the first and widens with
each) it tracks

    mu, sigma   moving averages of the drift per token and of the scale of z, from all responses
    u           the quantile that leaves clip_rate / 2 outside on its side, in units of sigma: it starts at the
                Gaussian one and takes a step up when too many fell outside, down when too few, so that the
                rate is met for any shape of z, without bias however small the batches

    log u  +=  step * (share outside on that side / (clip_rate / 2) - 1)

The exponent h is given, or learnt too: responses that training has moved spread faster than sqrt(L), and a band of
sqrt(L) then clips the long ones more. It rises while those outside the band are longer than the others, and falls while
they are shorter, over all stalenesses:

    h  +=  exponent_step * correlation(outside, log L),     L^h -> sqrt(M) (L / M)^h,   M  geometric mean length

The objective's own c_low and c_high are hard caps at the length M, so that a wanted clip rate never means an unbounded
move of the policy. The band of an update is what was known before it; `observe` is called once after it with the whole
batch, so that micro-batches and ranks all use the same band.
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
    """A band: the drift per token, and the half-widths below and above it in units of `width(L)`."""

    mu: float
    low: float
    high: float
    exponent: float = 0.5
    pivot: float = 1.0  # where a learnt exponent leaves the width at sqrt(L)

    def width(self, lengths: Any, a: float = 0.0) -> Any:
        """L^h of a given exponent, sqrt(M) (L / M)^h of a learnt one, for a band on S / L^a."""
        return lengths ** (self.exponent - a) * self.pivot ** (0.5 - self.exponent)


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
    """Moving estimates of z by staleness, and of the exponent over all of them."""

    exponent: float = 0.5  # h
    learns_exponent: bool = False
    memory: int = 30  # updates that the moving averages remember
    step: float = 0.01  # of log u, for an update with nothing outside
    exponent_step: float = 0.1
    updates: int = 0
    log_pivot: float = 0.0  # log M
    tracked: dict[int, _Tracked] = field(default_factory=dict)

    def half_widths(self, staleness: int, caps: tuple[float, float]) -> HalfWidths:
        """The measured drift, and the half-widths under these caps, that an update at this staleness will use."""
        known, mu, low, high = self.tracked.get(staleness), 0.0, START, START
        if known is not None:
            mu, low, high = known.mu, known.sigma * known.u_low, known.sigma * known.u_high
        return HalfWidths(mu, _held(low, caps[0]), _held(high, caps[1]), self.exponent, math.exp(self.log_pivot))

    def observe(
        self, log_ratio: Tensor, lengths: Tensor, staleness: int, *, used: HalfWidths, clip_rate: float,
        caps: tuple[float, float],
    ) -> None:  # fmt: skip
        """Learn from the whole batch of an update that used these half-widths around `used.mu`."""
        S, L = torch.stack([log_ratio, lengths.to(log_ratio.dtype)]).detach().cpu().double()
        S, L = S[L > 0], L[L > 0]  # a response without a trained token says nothing
        if not torch.isfinite(S).all():
            raise ValueError("observe needs finite log-ratios")
        if not len(S):
            return
        width = used.width(L)
        z = (S - used.mu * L) / width
        drift = float(S.sum() / L.sum())
        # From the mean size, not the mean square, of z: a few outliers must not set the scale.
        sigma = math.sqrt(math.pi / 2) * float(((S - drift * L).abs() / width).mean())
        u = NormalDist().inv_cdf(1 - clip_rate / 2)
        known = self.tracked.setdefault(staleness, _Tracked(0, 0.0, 0.0, u, u))
        if known.updates:  # the first band was a guess: what fell outside it says nothing about u
            below, above = (z < -used.low).double(), (z > used.high).double()
            known.u_low = self._stepped(known.u_low, known.sigma, 2 * float(below.mean()) / clip_rate - 1, caps[0])
            known.u_high = self._stepped(known.u_high, known.sigma, 2 * float(above.mean()) / clip_rate - 1, caps[1])
            if self.learns_exponent:
                moved = self.exponent + self.exponent_step * _correlation(below + above, L.log())
                self.exponent = min(1.0, max(0.0, moved))
        if self.learns_exponent:
            self.updates += 1
            self.log_pivot += max(1 / self.memory, 1 / self.updates) * (float(L.log().mean()) - self.log_pivot)
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
        tracked = {str(staleness): asdict(known) for staleness, known in sorted(self.tracked.items())}
        return {"exponent": self.exponent, "updates": self.updates, "log_pivot": self.log_pivot, "tracked": tracked}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.tracked = {int(staleness): _Tracked(**known) for staleness, known in state["tracked"].items()}
        self.exponent, self.updates, self.log_pivot = (state[key] for key in ("exponent", "updates", "log_pivot"))


def _correlation(x: Tensor, y: Tensor) -> float:
    """Of two columns; 0 where one of them is constant."""
    x, y = x - x.mean(), y - y.mean()
    size = float((x.square().sum() * y.square().sum()).sqrt())
    return float((x * y).sum()) / size if size > 0 else 0.0


def _held(c: float, cap: float) -> float:
    return max(FLOOR, min(cap, c))
