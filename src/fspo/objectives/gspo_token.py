"""GSPO-token (arXiv 2507.18071, section 4.3): GSPO's ratio with a gradient, and an advantage, of each token.

    J = mean_i mean_t min( s_t A_t , clip(s_t, 1 - clip_low, 1 + clip_high) A_t ),   s_t = sg(s) pi / sg(pi)

s = exp(S / L) of the response, sg stop-gradient. With one advantage a response it is GSPO, in value and gradient;
it also takes advantages of shape (B, T). verl's `gspo` is this one, though with a mean over all tokens by default;
this one follows the paper.
"""

from __future__ import annotations

import math
from typing import ClassVar

import torch
from pydantic import Field

from fspo.objectives.base import Aggregation, Objective, Surrogate
from fspo.objectives.batch import Batch, masked
from fspo.objectives.primitives import pessimistic


class GSPOToken(Objective):
    """Sequence-mean ratio with a fixed range, differentiated token by token."""

    name: ClassVar[str] = "gspo_token"
    summary: ClassVar[str] = "GSPO with token gradients; takes an advantage for each token"
    aggregation: ClassVar[Aggregation] = "sequence_mean_of_means"

    clip_low: float = Field(3e-4, ge=0, lt=1, description="the ratio is clipped below 1 - clip_low")
    clip_high: float = Field(4e-4, ge=0, description="the ratio is clipped above 1 + clip_high")

    @torch.no_grad()
    def surrogate(self, batch: Batch) -> Surrogate:
        A = batch.token_advantages
        mean = (batch.log_ratio / batch.lengths).unsqueeze(-1)
        low, high = math.log1p(-self.clip_low), math.log1p(self.clip_high)
        clip = pessimistic(mean, A, low, high, self.exponent_cap)
        accepted, capped = batch.share(clip.accepted), batch.share(clip.capped)
        value = clip.ratio * A
        return Surrogate(value, accepted, capped, slope=masked(value, clip.accepted))
