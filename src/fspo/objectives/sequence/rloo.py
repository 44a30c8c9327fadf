"""RLOO (arXiv 2402.14740) with PPO's range on the whole-sequence ratio, as TRL's RLOOTrainer.

    J = mean_i min( w A , clip(w, 1 - clip_low, 1 + clip_high) A ),     w = exp(S)

S sum of the token log-ratios of a response, A advantage (leave-one-out: the `rloo` advantage). S has a standard
deviation near sigma sqrt(L), so a fixed range on w clips long answers more than short ones.
"""

from __future__ import annotations

from typing import Any, ClassVar

from pydantic import Field

from fspo.objectives.batch import Batch, Totals
from fspo.objectives.clipping import Band, Weighting
from fspo.objectives.objective import Aggregation, Objective, Surrogate
from fspo.objectives.primitives import log_range, pessimistic, scaled_range


class RLOO(Objective):
    """Sequence-sum ratio with a fixed range."""

    name: ClassVar[str] = "rloo"
    summary: ClassVar[str] = "sequence sum, clipped to 1 ± 0.2: long answers are clipped more"
    aggregation: ClassVar[Aggregation] = "sequence_mean_of_sums"
    clip_fields: ClassVar[tuple[str, ...]] = ("clip_low", "clip_high")

    clip_low: float = Field(0.2, ge=0, lt=1, description="the ratio is clipped below 1 - clip_low")
    clip_high: float = Field(0.2, ge=0, description="the ratio is clipped above 1 + clip_high")

    def band(self, lengths: Any, totals: Totals, staleness: int = 0, *, token_squares: Any = None) -> Band:
        return Band(0.0, *log_range(self.clip_low, self.clip_high))

    def weighting(self, lengths: Any) -> Weighting:
        return Weighting()

    def scaled(self, k: float) -> RLOO:
        return self.model_copy(update=scaled_range(self.clip_low, self.clip_high, k))

    def surrogate(self, batch: Batch) -> Surrogate:
        A = batch.row_advantages
        low, high = log_range(self.clip_low, self.clip_high)
        clip = pessimistic(batch.log_ratio, A, -low, high, self.exponent_cap)
        return Surrogate(clip.ratio * A, clip.accepted.to(A.dtype), clip.capped)
