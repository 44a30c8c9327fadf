"""FSPO that sets itself: a band learnt for a wanted clip rate, and a weight that length cannot blow up. Ours.

    J = mean_i min( exp(k (S - m)) A , exp(k (clamp(S, mu L - b, mu L + b) - m)) A ) / (k R)

    w = sigma u sqrt(M) (L / M)^h,     k = min(1, log W / w),     m = (1 - k) mu L

w   half-width that clips clip_rate at every length, with sigma, u and h learnt online (`adaptive_band.py`)
b   half-width of the band: w with sigma u under the hard caps c_low and c_high
W   largest weight at w            mu  drift per token, bounded            R  mean length

The gradient of a response inside the band is exp(k (S - m)) A sum_t grad log pi / R. While answers have moved little
(w <= log W) that is FSPO's, with its exact importance weight. Where they are long or old, exp(S) would spread without
bound: there S is divided by its own spread, so that weights lie in 1/W .. W at any length, and m holds their mean at 1.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from pydantic import Field

from fspo.objectives.batch import Totals
from fspo.objectives.clipping import Weighting
from fspo.objectives.sequence.fspo_gate import FSPOGate
from fspo.objectives.sequence.length_family import Exponents

NO_CAPS = (math.inf, math.inf)


class FSPOAuto(FSPOGate):
    """`fspo_gate`'s learnt band; weight exp(S), tempered where it would spread beyond W."""

    name = "fspo_auto"
    label = "FSPO auto"
    color = 6
    summary = "FSPO with a band learnt from the data and a weight held in 1/W .. W at any length; nothing to tune"

    largest_weight: float = Field(3.0, gt=1, description="W: weight at the edge of what S spreads, at any length")

    @property
    def exponents(self) -> Exponents:
        return Exponents(0.0, 0.5, 0.0)

    def weighting(self, lengths: Any, totals: Totals) -> Weighting:
        k, centre = self._tempering(lengths, 0), self.band(lengths, totals).centre
        return Weighting(k, np.exp(-k * (1 - k) * centre) / k / self.reference(None))

    def _tempering(self, lengths: Any, staleness: int) -> Any:
        """k from the learnt half-width, before the caps."""
        learnt = self._tracker.half_widths(staleness, NO_CAPS)
        widths = learnt if self.learns else self.half_widths(Totals(1, 1, 0.0), staleness)
        return 1 / (widths.high / math.log(self.largest_weight) * widths.width(lengths)).clip(1.0)
