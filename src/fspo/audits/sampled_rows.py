"""What the sampled off-policy rows tell: clipping by length or attribute, gradient shares, training, shape of S."""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import numpy as np
from scipy.special import ndtr

from fspo import ratios
from fspo.audits.findings import GaussianFit, Span
from fspo.audits.reading.column_roles import Roles
from fspo.audits.reading.sample import Array, Columns
from fspo.fairness import FEW, Bins, FairnessReport, ScalingLaw, measure, report_of_bins
from fspo.objectives import Responses
from fspo.text import percent

SPANS = 10
EXPONENT_CAP = 20.0  # as the objectives have it by default


@dataclass(frozen=True)
class SampledRows:
    """The sampled rows, and what the run's own rule accepted of them."""

    columns: Columns
    responses: Responses | None  # None where no row is off-policy
    accepted: Array | None  # None where it is not known
    has_gradient: Array
    bins: Bins  # of length, of the rows that have a gradient
    confidence: float

    def by_length(self, accepted: Array) -> FairnessReport:
        """The report of a rule that accepts these shares of the rows."""
        return report_of_bins(self.bins, 1 - accepted[self.has_gradient], confidence=self.confidence)

    def by_attribute(self, accepted: Array, attribute: str, bins: int) -> FairnessReport:
        """The same by the column that was asked for."""
        lengths, kept, values = (v[self.has_gradient] for v in (self.columns["length"], accepted, self.columns["by"]))
        return measure(
            lengths, np.clip(kept, 0, 1), bins, by=values, confidence=self.confidence, attribute=attribute
        )  # fmt: skip

    def parts(self, roles: Roles) -> tuple[str, Array] | None:
        """A column of categories that may explain differences, and its name: that of --by, or one known by its name."""
        for name, role in ((roles.by, "by"), (roles.columns.get("part"), "part")):
            if name is not None and role in self.columns:
                return name, self.columns[role]
        return None

    def notes(self, wild: Array) -> list[str]:
        """About wild rows, and advantages of one sign."""
        if self.responses is None:
            return []
        found, S = [], self.responses.log_ratio
        if wild.any():
            low, high, count = float(S[wild].min()), float(S[wild].max()), int(wild.sum())
            span = f"{low:.4g}" if count == 1 else f"{low:.4g} to {high:.4g}"
            heaviest = 1 / float(np.exp(S - S.max()).sum())
            found.append(
                f"{count:,} of {len(S):,} rows lie far outside of all others of like length (S = {span}): the band's "
                "centre and exponent, mu, sigma and H are without them; the intervals of mu, sigma and H reach to the "
                "values with them, and those of sigma and H to those of the middle half of the rows."
            )
            if heaviest > 0.5:
                found.append(
                    f"One row (S = {S.max():.4g}) has {percent(heaviest)} of all weights exp(S): the ESS and the "
                    f"gradient shares, in which S counts up to {EXPONENT_CAP:g}, are those of this row."
                )
        signs = np.unique(self.responses.sign[self.responses.has_gradient])
        if len(signs) == 1 and signs[0]:
            word, side, other = ("positive", "upper", "lower") if signs[0] > 0 else ("negative", "lower", "upper")
            found.append(
                f"All advantages are {word}: only the {side} side of a range can be judged, and the {other} side of "
                "the band has the same share of all rows outside."
            )
        return found

    def gradient_shares(self) -> dict[int, dict[str, Any]]:
        """By the number of a bin of length: its share in sum |w A| L, the size of all token gradients.

        `gradient` is the share before clipping, `kept` the share of what clipping leaves.
        """
        if self.responses is None or "advantage" not in self.columns or not self.has_gradient.any():
            return {}
        A = self.columns["advantage"][self.has_gradient]
        S, L = (v[self.has_gradient] for v in (self.responses.log_ratio, self.responses.lengths))
        size = np.exp(np.minimum(S, EXPONENT_CAP)) * np.abs(A) * L
        numbers, shares = self.bins.numbers, self.bins.sum(size) / size.sum()
        found: dict[int, dict[str, Any]] = {
            int(k): {"gradient": float(p)} for k, p in zip(numbers, shares, strict=True)
        }
        kept = None if self.accepted is None else size * self.accepted[self.has_gradient]
        if kept is None or not kept.any():
            return found
        total = float(kept.sum())
        # A share is a ratio of sums; its error is that of its influence, (1(in the bin) - share) kept / total.
        shares, squares = self.bins.sum(kept) / total, self.bins.sum(kept**2)
        errors = np.sqrt((1 - 2 * shares) * squares + shares**2 * squares.sum()) / total
        z = NormalDist().inv_cdf(0.5 + self.confidence / 2)
        for k, p, e in zip(numbers, shares, errors, strict=True):
            found[int(k)] |= {
                "kept": float(p),
                "kept_interval": (max(0.0, float(p - z * e)), min(1.0, float(p + z * e))),
            }
        return found

    def spans(self) -> list[Span]:
        """Stretches of training that hold about equal shares of the rows; none where there is only one step."""
        steps = self.columns.get("step")
        if steps is None or steps.min() == steps.max():
            return []
        ends = np.unique(np.quantile(steps, np.arange(1, SPANS) / SPANS, method="inverted_cdf"))
        index = np.unique(np.searchsorted(ends, steps, side="left"), return_inverse=True)[1]
        return [self._span(index == k, steps) for k in range(int(index.max()) + 1)]

    def _span(self, inside: Array, steps: Array) -> Span:
        n, L = int(inside.sum()), self.columns["length"][inside].astype(np.float64)
        found: dict[str, Any] = {}
        if self.responses is not None and n >= FEW:
            S = self.responses.log_ratio[inside]
            mu = ratios.drift(S, L)
            found = {"mu": mu, "sigma": ratios.scale(S, L, mu), "ess": ratios.effective_share(S)}
            clippable = inside & self.has_gradient
            if self.accepted is not None and int(clippable.sum()) >= FEW:
                bins = self.bins.select(inside[self.has_gradient])
                report = report_of_bins(bins, 1 - self.accepted[clippable], confidence=self.confidence)
                found |= {
                    "clip_rate": report.clip_rate, "interval": report.clip_interval,
                    "lre": report.lre, "lre_interval": report.lre_interval,
                }  # fmt: skip
        return Span(float(steps[inside].min()), float(steps[inside].max()), n, float(L.mean()), **found)


def shape(responses: Responses, law: ScalingLaw, confidence: float) -> GaussianFit:
    """How far the distribution of u = (S - mu L) / (sigma L^H) is from a standard Gaussian."""
    u = np.sort((responses.log_ratio - law.mu * responses.lengths) / (law.scale * responses.lengths**law.exponent))
    n = len(u)
    cumulative = ndtr(u)
    steps = np.arange(n + 1) / n
    distance = float(max((steps[1:] - cumulative).max(), (cumulative - steps[:-1]).max()))
    margin = math.sqrt(math.log(2 / (1 - confidence)) / (2 * n))  # Dvoretzky, Kiefer and Wolfowitz
    if distance - margin > 0.01:
        verdict = "not Gaussian: take c from quantiles, as the recommendation does"
    elif distance + margin < 0.03:
        verdict = "close to Gaussian: no rate is off by more than 3 points"
    else:
        verdict = "cannot tell from so few rows"
    centred = u - u.mean()
    centred = centred / np.abs(centred).max()  # powers of wild rows could overflow
    spread = float((centred**2).mean())
    skewness = float((centred**3).mean()) / spread**1.5
    return GaussianFit(skewness, float((centred**4).mean()) / spread**2 - 3, distance, margin, verdict)
