"""GSPO (arXiv 2507.18071): the length-normalised sequence ratio.

    J = mean_i min( s A , clip(s, 1 - clip_low, 1 + clip_high) A ),     s = exp(S / L)

S sum of the token log-ratios of a response, L its trained tokens, A advantage. S / L has a standard deviation near
sigma / sqrt(L), so a fixed range on s clips short answers more than long ones.
"""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from fspo.objectives.objective import Aggregation
from fspo.objectives.sequence.length_family import Exponents, RatioRange


class GSPO(RatioRange):
    """Sequence-mean ratio with a fixed range."""

    name = "gspo"
    label = "GSPO"
    colour = 4
    summary = "sequence mean, clipped to [1 - 3e-4, 1 + 4e-4]: short answers are clipped more"
    aggregation: ClassVar[Aggregation] = "sequence_mean_of_means"

    clip_low: float = Field(3e-4, ge=0, lt=1, description="the ratio is clipped below 1 - clip_low")
    clip_high: float = Field(4e-4, ge=0, description="the ratio is clipped above 1 + clip_high")

    @property
    def exponents(self) -> Exponents:
        return Exponents(1.0, 1.0, 0.0)
