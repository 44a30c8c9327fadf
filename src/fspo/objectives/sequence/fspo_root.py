"""FSPO with the ratio exp(S / sqrt(L)): the member a = h = 1/2 of the length family. This project's extension.

    J = mean_i min( exp(S / sqrt(L)) A , exp(clamp(S, b_lo, b_hi) / sqrt(L)) A ),   b = mu L ± c sqrt(L)

The symbols and the band are FSPO's, so that it clips the same responses. The standard deviation of S is near
sigma sqrt(L), and the norm of a sum of L token gradients near sqrt(L): divided by sqrt(L), ratio and gradient have the
same size at every length, where exp(S) spreads without bound and the gradient of a response grows with its length.
The gradient is that of a fixed range on exp(S / sqrt(L)).

With answers six rollouts old it ended ahead of FSPO, which could collapse, and with fresh ones level with it
(docs/results/long.md, with advantages divided by the group's deviation). Where short and long responses want opposite
things, the smaller share of long ones moves the optimum (docs/laboratory.md).
"""

from __future__ import annotations

from typing import Any, ClassVar

from fspo.objectives.batch import Batch
from fspo.objectives.clipping import Band, Weighting
from fspo.objectives.objective import Surrogate
from fspo.objectives.sequence.fspo import FSPO, ReferenceLength, constant_gain, in_tokens, weighted_surrogate


def root_surrogate(batch: Batch, band: Band, cap: float, reference_length: ReferenceLength) -> Surrogate:
    """The pessimistic objective of exp(S / sqrt(L)); at the reference length its gradient has the size of FSPO's."""
    gain = in_tokens(reference_length, batch.totals) ** -0.5
    return weighted_surrogate(batch, band, Weighting(batch.lengths**-0.5, gain), cap)


def root_weighting(lengths: Any, reference_length: ReferenceLength) -> Weighting:
    """How S enters the loss, with the factor that is known without a batch."""
    return Weighting(lengths**-0.5, constant_gain(reference_length) ** 0.5)


class FSPORoot(FSPO):
    """FSPO's band, with the ratio of the root of the length."""

    name: ClassVar[str] = "fspo_root"
    summary: ClassVar[str] = "FSPO's band with the ratio exp(S / sqrt(L)): ratio and gradient of one size at any length"

    def weighting(self, lengths: Any) -> Weighting:
        return root_weighting(lengths, self.reference_length)

    def _clipped(self, batch: Batch, band: Band) -> Surrogate:
        return root_surrogate(batch, band, self.exponent_cap, self.reference_length)
