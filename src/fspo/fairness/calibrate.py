"""The band from data: drift, scale and half-widths for a wanted clip rate, pooled or per partition."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fspo import ratios
from fspo.fairness.bins import Column, column, log_ratio_and_length, require_rate


@dataclass(frozen=True)
class Calibration:
    """A band mu L - c_low sqrt(L) .. mu L + c_high sqrt(L), and the scale it comes from."""

    mu: float
    sigma: float
    c_low: float
    c_high: float
    clip_rate: float
    count: int


@dataclass(frozen=True)
class PartitionBands:
    """One band per partition, drawn towards the pooled one where the partition is small."""

    pooled: Calibration
    bands: dict[str, Calibration]
    shrinkage: dict[str, float]  # of the scale; 0: the partition's own data, 1: the pooled band

    def bounds(self, lengths: ArrayLike, partition: Any) -> tuple[Column, Column]:
        """The lower and upper bound of S for each response; an unknown partition gets the pooled band."""
        L = column(lengths, "lengths")
        chosen = [self.bands.get(_label(name), self.pooled) for name in np.asarray(partition)]
        mu, low, high = np.array([(b.mu, b.c_low, b.c_high) for b in chosen]).T
        return mu * L - low * np.sqrt(L), mu * L + high * np.sqrt(L)


def calibrate(
    log_ratio: ArrayLike, lengths: ArrayLike, clip_rate: float = 0.1, *, drift: Literal["kl", "zero"] | float = "kl"
) -> Calibration:
    """The band that leaves `clip_rate` of the responses outside, half of it on each side.

    mu and sigma are those of `fspo.ratios`, the half-widths quantiles of z = (S - mu L) / sqrt(L).
    """
    S, L = log_ratio_and_length(log_ratio, lengths)
    require_rate(clip_rate)
    if isinstance(drift, str) and drift not in ("kl", "zero"):
        raise ValueError(f"drift = {drift!r} must be 'kl', 'zero', or a number")
    mu = ratios.drift(S, L) if drift == "kl" else 0.0 if drift == "zero" else float(drift)
    low, high = np.quantile((S - mu * L) / np.sqrt(L), [clip_rate / 2, 1 - clip_rate / 2])
    if not ratios.off_policy(S, L):
        raise ValueError("log_ratio is 0 up to rounding: the policy has not moved, so there is no band to choose")
    return Calibration(mu, ratios.scale(S, L, mu), max(0.0, -float(low)), max(0.0, float(high)), clip_rate, len(S))


def partition_bands(log_ratio: ArrayLike, lengths: ArrayLike, partition: Any, clip_rate: float = 0.1) -> PartitionBands:
    """Empirical-Bayes bands: each partition's drift and scale, shrunk towards the pooled ones.

    A partition's drift has the variance sigma^2 / tokens and its log sigma^2 about 2 / count; the spread between
    partitions beyond that (DerSimonian and Laird's moment estimate) decides how much of its own data it keeps. The
    half-widths keep the pooled shape of z: c = sigma_k * (c_pooled / sigma_pooled).
    """
    S, L = log_ratio_and_length(log_ratio, lengths)
    labels = np.asarray(partition)
    if labels.shape != S.shape:
        raise ValueError(f"partition has the shape {labels.shape} where {S.shape} is needed")
    names, index = np.unique(labels, return_inverse=True)
    pooled = calibrate(S, L, clip_rate)
    count, tokens = np.bincount(index).astype(float), np.bincount(index, L)
    mu = np.bincount(index, S) / tokens
    square = np.bincount(index, (S - mu[index] * L) ** 2 / L) / np.maximum(count - 1, 1)
    usable = (count > 1) & (square > 0)
    if not usable.any():
        raise ValueError("no partition has two responses that differ: there is nothing to estimate a band from")
    base = float(np.average(square[usable], weights=count[usable]))
    mu, _ = _shrink(mu, base / tokens, np.ones(len(names), bool))
    log_square, keep = _shrink(np.log(np.where(usable, square, base)), 2 / np.maximum(count - 1, 1), usable)
    sigma = np.exp(log_square / 2)
    bands = {
        _label(name): Calibration(
            float(mu[k]),
            float(sigma[k]),
            float(sigma[k] / pooled.sigma * pooled.c_low),
            float(sigma[k] / pooled.sigma * pooled.c_high),
            clip_rate,
            int(count[k]),
        )
        for k, name in enumerate(names)
    }
    return PartitionBands(pooled, bands, {_label(n): float(1 - w) for n, w in zip(names, keep, strict=True)})


def _label(name: Any) -> str:
    """Of a partition: 1.0 and 1 are the same one."""
    return str(int(name)) if isinstance(name, float) and name.is_integer() else str(name)


def _shrink(values: Column, variances: Column, usable: NDArray[np.bool_]) -> tuple[Column, Column]:
    """Values drawn towards their weighted mean, and the weight each keeps of itself."""
    v, w = values[usable], 1 / variances[usable]
    mean = float(np.average(v, weights=w))
    spare = w.sum() - (w**2).sum() / w.sum()
    between = max(0.0, (float(w @ (v - mean) ** 2) - (len(v) - 1)) / spare) if len(v) > 1 else 0.0
    keep = np.where(usable, between / (between + variances), 0.0)
    if between:
        mean = float(np.average(v, weights=1 / (between + variances[usable])))
    return mean + keep * (values - mean), keep
