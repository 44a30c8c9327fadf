"""FSPO's band as a gate: it decides which responses learn, and length no longer spreads their weights. Ours.

    J = mean_i sqrt(L) min( exp(S / sqrt(L)) A , exp(clamp(S, b_lo, b_hi) / sqrt(L)) A ) / R,   b = mu L ± c sqrt(L)

a = g = 1/2 of the length family; h starts at 1/2 and is learnt. The gradient of a response inside the band is

    exp(S / sqrt(L)) A sum_t grad log pi / R

On-policy that is the true gradient, as FSPO's. Off-policy the weight is at most exp(mu sqrt(L) + c) where A > 0 and, by
the dual clip, exp(mu sqrt(L) + 2 c) where A < 0, in a band of sqrt(L); it is below 1 for responses that moved against
their advantage. FSPO's exp(S) spreads without bound. The band is learnt online for a wanted clip rate
(`adaptive_band.py`), under the hard caps c_low and c_high at the mean length M: with a learnt exponent h the half-width
of S / sqrt(L) is c (L / M)^(h - 1/2).
"""

from __future__ import annotations

from pydantic import Field

from fspo.objectives.sequence.length_family import Above, Below, Drift, Exponents, LogBand


class FSPOGate(LogBand):
    """FSPO's band and share of the gradient, with a weight bounded by the band."""

    name = "fspo_gate"
    label = "FSPO gate"
    colour = 2
    summary = "FSPO's band decides which responses learn and bounds their weights; nothing to tune"

    c_low: Below = 0.1
    c_high: Above = 0.1
    clip_rate: float | None = Field(
        0.1, gt=0, lt=0.5, description="wanted clip rate at every length; null for a fixed band"
    )
    drift: Drift = Field("bounded", description="mu, as in fspo")

    @property
    def exponents(self) -> Exponents:
        return Exponents(0.5, 0.5, 0.5)
