"""FSPO's band as a gate: responses inside it learn, with a weight near 1; those outside wait for fresh answers. Ours.

    J = mean_i sqrt(L) exp( clamp(S, b_lo, b_hi) / sqrt(L) ) A / R,   b = mu L ± c sqrt(L)

a = h = g = 1/2 of the length family, clipped on both sides whatever the sign of A. The gradient of a response is

    1[b_lo <= S <= b_hi] exp(S / sqrt(L)) A sum_t grad log pi / R

On-policy that is the true gradient, as FSPO's. Off-policy the weight stays within exp(± c) at every length, where
FSPO's exp(S) spreads without bound: old or long answers cannot break an update by their weight.

Why on both sides: a pessimistic clip removes the responses that have moved with their advantage and keeps those that
have moved against it. FSPO's weight exp(S) fades the latter out; with a weight near 1 they would pull the policy back
towards the one that sampled, and the more so the longer the answer. The band is learnt online for a wanted clip rate
(`adaptive_band.py`), under the hard caps c_low and c_high: where the policy has moved further, nothing is left to push.
"""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from fspo.objectives.sequence.length_family import Drift, Exponents, LogBand


class FSPOGate(LogBand):
    """FSPO's band and share of the gradient, with a weight that stays near 1."""

    name: ClassVar[str] = "fspo_gate"
    label: ClassVar[str] = "FSPO gate"
    color: ClassVar[int] = 2
    summary: ClassVar[str] = "FSPO's band decides which responses learn, all with a weight near 1; nothing to tune"

    c_low: float = Field(0.1, ge=0, description="half-width below the drift; with clip_rate the largest")
    c_high: float = Field(0.1, ge=0, description="half-width above the drift; with clip_rate the largest")
    clip_rate: float | None = Field(0.1, gt=0, lt=1, description="wanted share outside the band; null for a fixed one")
    drift: Drift = Field("bounded", description="mu, as in fspo")
    gate: bool = Field(True, description="clip outside the band whatever the sign of the advantage; replaces dual")

    @property
    def exponents(self) -> Exponents:
        return Exponents(0.5, 0.5, 0.5)
