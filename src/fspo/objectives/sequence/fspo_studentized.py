"""Studentised FSPO: the band's scale comes from the response itself. This project's extension.

    |S - mu L| <= c sqrt( sum_t (l_t - mu)^2 )

l_t token log-ratio, S its sum over the L tokens of a response, mu the drift per token.

c counts standard deviations: 1.645 clips 10 % of independent Gaussian log-ratios at any length and any sigma, so
it needs no tuning. Differs from FSPO in that a response of few surprising tokens gets a wide band of its own:
heavy tails are clipped less, and a uniform shift of all tokens is clipped more.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from pydantic import Field

from fspo.objectives.batch import Batch, Totals
from fspo.objectives.clipping import Band
from fspo.objectives.objective import Aggregation, Objective, Surrogate
from fspo.objectives.sequence.fspo import ReferenceLength, band_surrogate, drift_of, with_low_variance
from fspo.tensors import torch


class FSPOStudentized(Objective):
    """FSPO whose band is scaled by each response's own token log-ratios."""

    name: ClassVar[str] = "fspo_studentized"
    summary: ClassVar[str] = "sequence sum, band scaled by the response's own token log-ratios: no sigma to tune"
    aggregation: ClassVar[Aggregation] = "sequence_mean_of_sums"
    clip_fields: ClassVar[tuple[str, ...]] = ("c_low", "c_high", "drift")
    needs_tokens: ClassVar[bool] = True

    c_low: float = Field(1.645, ge=0, description="half-width below the drift, in standard deviations")
    c_high: float = Field(1.645, ge=0, description="half-width above the drift, in standard deviations")
    drift: Literal["zero", "kl", "k3"] | float = Field(
        "zero",
        description="mu: zero; kl (mean log-ratio) or k3 (its low-variance form) near on-policy; or a number",
    )
    reference_length: ReferenceLength = Field(1.0, description="length that the loss is divided by, or mean")

    @property
    def estimates(self) -> bool:
        return self.drift in ("kl", "k3")

    def band(self, lengths: Any, totals: Totals, staleness: int = 0, *, token_squares: Any = None) -> Band:
        """`token_squares` is the sum of (l - mu)^2; where it is not known, sigma sqrt(L) stands for its root."""
        mu = drift_of(totals, self.drift)
        spread = totals.scale(mu) * lengths**0.5 if token_squares is None else token_squares**0.5
        return Band(mu * lengths, self.c_low * spread, self.c_high * spread)

    def scaled(self, k: float) -> FSPOStudentized:
        return self.model_copy(update={"c_low": k * self.c_low, "c_high": k * self.c_high})

    def centred(self, mu: float) -> FSPOStudentized:
        return self.model_copy(update={"drift": mu})

    def surrogate(self, batch: Batch) -> Surrogate:
        totals = with_low_variance(batch, self.drift)
        mu = drift_of(totals, self.drift)
        # sum (l - mu)^2 from the sums, so that no second (B, T) tensor is built.
        l, S, L = batch.token_log_ratio.detach(), batch.log_ratio.detach(), batch.lengths
        square = torch.linalg.vector_norm(l, dim=-1).square() - 2 * mu * S + mu * mu * L
        band = self.band(L, totals, token_squares=square.clamp(min=0))
        result = band_surrogate(batch, band, self.exponent_cap, self.reference_length)
        result.metrics.update(drift=mu)
        return result
