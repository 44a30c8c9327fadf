"""The PPO family: one frame for the objectives that clip each token's ratio and differ in aggregation and range.

    J = agg_{i,t} min( r A , clip(r, 1 - clip_low, 1 + clip_high) A ),    r = exp(l_t)

l_t token log-ratio, A advantage. With `dual_clip` the objective is never below dual_clip A where A < 0 (the dual
clip of arXiv 1912.09729; TRL calls it delta).
"""

from __future__ import annotations

import math
from typing import Any

from pydantic import Field

from fspo.objectives.batch import Batch, Totals, masked
from fspo.objectives.clipping import Band
from fspo.objectives.objective import Objective, Surrogate
from fspo.objectives.primitives import log_range, pessimistic, scaled_range
from fspo.tensors import no_grad


class TokenClip(Objective):
    """Token ratio, pessimistic clip; subclasses choose the defaults and the aggregation."""

    clip_fields = ("clip_low", "clip_high")
    clips_tokens = True
    needs_tokens = True

    clip_low: float = Field(0.2, ge=0, lt=1, description="the ratio is clipped below 1 - clip_low")
    clip_high: float = Field(0.2, ge=0, description="the ratio is clipped above 1 + clip_high")
    dual_clip: float | None = Field(None, gt=1, description="largest ratio where A < 0")

    def band(self, lengths: Any, totals: Totals) -> Band:
        dual = math.inf if self.dual_clip is None else math.log(self.dual_clip)
        return Band(0.0, *log_range(self.clip_low, self.clip_high), dual)

    def scaled(self, k: float) -> TokenClip:
        dual = None if self.dual_clip is None else self.dual_clip**k
        return self.model_copy(update={**scaled_range(self.clip_low, self.clip_high, k), "dual_clip": dual})

    @no_grad
    def surrogate(self, batch: Batch) -> Surrogate:
        A, l = batch.advantages, batch.token_log_ratio
        _, low, high, dual = self.band(batch.lengths, batch.totals)
        clip = pessimistic(l, A, -low, high, self.exponent_cap, dual, batch.to_tokens)
        accepted, capped = batch.share(clip.accepted), batch.share(clip.capped)
        value = clip.ratio.mul_(batch.token_advantages)
        return Surrogate(value, accepted, capped, slope=masked(value, clip.accepted))
