"""CISPO (arXiv 2506.13585): the token weight is clipped and held constant, so every token keeps a gradient.

    J = sum_{i,t} sg( clip(r, ratio_low, ratio_high) ) A log pi / tokens

r token ratio, A advantage, sg stop-gradient. TRL has the upper bound alone, as epsilon_high itself (5 there, from
the ScaleRL study); verl clips to [1 - clip_ratio_low, 1 + clip_ratio_high]. Both are set by these two bounds; the
defaults follow TRL's recommended value. (TRL's own default of 0.2 would be a weight of at most 0.2.)
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from pydantic import Field, model_validator

from fspo.objectives.batch import Batch
from fspo.objectives.clipping import Array, Responses
from fspo.objectives.objective import Objective, Surrogate
from fspo.objectives.primitives import capped_ratio
from fspo.tensors import no_grad


class CISPO(Objective):
    """Log-probability weighted by a constant, clipped token ratio."""

    name = "cispo"
    label = "CISPO"
    summary = "log-prob times a constant token ratio clipped to at most 5, mean over tokens"
    aggregation = "token_mean"
    clip_fields = ("ratio_high",)
    needs_tokens = True

    ratio_low: float = Field(0.0, ge=0, description="smallest weight of a token")
    ratio_high: float = Field(5.0, gt=0, description="largest weight of a token")

    @model_validator(mode="after")
    def _ordered(self) -> CISPO:
        if self.ratio_low >= self.ratio_high:
            raise ValueError(f"ratio_low = {self.ratio_low} must be below ratio_high = {self.ratio_high}")
        return self

    def scaled(self, k: float) -> CISPO:
        return self.model_copy(update={"ratio_high": k * self.ratio_high})

    def survival(self, rows: Responses) -> Callable[[float], Array]:
        assert rows.tokens is not None
        inverse = np.exp(-np.minimum(rows.tokens, self.exponent_cap))
        return lambda k: rows.token_mean(np.minimum(1, k * self.ratio_high * inverse))

    @no_grad
    def surrogate(self, batch: Batch) -> Surrogate:
        ratio, capped = capped_ratio(batch.token_log_ratio, self.exponent_cap)
        accepted = batch.share_(ratio.reciprocal().mul_(self.ratio_high).clamp_(max=1))
        weight = ratio.clamp_(self.ratio_low, self.ratio_high).mul_(batch.token_advantages)
        return Surrogate(weight * batch.logprobs, accepted, batch.share(capped), slope=weight)
