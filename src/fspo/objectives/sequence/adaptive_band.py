"""An adaptive band: learnt online for a wanted clip rate at every length, without pilot runs to choose c. Ours.

    mu L - c_low sqrt(M) (L / M)^h .. mu L + c_high sqrt(M) (L / M)^h,     c = sigma u,     M  geometric mean length

It learns from what pessimistic clipping acts on: responses with A > 0 above the band, and with A < 0 below it. Training
moves both outwards, further the longer and the older they are, so that neither the width nor its law in L is known
beforehand. (The dual clip, further out where A < 0, is not counted.) Separately for every staleness (optimiser steps
since the answers were sampled: S is 0 on the first and spreads with each) it tracks

    mu, sigma   moving averages of the drift per token and of the scale of (S - mu L) / (sqrt(M) (L / M)^h)
    u           half-width in units of sigma on either side: a step up when more than clip_rate of the responses of
                that sign were clipped, down when fewer, so that the rate is met for any shape and size of batch

    log u  +=  step_u (share clipped / clip_rate - 1)

and over all stalenesses the exponent, which rises while clipped responses are longer than the others and falls while
they are shorter, starting at the objective's exponent:

    h  +=  step_h correlation(clipped, log L)

Steps shrink over the first updates and then stay, so that the band follows a run. The objective's own c_low and c_high
are hard caps at the length M, so that a wanted clip rate never means an unbounded move of the policy. The band of an
update is what was known before it; `observe` is called once after it with the whole batch, so that micro-batches and
ranks all use the same band.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from statistics import NormalDist
from typing import Any, NamedTuple

from fspo.tensors import Tensor, torch

START = 0.03
"""Half-width until an off-policy update has been seen."""

FLOOR = 1e-3
"""Smallest half-width: nothing is clipped for rounding noise."""

LARGEST_STEP = 2.0
"""Of log u: a small clip_rate makes steps large."""

MEMORY = 30
"""Updates that the moving averages remember."""


class HalfWidths(NamedTuple):
    """A band: the drift per token, and the half-widths below and above it in units of `width(L)`."""

    mu: float
    low: float
    high: float
    exponent: float = 0.5  # h
    pivot: float = 1.0  # M, where a learnt exponent leaves the width at sqrt(L)

    def width(self, lengths: Any, a: float = 0.0) -> Any:
        """L^h of a given exponent, sqrt(M) (L / M)^h of a learnt one, for a band on S / L^a."""
        return lengths ** (self.exponent - a) * self.pivot ** (0.5 - self.exponent)


@dataclass
class _Tracked:
    """What is known at one staleness."""

    updates: int
    mu: float
    sigma: float
    u_low: float
    u_high: float


@dataclass
class BandTracker:
    """State per staleness, and the exponent and pivot shared by all."""

    exponent: float  # h
    updates: int = 0
    log_pivot: float = 0.0  # log M
    tracked: dict[int, _Tracked] = field(default_factory=dict)

    def half_widths(self, staleness: int, caps: tuple[float, float]) -> HalfWidths:
        """The measured drift, and the half-widths under these caps, that an update at this staleness will use."""
        known, mu, low, high = self._known(staleness), 0.0, START, START
        if known is not None:
            mu, low, high = known.mu, known.sigma * known.u_low, known.sigma * known.u_high
        law = (self.exponent, math.exp(self.log_pivot)) if self.updates else (0.5, 1.0)
        return HalfWidths(mu, _held(low, caps[0]), _held(high, caps[1]), *law)

    def _known(self, staleness: int) -> _Tracked | None:
        """What is known at a staleness; at one that was not seen yet, at the next fresher off-policy one."""
        fresher = [s for s, known in self.tracked.items() if s < staleness and known.sigma > FLOOR]
        return self.tracked.get(staleness) or (self.tracked[max(fresher)] if fresher else None)

    def observe(
        self, log_ratio: Tensor, lengths: Tensor, advantages: Tensor, staleness: int, *, used: HalfWidths,
        clip_rate: float, caps: tuple[float, float],
    ) -> None:  # fmt: skip
        """Learn from the whole batch of an update that used these half-widths around `used.mu`."""
        S, L, A = (column.detach().cpu().double() for column in (log_ratio, lengths, advantages))
        if not S.shape == L.shape == A.shape or not torch.isfinite(torch.stack([S, A])).all():
            raise ValueError("observe needs finite log-ratios, lengths and finite advantages, one per response")
        acts = (L > 0) & (A != 0)  # a response without a trained token or an advantage is never clipped
        S, L, A = S[acts], L[acts], A[acts]
        if not len(S):
            return
        self.updates += 1
        self.log_pivot += max(1 / MEMORY, 1 / self.updates) * (float(L.log().mean()) - self.log_pivot)
        width = used.width(L)
        z = (S - used.mu * L) / width
        drift = float(S.sum() / L.sum())
        # From the mean size, not the mean square, of z: a few outliers must not set the scale. A single response, or
        # several with one S / L, do not spread around their own drift: they do around the one known before.
        centre = used.mu if torch.allclose(S / L, torch.full_like(S, drift)) else drift
        sigma = math.sqrt(math.pi / 2) * float(((S - centre * L).abs() / width).mean())
        fresher, u = self._known(staleness), NormalDist().inv_cdf(1 - clip_rate)
        bounds = (fresher.u_low, fresher.u_high) if fresher else (u, u)
        known = self.tracked.setdefault(staleness, _Tracked(0, 0.0, 0.0, *bounds))
        clipped = torch.where(A > 0, z > used.high, z < -used.low).double()
        if known.updates:  # the first band was a guess, and so is what it clipped
            step = max(0.01, 0.5 / (known.updates + 2)) / clip_rate
            known.u_low = _stepped(known.u_low, known.sigma, step, clipped[A < 0] - clip_rate, caps[0])
            known.u_high = _stepped(known.u_high, known.sigma, step, clipped[A > 0] - clip_rate, caps[1])
        self.exponent += max(0.02, 4 / (self.updates + 40)) * _correlation(clipped, L.log())
        self.exponent = min(1.0, max(0.0, self.exponent))
        known.updates += 1
        weight = max(1 / MEMORY, 1 / known.updates)
        known.mu += weight * (drift - known.mu)
        known.sigma += weight * (sigma - known.sigma)

    def state_dict(self) -> dict[str, Any]:
        law = {"exponent": self.exponent, "updates": self.updates, "log_pivot": self.log_pivot}
        return {"law": law} | {str(staleness): asdict(known) for staleness, known in sorted(self.tracked.items())}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        law, names = state["law"], ("mu", "sigma", "u_low", "u_high")
        tracked = {
            int(staleness): _Tracked(int(known["updates"]), *(float(known[name]) for name in names))
            for staleness, known in state.items()
            if staleness != "law"
        }
        self.exponent, self.updates, self.log_pivot, self.tracked = (
            float(law["exponent"]), int(law["updates"]), float(law["log_pivot"]), tracked,
        )  # fmt: skip


def _stepped(u: float, sigma: float, step: float, excess: Tensor, cap: float) -> float:
    """A step of the quantile by the mean excess; none past the floor or the cap, where u has no effect."""
    up = step * float(excess.mean()) if len(excess) else 0.0
    if sigma == 0 or (up > 0 and sigma * u >= cap) or (up < 0 and sigma * u <= FLOOR):
        return u
    u *= math.exp(min(up, LARGEST_STEP))
    return min(u, cap / sigma) if up > 0 else u


def _correlation(x: Tensor, y: Tensor) -> float:
    """Of two columns; 0 where one of them is constant."""
    x, y = x - x.mean(), y - y.mean()
    size = float((x.square().sum() * y.square().sum()).sqrt())
    return float((x * y).sum()) / size if size > 0 else 0.0


def _held(c: float, cap: float) -> float:
    return min(cap, max(FLOOR, c))
