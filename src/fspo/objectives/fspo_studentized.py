"""Studentised FSPO: the band's scale comes from the response itself. This project's extension.

    |S - mu L| <= c sqrt( sum_t (l_t - mu)^2 )

l_t token log-ratio, S its sum over the L tokens of a response, mu the drift a token.

c counts standard deviations: 1.645 clips 10 % of independent Gaussian log-ratios at any length and any sigma, so
it needs no tuning. Differs from FSPO in that a response of few surprising tokens gets a wide band of its own:
heavy tails are clipped less, and a uniform shift of all tokens is clipped more.
"""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
from pydantic import Field

from fspo.objectives.base import Aggregation, Objective, Surrogate
from fspo.objectives.batch import Batch
from fspo.objectives.fspo import band_surrogate, drift_of


class FSPOStudentized(Objective):
    """FSPO whose band is scaled by each response's own token log-ratios."""

    name: ClassVar[str] = "fspo_studentized"
    summary: ClassVar[str] = "sequence sum, band scaled by the response's own token log-ratios: no sigma to tune"
    aggregation: ClassVar[Aggregation] = "sequence_mean_of_sums"

    c_low: float = Field(1.645, ge=0, description="half-width below the drift, in standard deviations")
    c_high: float = Field(1.645, ge=0, description="half-width above the drift, in standard deviations")
    drift: Literal["zero", "kl", "k3"] | float = Field(
        "zero",
        description="mu: zero; kl (mean log-ratio) or k3 (its low-variance form) near on-policy; or a number",
    )
    reference_length: float = Field(1.0, gt=0, description="constant that the loss is divided by")

    @property
    def estimates(self) -> bool:
        return self.drift in ("kl", "k3")

    def surrogate(self, batch: Batch) -> Surrogate:
        mu = drift_of(batch, self.drift)
        # sum (l - mu)^2 from the sums, so that no second (B, T) tensor is built.
        l, S, L = batch.token_log_ratio.detach(), batch.log_ratio.detach(), batch.lengths
        square = torch.linalg.vector_norm(l, dim=-1).square() - 2 * mu * S + mu * mu * L
        scale = square.clamp(min=0).sqrt()
        bands = (self.c_low * scale, self.c_high * scale)
        return band_surrogate(batch, mu, bands, self.exponent_cap, reference_length=self.reference_length)
