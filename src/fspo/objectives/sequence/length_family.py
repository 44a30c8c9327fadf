"""The family of sequence-level objectives that differ in how length enters them. This project's extension.

    J = mean_i gain min( exp(S / d) A , exp(clamp(S, b_lo, b_hi) / d) A )

    d     = (L / L0)^a                          the ratio is exp(S / d): a = 0 the importance ratio, a = 1 GSPO's
    b     = mu L ± c sqrt(L0) (L / L0)^h        the band on S: h = 0 a fixed range, 1/2 FSPO's, 1 GSPO's
    gain  = (L / L0)^g                          the share of a response in the loss: g = 0, or 1 as in LUSPO

S  sum of a response's token log-ratios        a  ratio_exponent       c   c_low, c_high
L  trained tokens of the response              h  band_exponent        mu  drift per token
A  advantage                                   g  gain_exponent        L0  unit_length, 1 by default

Length enters in three places, and each exponent sets one of them. S has a standard deviation near sigma sqrt(L), and
the gradient of a response is (L / L0)^(g - a) times a sum over its tokens, whose norm is near sqrt(L) as well. So

    the clip rate is the same at every length for                h = 1/2
    the variance of the ratio is the same at every length for    a = 1/2
    the norm of a gradient is the same at every length for       g - a = -1/2

and a = h = 1/2, g = 0 has all three: `fspo_root`. The other members with a name are FSPO (a = g = 0, h = 1/2), the
fixed range of RLOO (0, 0, 0), GSPO (a = h = 1, g = 0) and LUSPO (a = h = g = 1), with c the logarithm of their ranges.
The family is for comparing them and what lies between, as the suite `space` does.

All members are the same objective, FSPO's, for responses of L0 tokens, so that c, the size of a ratio and the size of a
gradient can be compared at that length. A constant factor of the loss changes nothing under an optimiser that divides
by the size of gradients; L0 changes more than such a factor: with a > 0 it sets how far ratios are from 1, and with
h != 1/2 the width. L0 = 1 is the definition of the published members.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar

from pydantic import Field, model_validator

from fspo.objectives.batch import Batch, Totals
from fspo.objectives.clipping import Band, Weighting
from fspo.objectives.objective import Aggregation, Objective, Surrogate
from fspo.objectives.sequence.fspo import Drift, drift_of, recorded_band, weighted_surrogate, with_low_variance


class LengthFamily(Objective):
    """A ratio, a band and a gain that are powers of the length."""

    name: ClassVar[str] = "length_family"
    summary: ClassVar[str] = "ratio exp(S / L^a), band c L^h on S, gain L^g: fspo, fspo_root, gspo, rloo, luspo in one"
    aggregation: ClassVar[Aggregation] = "sequence_mean_of_sums"
    clip_fields: ClassVar[tuple[str, ...]] = ("c_low", "c_high", "drift", "band_exponent")

    ratio_exponent: float = Field(0.5, ge=0, le=1, description="a of the ratio exp(S / L^a)")
    band_exponent: float = Field(0.5, ge=0, le=1, description="h of the band's width c L^h on S")
    gain_exponent: float = Field(0.0, ge=-1, le=1, description="g of the factor L^g of a response's loss")
    unit_length: float = Field(1.0, gt=0, description="tokens at which every member is FSPO with this c")
    c_low: float = Field(0.05, ge=0, description="half-width below the drift, in sqrt(L) at the unit length")
    c_high: float = Field(0.05, ge=0, description="half-width above the drift, in sqrt(L) at the unit length")
    drift: Drift = Field(
        "zero", description="mu: zero; bounded (mean log-ratio, at least -c_low^2/2); kl or k3; or a number, as in fspo"
    )
    dual: float | None = Field(
        2.0, gt=0, description="dual clip for A < 0, in half-widths c_high above the drift; null for none"
    )

    @model_validator(mode="after")
    def _bounded_by_c(self) -> LengthFamily:
        if self.drift == "bounded" and self.band_exponent != 0.5:
            raise ValueError("a bounded drift is bounded by the c of c sqrt(L): leave band_exponent at 0.5")
        return self

    @property
    def estimates(self) -> bool:
        return self.drift in ("kl", "k3", "bounded")

    def band(self, lengths: Any, totals: Totals, staleness: int = 0, *, token_squares: Any = None) -> Band:
        mu = drift_of(totals, self.drift, self.c_low)
        width = self.unit_length**0.5 * (lengths / self.unit_length) ** self.band_exponent
        dual = math.inf if self.dual is None else self.dual * self.c_high * width
        return Band(mu * lengths, self.c_low * width, self.c_high * width, dual)

    def weighting(self, lengths: Any) -> Weighting:
        units = lengths / self.unit_length
        return Weighting(units**-self.ratio_exponent, units**self.gain_exponent)

    def scaled(self, k: float) -> LengthFamily:
        return self.model_copy(update={"c_low": k * self.c_low, "c_high": k * self.c_high})

    def centred(self, mu: float) -> LengthFamily:
        return self.model_copy(update={"drift": mu})

    def recorded(self, metrics: Mapping[str, Any]) -> LengthFamily:
        return self.model_copy(update=recorded_band(metrics))

    def surrogate(self, batch: Batch) -> Surrogate:
        totals = with_low_variance(batch, self.drift)
        band = self.band(batch.lengths, totals)
        result = weighted_surrogate(batch, band, self.weighting(batch.lengths), self.exponent_cap)
        mu = drift_of(totals, self.drift, self.c_low)
        result.metrics.update(drift=mu, c_low=self.c_low, c_high=self.c_high)
        return result
