"""The length family with FSPO's adaptive band: width c sqrt(L), with c learnt online. This project's extension.

    J = mean_i gain min( exp(S / d) A , exp(clamp(S, b_lo, b_hi) / d) A ),   d = (L / L0)^a,   gain = (L / L0)^g

The band mu L - c_low sqrt(L) .. mu L + c_high sqrt(L) is tracked as in `fspo_adaptive`, of which this differs in the
ratio and the gain; a = g = 0 is `fspo_adaptive`. The symbols are those of `length_family`, with h = 1/2.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from pydantic import Field

from fspo.objectives.batch import Batch
from fspo.objectives.clipping import Band, Weighting
from fspo.objectives.objective import Objective, Surrogate
from fspo.objectives.sequence.fspo import constant_gain, in_tokens
from fspo.objectives.sequence.fspo_adaptive import FSPOAdaptive
from fspo.objectives.sequence.length_family import LengthFamily, weighted_surrogate


class LengthFamilyAdaptive(FSPOAdaptive):
    """A ratio and a gain that are powers of the length, with a band learnt online for a wanted clip rate."""

    name: ClassVar[str] = "length_family_adaptive"
    summary: ClassVar[str] = "length_family with the band of fspo_adaptive: learnt online for a wanted clip rate"

    ratio_exponent: float = Field(0.5, ge=0, le=1, description="a of the ratio exp(S / L^a)")
    gain_exponent: float = Field(0.0, ge=-1, le=1, description="g of the factor L^g of a response's loss")
    unit_length: float = Field(1.0, gt=0, description="tokens at which every member is FSPO with this c")

    def weighting(self, lengths: Any) -> Weighting:
        scale, gain = self._member.weighting(lengths)
        return Weighting(scale, gain * constant_gain(self.reference_length))

    def recorded(self, metrics: Mapping[str, Any]) -> Objective:
        """The member of the family with the band of an update; with a bounded drift where only widths were recorded."""
        return self if metrics.get("c_low") is None else self._member.recorded(metrics)

    def _clipped(self, batch: Batch, band: Band) -> Surrogate:
        scale, gain = self._member.weighting(batch.lengths)
        weighting = Weighting(scale, gain / in_tokens(self.reference_length, batch.totals))
        return weighted_surrogate(batch, band, weighting, self.exponent_cap)

    @property
    def _member(self) -> LengthFamily:
        return LengthFamily(
            ratio_exponent=self.ratio_exponent,
            gain_exponent=self.gain_exponent,
            unit_length=self.unit_length,
            drift="bounded",
            dual=self.dual,
        )
