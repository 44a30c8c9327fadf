"""GMPO (arXiv 2507.20673): the geometric mean of token ratios, each clipped in log space.

    J = mean_i exp( mean_t l_c ) A,     l_c = min(l, clip_high) where A > 0, max(l, -clip_low) where A < 0

l token log-ratio, A advantage. Differs from GSPO in that tokens are clipped, not their mean.
"""

from __future__ import annotations

import math
from typing import Any

from pydantic import Field

from fspo.objectives.batch import Batch, Totals
from fspo.objectives.clipping import Band
from fspo.objectives.objective import Objective, Surrogate
from fspo.objectives.primitives import capped_ratio
from fspo.tensors import torch


class GMPO(Objective):
    """Geometric mean of clipped token ratios."""

    name = "gmpo"
    label = "GMPO"
    summary = "geometric mean of token ratios, each clipped to exp(± 0.4)"
    aggregation = "sequence_mean_of_means"
    clip_fields = ("clip_low", "clip_high")
    clips_tokens = True
    needs_tokens = True

    clip_low: float = Field(0.4, ge=0, description="a token log-ratio is clipped below -clip_low")
    clip_high: float = Field(0.4, ge=0, description="a token log-ratio is clipped above clip_high")

    def band(self, lengths: Any, totals: Totals) -> Band:
        return Band(0.0, self.clip_low, self.clip_high)

    def cap(self, lengths: Any) -> Any:
        """The cap is on the mean of the tokens, none of which it clips."""
        return math.inf

    def scaled(self, k: float) -> GMPO:
        return self.model_copy(update={"clip_low": k * self.clip_low, "clip_high": k * self.clip_high})

    def surrogate(self, batch: Batch) -> Surrogate:
        A, l = batch.row_advantages, batch.token_log_ratio
        infinite = A.new_tensor(torch.inf)
        low = batch.spread(torch.where(A < 0, -self.clip_low, -infinite))
        high = batch.spread(torch.where(A > 0, self.clip_high, infinite))
        # A masked-out position holds 0, which lies inside every range: clamping leaves it 0.
        mean = batch.row_sum(torch.clamp(l, low, high), zeroed=True) / batch.lengths
        ratio, capped = capped_ratio(mean, self.exponent_cap)
        with torch.no_grad():
            accepted = batch.share((l >= low) & (l <= high)) * ~capped
        return Surrogate(ratio * A, accepted, capped)
