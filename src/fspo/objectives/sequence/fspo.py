"""FSPO: Fair Sequence Policy Optimization (arXiv 2509.09177).

    J = mean_i min( exp(S_i) A_i , exp(clamp(S_i, b_lo(L_i), b_hi(L_i))) A_i ),
    b_lo(L) = mu L - c_low L^H,   b_hi(L) = mu L + c_high L^H,   H = 1/2

S  sum of a response's token log-ratios        mu  drift per token, the mean of l under the behaviour policy
L  trained tokens of the response              c   half-width of the band; sigma Phi^-1(1 - clip_rate / 2) if
A  advantage                                       a wanted clip rate is given instead

S has mean mu L and a standard deviation near sigma sqrt(L), so this band clips every length at the same rate.
Differs from RLOO and GSPO in the band alone. The gradient of a response is w A times the sum over its tokens.
The dual clip bounds the weight where A < 0: the objective is never below exp(mu L + dual c_high L^H) A.

Which drift: `zero`, as in the paper's later versions, unless responses have thousands of tokens, where -sigma^2 L / 2
is no longer small beside c sqrt(L) and `bounded` follows it. `kl` and `k3`, as in the paper's first version, only near
on-policy: training lowers the probability of its own responses, and a band centred on the falling mean no longer
limits the update. The dual clip, the exponent H and the in-batch calibration are this project's; the band is the
paper's.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from statistics import NormalDist
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, model_validator

from fspo.objectives.batch import Batch, Totals
from fspo.objectives.clipping import Band, Weighting
from fspo.objectives.objective import Aggregation, Objective, Surrogate
from fspo.objectives.primitives import low_variance_kl, pessimistic

Drift = Literal["zero", "kl", "k3", "bounded"] | float

ReferenceLength = Annotated[float, Field(gt=0)] | Literal["mean"]
"""What the losses of all responses are divided by: a number, or the mean length of the batch."""


def drift_of(totals: Totals, drift: Drift, c_low: float = math.inf) -> float:
    """mu: 0, a given number, or estimated from the whole batch; never differentiated through.

    `bounded` follows the mean log-ratio down to -c_low^2 / 2 and no further. An importance weight has mean 1, so that
    Gaussian log-ratios of scale sigma drift by -sigma^2 / 2, and sigma is below c for any clip rate below a third. A
    lower mean comes from training that lowers the probability of its own responses, which the band must not follow.
    """
    if drift == "bounded":
        return max(totals.drift, -c_low * c_low / 2)
    if drift == "zero":
        return 0.0
    if drift == "kl":
        return totals.drift
    if drift == "k3":
        return totals.drift_low_variance
    return drift


def with_low_variance(batch: Batch, drift: Drift) -> Totals:
    """The totals of a batch, with the sum that a drift of `k3` needs where the batch is the whole."""
    totals = batch.totals
    if drift == "k3" and math.isnan(totals.low_variance_kl) and totals.sequences == len(batch.lengths):
        return totals.with_low_variance_kl(float(low_variance_kl(batch.token_log_ratio.detach()).sum()))
    return totals


def in_tokens(reference_length: ReferenceLength, totals: Totals) -> float:
    """The reference length as a number."""
    return totals.tokens / totals.sequences if reference_length == "mean" else reference_length


def constant_gain(reference_length: ReferenceLength) -> float:
    """The factor of the loss that is known without a batch."""
    return 1.0 if reference_length == "mean" else 1 / reference_length


def band_surrogate(batch: Batch, band: Band, cap: float, reference_length: ReferenceLength) -> Surrogate:
    """The pessimistic objective of a band on the sequence sum, divided by a length that all responses share."""
    A, (low, high) = batch.row_advantages, band.bounds
    clip = pessimistic(batch.log_ratio, A, low, high, cap, band.centre + band.dual)
    return Surrogate(clip.ratio * A / in_tokens(reference_length, batch.totals), clip.accepted.to(A.dtype), clip.capped)


def weighted_surrogate(batch: Batch, band: Band, weighting: Weighting, cap: float) -> Surrogate:
    """The pessimistic objective of a band on the sequence sum, with any scale of S in the ratio and any gain."""
    A, (low, high), scale = batch.row_advantages, band.bounds, weighting.scale
    clip = pessimistic(scale * batch.log_ratio, A, scale * low, scale * high, cap, scale * (band.centre + band.dual))
    return Surrogate(clip.ratio * A * weighting.gain, clip.accepted.to(A.dtype), clip.capped)


def recorded_band(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters of a band that an update recorded in its metrics."""
    return {key: metrics[key] for key in ("c_low", "c_high", "drift") if metrics.get(key) is not None}


class FSPO(Objective):
    """FSPO with a given or calibrated band."""

    name: ClassVar[str] = "fspo"
    summary: ClassVar[str] = "sequence sum, clipped in log space to mu L ± c sqrt(L): every length at the same rate"
    aggregation: ClassVar[Aggregation] = "sequence_mean_of_sums"
    clip_fields: ClassVar[tuple[str, ...]] = ("c_low", "c_high", "drift", "exponent")

    c_low: float = Field(0.05, ge=0, description="half-width below the drift")
    c_high: float = Field(0.05, ge=0, description="half-width above the drift")
    clip_rate: float | None = Field(
        None, gt=0, lt=1, description="wanted share outside the band; replaces c_low, c_high"
    )
    drift: Drift = Field(
        "zero",
        description="mu: zero; bounded (mean log-ratio, at least -c_low^2/2) for thousands of tokens; "
        "kl (mean log-ratio) or k3 (its low-variance form) near on-policy; or a number",
    )
    exponent: float = Field(0.5, ge=0, le=1, description="H of the band's width c L^H; 0 is a fixed range")
    dual: float | None = Field(
        2.0, gt=0, description="dual clip for A < 0, in half-widths c_high above the drift; null for none"
    )
    reference_length: ReferenceLength = Field(1.0, description="length that the loss is divided by, or mean")

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

    def band(self, lengths: Any, totals: Totals, staleness: int = 0, *, token_squares: Any = None) -> Band:
        mu, c_low, c_high = self._band_parameters(totals)
        width = lengths**self.exponent
        dual = math.inf if self.dual is None else self.dual * c_high * width
        return Band(mu * lengths, c_low * width, c_high * width, dual)

    def weighting(self, lengths: Any) -> Weighting:
        return Weighting(gain=constant_gain(self.reference_length))

    def scaled(self, k: float) -> FSPO:
        return self.model_copy(update={"c_low": k * self.c_low, "c_high": k * self.c_high, "clip_rate": None})

    def centred(self, mu: float) -> FSPO:
        return self.model_copy(update={"drift": mu})

    def recorded(self, metrics: Mapping[str, Any]) -> FSPO:
        known = recorded_band(metrics)
        return self.model_copy(update=known | ({"clip_rate": None} if "c_low" in known else {}))

    def surrogate(self, batch: Batch) -> Surrogate:
        totals = with_low_variance(batch, self.drift)
        mu, c_low, c_high = self._band_parameters(totals)
        result = self._clipped(batch, self.band(batch.lengths, totals))
        result.metrics.update(drift=mu, c_low=c_low, c_high=c_high)
        return result

    def _clipped(self, batch: Batch, band: Band) -> Surrogate:
        return band_surrogate(batch, band, self.exponent_cap, self.reference_length)

    def _band_parameters(self, totals: Totals) -> tuple[float, float, float]:
        """mu, c_low and c_high."""
        mu = drift_of(totals, self.drift, self.c_low)
        if self.clip_rate is None:
            return mu, self.c_low, self.c_high
        c = NormalDist().inv_cdf(1 - self.clip_rate / 2) * totals.scale(mu)
        return mu, c, c
