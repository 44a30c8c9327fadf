"""Sequence-level objectives by how length enters them: ratio, band and gain in one implementation. The family is ours.

    J = mean_i L^g min( exp(S / L^a) A , exp(clamp(S, b_lo, b_hi) / L^a) A ) / R^(1 + g - a)

    b_lo = mu L - c_low L^h,   b_hi = mu L + c_high L^h

S  sum of a response's token log-ratios        a  ratio exponent        c   half-widths of the band
L  trained tokens of the response              h  band exponent         mu  drift per token
A  advantage                                   g  gain exponent         R   reference length, a constant of the batch

S has a standard deviation near sigma sqrt(L). The gradient of a response is L^(g - a) times a sum over its tokens,
whose norm is near sqrt(L) as well. So

    the clip rate is the same at every length for                              h = 1/2
    the variance of the ratio is the same at every length for                  a = 1/2
    an on-policy response has its true share of the gradient for               g = a
    the norm of a gradient is the same at every length for                     g - a = -1/2

|                | a   | h   | g   |                                                                |
|----------------|-----|-----|-----|----------------------------------------------------------------|
| `rloo`         | 0   | 0   | 0   | a fixed range on exp(S)                                        |
| `gspo`         | 1   | 1   | 0   | a fixed range on exp(S / L)                                    |
| `luspo`        | 1   | 1   | 1   | GSPO with the share of the true gradient                       |
| `fspo`         | 0   | 1/2 | 0   | the paper's band; a weight exp(S) that spreads with length     |
| `fspo_root`    | 1/2 | 1/2 | 0   | FSPO's band; every response has a gradient of one size         |
| `fspo_gate`    | 1/2 | h   | 1/2 | FSPO's band and share of the gradient, with a bounded weight   |

R makes the gradient of a response of R tokens that of FSPO, so that learning rates carry over between members. It is
the mean length of the batch, or 1 for the published members.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

import numpy as np
from pydantic import Field, PrivateAttr, model_validator

from fspo.objectives.batch import Batch, Totals
from fspo.objectives.clipping import AtRate, Band, Responses, Weighting, at_threshold
from fspo.objectives.objective import Aggregation, Objective, Surrogate
from fspo.objectives.primitives import log_range, pessimistic, scaled_range
from fspo.objectives.sequence.adaptive_band import BandTracker, HalfWidths
from fspo.tensors import Tensor

Below = Annotated[float, Field(ge=0, description="half-width below the drift; with clip_rate the largest")]
Above = Annotated[float, Field(ge=0, description="half-width above the drift; with clip_rate the largest")]
Drift = Literal["zero", "kl", "bounded"] | float
ReferenceLength = Annotated[float, Field(gt=0)] | Literal["mean"]


class Exponents(NamedTuple):
    """How ratio, band and gain depend on length."""

    ratio: float  # a
    band: float  # h
    gain: float  # g


class SequenceClip(Objective):
    """The family's one loss; subclasses say where their half-widths come from."""

    aggregation: ClassVar[Aggregation] = "sequence_mean_of_sums"

    @property
    @abstractmethod
    def exponents(self) -> Exponents:
        """a, h and g."""

    @abstractmethod
    def half_widths(self, totals: Totals, staleness: int = 0) -> HalfWidths:
        """mu, c_low and c_high of an update."""

    @property
    def dual_width(self) -> float:
        """The dual clip for A < 0, in half-widths above the drift; infinite without one."""
        return math.inf

    def reference(self, totals: Totals | None) -> float:
        """Reference length R; 1 if R is the batch mean and there is no batch."""
        return 1.0

    def band(self, lengths: Any, totals: Totals) -> Band:
        return self._bounds(lengths, self.half_widths(totals), 0.0)

    def weighting(self, lengths: Any) -> Weighting:
        a, _, g = self.exponents
        return Weighting(lengths**-a, lengths**g / self.reference(None) ** (1 + g - a))

    def surrogate(self, batch: Batch) -> Surrogate:
        A, L, (a, _, g) = batch.row_advantages, batch.lengths, self.exponents
        # A mean over tokens is a division, as published; other powers are a product, which is as exact and faster.
        x = batch.log_ratio / L if a == 1 else batch.log_ratio * L**-a
        widths = self.half_widths(batch.totals, batch.staleness)
        band = self._bounds(L, widths, a)
        clip = pessimistic(x, A, *band.bounds, self.exponent_cap, band.centre + band.dual)
        value = clip.ratio * A * L**g / self.reference(batch.totals) ** (1 + g - a)
        return Surrogate(value, clip.accepted.to(A.dtype), clip.capped, metrics=self._recorded(widths))

    def _bounds(self, lengths: Any, widths: HalfWidths, a: float) -> Band:
        """The band on S / L^a at each of `lengths`."""
        width = widths.width(lengths, a)
        dual = self.dual_width * widths.high * width if math.isfinite(self.dual_width) else math.inf
        return Band(widths.mu * lengths ** (1 - a), widths.low * width, widths.high * width, dual)

    def _recorded(self, widths: HalfWidths) -> dict[str, float]:
        """What an update's metrics say about its band."""
        return {}


class RatioRange(SequenceClip):
    """The published parametrisation: the ratio is clipped to 1 - clip_low .. 1 + clip_high."""

    clip_fields: ClassVar[tuple[str, ...]] = ("clip_low", "clip_high")

    clip_low: float = Field(ge=0, lt=1, description="the ratio is clipped below 1 - clip_low")
    clip_high: float = Field(ge=0, description="the ratio is clipped above 1 + clip_high")

    def half_widths(self, totals: Totals, staleness: int = 0) -> HalfWidths:
        return HalfWidths(0.0, *log_range(self.clip_low, self.clip_high), self.exponents.band)

    def scaled(self, k: float) -> RatioRange:
        return self.model_copy(update=scaled_range(self.clip_low, self.clip_high, k))


class LogBand(SequenceClip):
    """FSPO's parametrisation: half-widths in log space around a drift, fixed or learnt for a wanted clip rate."""

    clip_fields: ClassVar[tuple[str, ...]] = ("c_low", "c_high", "drift")

    c_low: Below = 0.05
    c_high: Above = 0.05
    clip_rate: float | None = Field(
        None, gt=0, lt=0.5, description="wanted clip rate at every length, learnt online; null for a fixed band"
    )
    drift: Drift = Field(
        "zero",
        description="mu: zero; bounded (mean log-ratio, within c_low^2/2 of zero) for thousands of tokens; "
        "kl (mean log-ratio) near on-policy; or a number",
    )
    dual: float | None = Field(
        2.0, gt=0, description="dual clip for A < 0, in half-widths c_high above the drift; null for none"
    )
    reference_length: ReferenceLength = Field(
        "mean",
        description="length at which a gradient has the size of a mean over tokens: mean of the batch, or tokens",
    )

    _tracker: BandTracker = PrivateAttr()
    _law: tuple[float, float] | None = PrivateAttr(None)  # exponent and pivot of an update that learnt them

    def model_post_init(self, context: Any) -> None:
        self._tracker = BandTracker(self.exponents.band)

    @model_validator(mode="after")
    def _bounded_by_c(self) -> LogBand:
        if self.drift == "bounded" and self.exponents.band != 0.5:
            raise ValueError("drift = 'bounded' needs the band's exponent 0.5: its limit is c_low^2 / 2")
        return self

    @property
    def estimates(self) -> bool:
        return self.clip_rate is None and self.drift in ("kl", "bounded")

    @property
    def learns(self) -> bool:
        return self.clip_rate is not None

    @property
    def dual_width(self) -> float:
        return math.inf if self.dual is None else self.dual

    @property
    def clip_parameters(self) -> dict[str, Any]:
        learnt = {} if self._law is None else {"exponent": self._law[0], "pivot": self._law[1]}
        return super().clip_parameters | ({} if self.clip_rate is None else {"clip_rate": self.clip_rate}) | learnt

    def reference(self, totals: Totals | None) -> float:
        if self.reference_length != "mean":
            return self.reference_length
        return 1.0 if totals is None else totals.tokens / totals.sequences

    def half_widths(self, totals: Totals, staleness: int = 0) -> HalfWidths:
        """mu and the half-widths; mu is a constant in the gradient.

        `bounded` follows the mean log-ratio within c_low^2 / 2 of zero. An importance weight has mean 1, so that
        Gaussian log-ratios of scale sigma drift by -sigma^2 / 2, and sigma is below c for any clip rate below a third.
        A mean further out is an effect of training on these responses; a band centred on it would not limit the update.
        """
        if self.learns:
            widths = self._tracker.half_widths(staleness, (self.c_low, self.c_high))
        else:
            law = self._law or (self.exponents.band,)
            widths = HalfWidths(totals.drift if self.estimates else 0.0, self.c_low, self.c_high, *law)
        if self.drift == "bounded":
            furthest = widths.low * widths.low / 2
            return widths._replace(mu=max(-furthest, min(furthest, widths.mu)))
        if self.drift == "kl":
            return widths
        return widths._replace(mu=0.0 if self.drift == "zero" else self.drift)

    def observe(self, log_ratio: Tensor, lengths: Tensor, advantages: Tensor, staleness: int = 0) -> None:
        if self.clip_rate is not None:
            used, caps = self.half_widths(Totals(1, 1, 0.0), staleness), (self.c_low, self.c_high)
            self._tracker.observe(
                log_ratio, lengths, advantages, staleness, used=used, clip_rate=self.clip_rate, caps=caps
            )

    def state_dict(self) -> dict[str, Any]:
        return self._tracker.state_dict() if self.learns else {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if not self.learns:
            return super().load_state_dict(state)
        try:
            self._tracker.load_state_dict(state)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise ValueError(
                f"not a state of {self.name} as this version writes it ({type(error).__name__}: {error}): start anew"
            ) from None

    def scaled(self, k: float) -> LogBand:
        return self._fixed(c_low=k * self.c_low, c_high=k * self.c_high)

    def centred(self, mu: float) -> LogBand:
        return self.model_copy(update={"drift": mu})

    def recorded(self, metrics: Mapping[str, Any]) -> LogBand:
        known = {key: metrics[key] for key in ("c_low", "c_high", "drift") if metrics.get(key) is not None}
        if "c_low" not in known:
            return self.model_copy(update=known)
        fixed = self._fixed(**known)
        if metrics.get("pivot") is not None:
            fixed._law = metrics["exponent"], metrics["pivot"]
        return fixed

    def at_clip_rate(self, rows: Responses, clip_rate: float) -> AtRate:
        """A learnt band is a quantile of z for either sign of A, so the clip rate is set directly."""
        if not self.learns:
            return super().at_clip_rate(rows, clip_rate)
        sides = 1 if rows.sign.any() else 2  # an answer of unknown sign may be clipped on either
        if clip_rate / sides >= 0.5:
            return AtRate(note=f"cannot clip {clip_rate:.1%} with any range")
        z = (rows.log_ratio - rows.mu * rows.lengths) / rows.lengths**self.exponents.band
        rank = 2 * _ranks(z) - 1
        for sign in (1, -1):
            own = rows.sign == sign
            rank[own] = sign * _ranks(sign * z[own])

        def learning(k: float) -> LogBand:
            copy = self.model_copy(update={"clip_rate": (1 - k) / sides})
            copy._tracker = BandTracker(self.exponents.band)
            return copy

        return at_threshold(learning, rank, Band(0.0, 1.0, 1.0), rows, clip_rate)

    def _fixed(self, **parameters: Any) -> LogBand:
        """A copy with a fixed band of these parameters."""
        return self.model_copy(update={"clip_rate": None, **parameters})

    def _recorded(self, widths: HalfWidths) -> dict[str, float]:
        band = {"drift": widths.mu, "c_low": widths.low, "c_high": widths.high}
        return band | ({"exponent": widths.exponent, "pivot": widths.pivot} if self.learns else {})


def _ranks(values: Any) -> Any:
    """The share of the values below each, ties in their order."""
    rank = np.empty(len(values))
    rank[np.argsort(values)] = (np.arange(len(values)) + 0.5) / len(values)
    return rank


class LengthFamily(LogBand):
    """A ratio, a band and a gain that are powers of the length, to explore what lies between the named members."""

    name = "length_family"
    label = "length family"
    summary = "ratio exp(S / L^a), band c L^h on S, gain L^g: fspo, fspo_root, fspo_gate, gspo, rloo, luspo"
    clip_fields = ("c_low", "c_high", "drift", "band_exponent")

    ratio_exponent: float = Field(0.5, ge=0, le=1, description="a of the ratio exp(S / L^a)")
    band_exponent: float = Field(
        0.5, ge=0, le=1, description="h of the band's width c L^h on S; with clip_rate where it starts"
    )
    gain_exponent: float = Field(0.0, ge=-1, le=1, description="g of the factor L^g of a response's loss")

    @property
    def exponents(self) -> Exponents:
        return Exponents(self.ratio_exponent, self.band_exponent, self.gain_exponent)
