"""RLOO (arXiv 2402.14740) with PPO's range on the whole-sequence ratio, as TRL's RLOOTrainer.

    J = mean_i min( w A , clip(w, 1 - clip_low, 1 + clip_high) A ),     w = exp(S)

S sum of the token log-ratios of a response, A advantage (leave-one-out: the `rloo` advantage). S has a standard
deviation near sigma sqrt(L), so a fixed range on w clips long answers more than short ones.
"""

from __future__ import annotations

from pydantic import Field

from fspo.objectives.sequence.length_family import Exponents, RatioRange


class RLOO(RatioRange):
    """Sequence-sum ratio with a fixed range."""

    name = "rloo"
    label = "fixed range"
    colour = 5
    summary = "sequence sum, clipped to 1 ± 0.2: long answers are clipped more"

    clip_low: float = Field(0.2, ge=0, lt=1, description="the ratio is clipped below 1 - clip_low")
    clip_high: float = Field(0.2, ge=0, description="the ratio is clipped above 1 + clip_high")

    @property
    def exponents(self) -> Exponents:
        return Exponents(0.0, 0.0, 0.0)
