"""GSPO (arXiv 2507.18071): the length-normalised sequence ratio.

    J = mean_i min( s A , clip(s, 1 - clip_low, 1 + clip_high) A ),     s = exp(S / L)

S sum of the token log-ratios of a response, L its trained tokens, A advantage. S / L has a standard deviation near
sigma / sqrt(L), so a fixed range on s clips short answers more than long ones.
"""

from __future__ import annotations

from typing import Any, ClassVar

from pydantic import Field

from fspo.objectives.batch import Batch, Totals
from fspo.objectives.clipping import Band
from fspo.objectives.objective import Aggregation, Objective, Surrogate
from fspo.objectives.primitives import log_range, pessimistic, scaled_range


class GSPO(Objective):
    """Sequence-mean ratio with a fixed range."""

    name: ClassVar[str] = "gspo"
    summary: ClassVar[str] = "sequence mean, clipped to [1 - 3e-4, 1 + 4e-4]: short answers are clipped more"
    aggregation: ClassVar[Aggregation] = "sequence_mean_of_means"
    clip_fields: ClassVar[tuple[str, ...]] = ("clip_low", "clip_high")

    clip_low: float = Field(3e-4, ge=0, lt=1, description="the ratio is clipped below 1 - clip_low")
    clip_high: float = Field(4e-4, ge=0, description="the ratio is clipped above 1 + clip_high")

    def band(self, lengths: Any, totals: Totals, staleness: int = 0, *, token_squares: Any = None) -> Band:
        low, high = log_range(self.clip_low, self.clip_high)
        return Band(0.0, low * lengths, high * lengths)

    def cap(self, lengths: Any) -> Any:
        return self.exponent_cap * lengths

    def scaled(self, k: float) -> GSPO:
        return self.model_copy(update=scaled_range(self.clip_low, self.clip_high, k))

    def surrogate(self, batch: Batch) -> Surrogate:
        A = batch.row_advantages
        low, high = log_range(self.clip_low, self.clip_high)
        clip = pessimistic(batch.log_ratio / batch.lengths, A, -low, high, self.exponent_cap)
        return Surrogate(clip.ratio * A, clip.accepted.to(A.dtype), clip.capped)
