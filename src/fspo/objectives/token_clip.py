"""The PPO family: one frame for the objectives that clip each token's ratio and differ in aggregation and range.

    J = agg_{i,t} min( r A , clip(r, 1 - clip_low, 1 + clip_high) A ),    r = exp(l_t)

l_t token log-ratio, A advantage. With `dual_clip` the objective is never below dual_clip A where A < 0 (the dual
clip of arXiv 1912.09729; TRL calls it delta).
"""

from __future__ import annotations

import math

import torch
from pydantic import Field

from fspo.objectives.base import Objective, Surrogate
from fspo.objectives.batch import Batch, masked
from fspo.objectives.primitives import pessimistic


class TokenClip(Objective):
    """Token ratio, pessimistic clip; subclasses choose the defaults and the aggregation."""

    clip_low: float = Field(0.2, ge=0, lt=1, description="the ratio is clipped below 1 - clip_low")
    clip_high: float = Field(0.2, ge=0, description="the ratio is clipped above 1 + clip_high")
    dual_clip: float | None = Field(None, gt=1, description="largest ratio where A < 0")

    @torch.no_grad()
    def surrogate(self, batch: Batch) -> Surrogate:
        A = batch.token_advantages
        low, high = math.log1p(-self.clip_low), math.log1p(self.clip_high)
        dual = math.inf if self.dual_clip is None else math.log(self.dual_clip)
        clip = pessimistic(batch.token_log_ratio, A, low, high, self.exponent_cap, dual)
        accepted, capped = batch.share(clip.accepted), batch.share(clip.capped)
        value = clip.ratio.mul_(A)
        return Surrogate(value, accepted, capped, slope=masked(value, clip.accepted))
