"""FSPO's band with the ratio exp(S / sqrt(L)): a = h = 1/2, g = 0 of the length family. This project's extension.

    J = mean_i min( exp(S / sqrt(L)) A , exp(clamp(S, b_lo, b_hi) / sqrt(L)) A ) / sqrt(R),   b = mu L ± c sqrt(L)

The symbols and the band are FSPO's, so that it clips the same responses; R is the reference length. Divided by sqrt(L),
ratio and gradient have the same size at every length, where exp(S) spreads without bound. So old answers do not break
it, and long ones have less than their share of the true gradient.
"""

from __future__ import annotations

from fspo.objectives.sequence.length_family import Exponents, LogBand


class FSPORoot(LogBand):
    """FSPO's band with the ratio exp(S / sqrt(L))."""

    name = "fspo_root"
    label = "FSPO root"
    summary = "FSPO's band with the ratio exp(S / sqrt(L)): ratio and gradient of one size at any length"

    @property
    def exponents(self) -> Exponents:
        return Exponents(0.5, 0.5, 0.0)
