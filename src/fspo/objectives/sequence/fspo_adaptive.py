"""Adaptive FSPO: the band is learnt from the data, without pilot runs to choose c. This project's extension.

    z = (S - mu L) / sqrt(L),     band  mu L - sigma u_low sqrt(L) .. mu L + sigma u_high sqrt(L)

Separately for every staleness (optimiser steps since the answers were sampled: z is 0 on the first and widens
with each) it tracks

    mu, sigma   moving averages of the drift per token and of the scale of z, from all responses
    u           the quantile that leaves clip_rate / 2 outside on its side, in units of sigma: it starts at the
                Gaussian one and takes a step up when too many fell outside, down when too few, so that the
                rate is met for any shape of z, without bias however small the batches

    log u  +=  step * (share outside on that side / (clip_rate / 2) - 1)

`c_max` is a hard bound, so that a wanted clip rate never means an unbounded move of the policy. The drift is followed
up to c^2 / 2 either way, the drift of Gaussian log-ratios of scale c: a band that followed training further would no
longer limit the update. `dual` bounds the weight of a response with A < 0. The band of an update is what was known
before it; `observe` is called once after it with the whole batch, so micro-batches and ranks all use the same band.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from statistics import NormalDist
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from pydantic import Field, PrivateAttr

from fspo.objectives.batch import Batch, Totals
from fspo.objectives.clipping import AtRate, Band, Responses, Weighting, at_threshold
from fspo.objectives.objective import Aggregation, Objective, Surrogate
from fspo.objectives.sequence.fspo import FSPO, ReferenceLength, band_surrogate, constant_gain
from fspo.tensors import torch

if TYPE_CHECKING:
    from torch import Tensor


@dataclass
class _Tracked:
    """What is known about z at one staleness."""

    updates: int
    mu: float
    sigma: float
    u_low: float
    u_high: float


class FSPOAdaptive(Objective):
    """FSPO with a band learnt online for a wanted clip rate."""

    name: ClassVar[str] = "fspo_adaptive"
    summary: ClassVar[str] = "FSPO whose band is learnt online for a wanted clip rate, per staleness, under a hard cap"
    aggregation: ClassVar[Aggregation] = "sequence_mean_of_sums"
    clip_fields: ClassVar[tuple[str, ...]] = ("clip_rate",)
    fixed: ClassVar[type[FSPO]] = FSPO  # the objective whose band this one learns

    clip_rate: float = Field(0.1, gt=0, lt=1, description="wanted share outside the band, both sides together")
    c_start: float = Field(0.03, gt=0, description="half-width until the first update has been seen")
    c_min: float = Field(1e-3, gt=0, description="the half-width is never less: nothing is clipped for rounding noise")
    c_max: float = Field(0.05, gt=0, description="the half-width is never more: a hard cap on the policy's move")
    dual: float | None = Field(2.0, gt=0, description="dual clip for A < 0, in half-widths above the drift")
    memory: int = Field(30, ge=1, description="updates that the moving averages remember")
    step: float = Field(0.01, gt=0, lt=1, description="step of log u for an update with nothing outside")
    reference_length: ReferenceLength = Field(1.0, description="length that the loss is divided by, or mean")

    _bands: dict[int, _Tracked] = PrivateAttr(default_factory=dict)

    def band(self, lengths: Any, totals: Totals, staleness: int = 0, *, token_squares: Any = None) -> Band:
        mu, c_low, c_high = self.tracked(staleness)
        root = lengths**0.5
        dual = math.inf if self.dual is None else self.dual * (c_high * root)
        return Band(mu * lengths, c_low * root, c_high * root, dual)

    def weighting(self, lengths: Any) -> Weighting:
        return Weighting(gain=constant_gain(self.reference_length))

    def recorded(self, metrics: Mapping[str, Any]) -> Objective:
        """`fixed` with the band of an update; where only the widths were recorded, with a bounded drift."""
        if metrics.get("c_low") is None:
            return self
        return self.fixed(drift="bounded", dual=self.dual, reference_length=self.reference_length).recorded(metrics)

    def at_clip_rate(self, rows: Responses, clip_rate: float) -> AtRate:
        """Its bounds are quantiles of z, so that what it clips is decided by rank: no range has to be found."""
        z = (rows.log_ratio - rows.mu * rows.lengths) / np.sqrt(rows.lengths)
        rank = np.empty(len(z))
        rank[np.argsort(z)] = np.arange(len(z))
        return at_threshold(
            lambda k: self.model_copy(update={"clip_rate": 1 - k}), 2 * (rank + 0.5) / len(z) - 1, Band(0.0, 1.0, 1.0),
            rows, clip_rate,
        )  # fmt: skip

    def tracked(self, staleness: int) -> tuple[float, float, float]:
        """mu, c_low and c_high that an update at this staleness will use."""
        known = self._bands.get(staleness)
        if known is None:
            return 0.0, self._held(self.c_start), self._held(self.c_start)
        c_low, c_high = self._held(known.sigma * known.u_low), self._held(known.sigma * known.u_high)
        furthest = c_low * c_low / 2
        return max(-furthest, min(furthest, known.mu)), c_low, c_high

    def surrogate(self, batch: Batch) -> Surrogate:
        mu, c_low, c_high = self.tracked(batch.staleness)
        band = self.band(batch.lengths, batch.totals, batch.staleness)
        result = self._clipped(batch, band)
        result.metrics.update(drift=mu, c_low=c_low, c_high=c_high)
        return result

    def _clipped(self, batch: Batch, band: Band) -> Surrogate:
        return band_surrogate(batch, band, self.exponent_cap, self.reference_length)

    def observe(self, log_ratio: Tensor, lengths: Tensor, staleness: int = 0) -> None:
        S, L = torch.stack([log_ratio, lengths.to(log_ratio.dtype)]).detach().cpu().double()
        if not (torch.isfinite(S).all() and (L > 0).all()):
            raise ValueError("observe needs finite log-ratios and positive lengths")
        mu, c_low, c_high = self.tracked(staleness)
        z = (S - mu * L) / L.sqrt()
        drift = float(S.sum() / L.sum())
        # From the mean size, not the mean square, of z: a few wild responses must not set the scale.
        sigma = math.sqrt(math.pi / 2) * float(((S - drift * L).abs() / L.sqrt()).mean())
        u = NormalDist().inv_cdf(1 - self.clip_rate / 2)
        known = self._bands.setdefault(staleness, _Tracked(0, 0.0, 0.0, u, u))
        if known.updates:  # the first band was a guess: what fell outside it says nothing about u
            known.u_low = self._stepped(known.u_low, known.sigma, float((z < -c_low).double().mean()))
            known.u_high = self._stepped(known.u_high, known.sigma, float((z > c_high).double().mean()))
        known.updates += 1
        weight = max(1 / self.memory, 1 / known.updates)
        known.mu += weight * (drift - known.mu)
        known.sigma += weight * (sigma - known.sigma)

    def _held(self, c: float) -> float:
        return max(self.c_min, min(self.c_max, c))

    def _stepped(self, u: float, sigma: float, outside: float) -> float:
        """One step of the quantile; none beyond c_min or c_max, where the clip rate no longer depends on it."""
        step = self.step * (outside / (self.clip_rate / 2) - 1)
        if (step > 0 and sigma * u >= self.c_max) or (step < 0 and sigma * u <= self.c_min):
            return u
        return u * math.exp(step)

    def state_dict(self) -> dict[str, Any]:
        return {str(staleness): asdict(band) for staleness, band in sorted(self._bands.items())}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        try:
            bands = {int(staleness): _Tracked(**band) for staleness, band in state.items()}
        except (TypeError, ValueError) as error:
            raise ValueError(f"not a state of {self.name}: {error}") from None
        self._bands.clear()
        self._bands.update(bands)
