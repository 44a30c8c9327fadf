"""FSPO's band as a gate: it decides which responses learn, and all of those learn with a weight near 1. Ours.

    J = mean_i sqrt(L) min( exp(S / sqrt(L)) A , exp(clamp(S, b_lo, b_hi) / sqrt(L)) A ) / R,   b = mu L ± c sqrt(L)

a = g = 1/2 of the length family, h from 1/2 on. The gradient of a response inside the band is

    exp(S / sqrt(L)) A sum_t grad log pi / R

On-policy that is the true gradient, as FSPO's. Off-policy |S| <= c sqrt(L) holds the weight within exp(± c) at any
length, where FSPO's exp(S) spreads without bound: old or long answers cannot break an update by their weight. The band
is learnt online for a wanted clip rate (`adaptive_band.py`), under the hard caps c_low and c_high.
"""

from __future__ import annotations

from pydantic import Field

from fspo.objectives.sequence.length_family import Above, Below, Drift, Exponents, LogBand


class FSPOGate(LogBand):
    """FSPO's band and share of the gradient, with a weight that stays near 1."""

    name = "fspo_gate"
    label = "FSPO gate"
    color = 2
    summary = "FSPO's band decides which responses learn, all with a weight near 1; nothing to tune"

    c_low: Below = 0.1
    c_high: Above = 0.1
    clip_rate: float | None = Field(
        0.1, gt=0, lt=1, description="wanted clip rate at every length; null for a fixed band"
    )
    drift: Drift = Field("bounded", description="mu, as in fspo")

    @property
    def exponents(self) -> Exponents:
        return Exponents(0.5, 0.5, 0.5)
