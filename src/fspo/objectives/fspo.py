"""FSPO: Fair Sequence Policy Optimization (arXiv 2509.09177).

    J = mean_i min( exp(S_i) A_i , exp(clamp(S_i, b_lo(L_i), b_hi(L_i))) A_i ),
    b_lo(L) = mu L - c_low L^H,   b_hi(L) = mu L + c_high L^H,   H = 1/2

S  sum of a response's token log-ratios        mu  drift a token, the mean of l under the behaviour policy
L  trained tokens of the response              c   half-width of the band; sigma Phi^-1(1 - clip_rate / 2) if
A  advantage                                       a wanted clip rate is given instead

S has mean mu L and a standard deviation near sigma sqrt(L), so this band clips every length at the same rate.
Differs from RLOO and GSPO in the band alone. The gradient of a response is w A times the sum over its tokens.

Which drift: `zero`, as in the paper's later versions, unless answers have thousands of tokens, where -sigma^2 L / 2 is
no longer small beside c sqrt(L) and `bounded` follows it. `kl` and `k3`, as in the paper's first version, only near
on-policy: training presses its own answers down, and a band that follows them down holds nothing.
The dual clip, the exponent H and the in-batch calibration are this project's; the band is the paper's.
"""

from __future__ import annotations

import math
from statistics import NormalDist
from typing import ClassVar, Literal

import torch
from pydantic import Field, model_validator
from torch import Tensor

from fspo.objectives.base import Aggregation, Objective, Surrogate
from fspo.objectives.batch import Batch
from fspo.objectives.primitives import low_variance_kl, pessimistic

Drift = Literal["zero", "kl", "k3", "bounded"] | float


def drift_of(batch: Batch, drift: Drift, c_low: float = math.inf) -> float:
    """mu: 0, a given number, or estimated from the whole batch; never differentiated through.

    `bounded` follows the mean log-ratio down to -c_low^2 / 2 and no further. An importance weight has mean 1, so that
    Gaussian log-ratios of scale sigma drift by -sigma^2 / 2, and sigma is below c for any clip rate below a third:
    what lies lower is training that presses its own answers down, and a band that followed it would hold nothing.
    """
    if drift == "bounded":
        return max(batch.totals.drift, -c_low * c_low / 2)
    if drift == "zero":
        return 0.0
    if drift == "kl":
        return batch.totals.drift
    if drift == "k3":
        if math.isnan(batch.totals.low_variance_kl) and batch.totals.sequences == len(batch.lengths):
            return -float(low_variance_kl(batch.token_log_ratio.detach()).sum()) / batch.totals.tokens
        return batch.totals.drift_low_variance
    return drift


def band_surrogate(
    batch: Batch,
    mu: float,
    widths: tuple[Tensor, Tensor],
    cap: float,
    dual: Tensor | None = None,
    reference_length: float = 1.0,
) -> Surrogate:
    """The pessimistic objective of a band mu L - widths[0] .. mu L + widths[1] on the sequence sum."""
    A, centre = batch.row_advantages, mu * batch.lengths
    upper = torch.inf if dual is None else centre + dual
    clip = pessimistic(batch.log_ratio, A, centre - widths[0], centre + widths[1], cap, upper)
    return Surrogate(clip.ratio * A / reference_length, clip.accepted.to(A.dtype), clip.capped, metrics={"drift": mu})


class FSPO(Objective):
    """FSPO with a given or calibrated band."""

    name: ClassVar[str] = "fspo"
    summary: ClassVar[str] = "sequence sum, clipped in log space to mu L ± c sqrt(L): every length at the same rate"
    aggregation: ClassVar[Aggregation] = "sequence_mean_of_sums"

    c_low: float = Field(0.03, ge=0, description="half-width below the drift")
    c_high: float = Field(0.03, ge=0, description="half-width above the drift")
    clip_rate: float | None = Field(
        None, gt=0, lt=1, description="wanted share outside the band; replaces c_low, c_high"
    )
    drift: Drift = Field(
        "zero",
        description="mu: zero; bounded (mean log-ratio, at least -c_low^2/2) for thousands of tokens; "
        "kl (mean log-ratio) or k3 (its low-variance form) near on-policy; or a number",
    )
    exponent: float = Field(0.5, ge=0, le=1, description="H of the band's width c L^H; 0 is a fixed range")
    c_dual: float | None = Field(None, gt=0, description="dual clip: for A < 0 never below exp(mu L + c_dual L^H) A")
    reference_length: float = Field(1.0, gt=0, description="constant that the loss is divided by")

    @model_validator(mode="after")
    def _one_band(self) -> FSPO:
        if self.clip_rate is not None and {"c_low", "c_high"} & self.model_fields_set:
            raise ValueError("give either clip_rate or c_low and c_high, not both")
        if self.clip_rate is not None and self.exponent != 0.5:
            raise ValueError("clip_rate calibrates a band of width sqrt(L): leave exponent at 0.5, or give c")
        if self.drift == "bounded" and (self.clip_rate is not None or self.exponent != 0.5):
            raise ValueError(
                "a bounded drift is bounded by the c of c sqrt(L): give c_low, and no clip_rate or exponent"
            )
        return self

    @property
    def estimates(self) -> bool:
        return self.clip_rate is not None or self.drift in ("kl", "k3", "bounded")

    def surrogate(self, batch: Batch) -> Surrogate:
        mu = drift_of(batch, self.drift, self.c_low)
        c_low, c_high = self.c_low, self.c_high
        if self.clip_rate is not None:
            c_low = c_high = NormalDist().inv_cdf(1 - self.clip_rate / 2) * batch.totals.scale(mu)
        width = batch.lengths**self.exponent
        dual = None if self.c_dual is None else self.c_dual * width
        bands = (c_low * width, c_high * width)
        result = band_surrogate(batch, mu, bands, self.exponent_cap, dual, self.reference_length)
        result.metrics.update(c_low=c_low, c_high=c_high)
        return result
