"""`fspo_root` with the band of `fspo_adaptive`: width c sqrt(L), with c learnt online. This project's extension.

    J = mean_i min( exp(S / sqrt(L)) A , exp(clamp(S, b_lo, b_hi) / sqrt(L)) A )

b_lo = mu L - c_low sqrt(L) and b_hi = mu L + c_high sqrt(L) are tracked as `fspo_adaptive` tracks them.
"""

from __future__ import annotations

from typing import Any, ClassVar

from fspo.objectives.batch import Batch
from fspo.objectives.clipping import Band, Weighting
from fspo.objectives.objective import Surrogate
from fspo.objectives.sequence.fspo import FSPO
from fspo.objectives.sequence.fspo_adaptive import FSPOAdaptive
from fspo.objectives.sequence.fspo_root import FSPORoot, root_surrogate, root_weighting


class FSPORootAdaptive(FSPOAdaptive):
    """The ratio of the root of the length, with a band learnt online for a wanted clip rate."""

    name: ClassVar[str] = "fspo_root_adaptive"
    summary: ClassVar[str] = "fspo_root with the band of fspo_adaptive: learnt online for a wanted clip rate"
    fixed: ClassVar[type[FSPO]] = FSPORoot

    def weighting(self, lengths: Any) -> Weighting:
        return root_weighting(lengths, self.reference_length)

    def _clipped(self, batch: Batch, band: Band) -> Surrogate:
        return root_surrogate(batch, band, self.exponent_cap, self.reference_length)
