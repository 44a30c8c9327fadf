"""How unfair is a run's clipping? One pass over its rows, then all figures that follow from them."""

from __future__ import annotations

from typing import Any

import numpy as np

from fspo import objectives, ratios
from fspo.audits.findings import Audit, Comparison, LengthRow, verdict
from fspo.audits.gather import Pass, gathered_from
from fspo.audits.methods import compare, parse_rule
from fspo.audits.missing import missing
from fspo.audits.reading.sample import Array, Columns
from fspo.audits.reading.sources import named
from fspo.audits.recommend import Advisor, BandRates, Recommendation
from fspo.audits.sampled_rows import SampledRows, shape
from fspo.fairness import (
    FEW,
    FairnessReport,
    ScalingLaw,
    cut,
    fresh_rate_interval,
    heavy_tails,
    quantile_edges,
    report_of_bins,
    robust_law,
    rows_needed,
    scaling_law_of_sums,
    wild_rows,
    wilson,
)
from fspo.objectives import Objective, Responses
from fspo.text import percent

__all__ = ["Audit", "audit"]

DEFAULT_CLIP_RATE = 0.1  # where the run's own is not known
MOST_BINS = 1000
HEAVY_TAILS = "S has heavy tails: the intervals of sigma, H and the exponent hold those of the middle half of the rows"
MOST_CATEGORIES = 100


def audit(
    data: Any,
    *,
    columns: dict[str, str] | None = None,
    by: str | None = None,
    rule: str | None = None,
    clip_rate: float | None = None,
    bins: int = 8,
    confidence: float = 0.95,
) -> Audit:
    """Audit a path, several paths, a frame or a dictionary of columns.

    `columns` maps roles (length, log_ratio, logprobs, old_logprobs, mask, accepted, advantage, reward, truncated,
    step, off_policy) to the names of columns; a role that is not given is found by common names. `by` asks for
    fairness over another column. `rule` is the run's own rule, such as `fspo:c_low=0.05,c_high=0.05` or
    `module:Class`, for data without a column of what was accepted. `clip_rate` is the rate at which methods are
    compared and the band is chosen; default: the run's own, or 0.1.

    >>> import numpy as np, fspo
    >>> random = np.random.default_rng(0)
    >>> length = random.integers(10, 2000, 4000)
    >>> log_ratio = 0.02 * np.sqrt(length) * random.normal(size=4000)
    >>> found = fspo.audit({"length": length, "log_ratio": log_ratio}, rule="rloo")
    >>> found.own.bins[0].clip_rate < found.own.bins[-1].clip_rate  # a fixed range clips long responses more
    True
    """
    if clip_rate is not None and not 0 < clip_rate < 1:
        raise ValueError(f"clip_rate = {clip_rate} must lie between 0 and 1")
    if not 1 <= bins <= MOST_BINS:
        raise ValueError(f"bins = {bins} must be at least 1 and at most {MOST_BINS}")
    if not 0.5 <= confidence < 1:
        raise ValueError(f"confidence = {confidence} must be at least 0.5 and below 1")
    own_rule = None if rule is None else parse_rule(rule)
    gathered, files = gathered_from(data, columns or {}, by)
    return Analysis(gathered, own_rule, bins, confidence).audit(named(data), files, clip_rate)


class Analysis:
    """The parts of an audit, each computed from what the pass gathered."""

    def __init__(self, gathered: Pass, rule: Objective | None, bins: int, confidence: float) -> None:
        self.gathered, self.rule, self.bins, self.confidence = gathered, rule, bins, confidence
        self.cells, self.all_cells = gathered.off_policy.table(), gathered.all.table()
        self.notes: list[str] = list(gathered.notes)
        self.wild = np.zeros(0, bool)  # of the sampled rows
        self.heavy = False  # whether the tails of S are heavy
        # How many rows are off-policy, and how many of these have a gradient: clipping can act on them.
        self.off_policy = int(self.cells["count"].sum()) if gathered.has("log_ratio") else 0
        self.clippable = int(self.cells["with_gradient"].sum()) if self.off_policy else 0
        self.edges = self._edges()
        self.sampled = self._sampled()
        by = self.sampled.columns.get("by", np.zeros(0))
        if by.dtype == object and len(values := np.unique(by)) > MOST_CATEGORIES:
            raise ValueError(
                f"column {gathered.roles.by!r} has {len(values):,} different values: --by shows fairness over at most "
                f"{MOST_CATEGORIES} words, or over numbers"
            )

    def audit(self, name: str, files: list[str], clip_rate: float | None) -> Audit:
        self.notes += missing(self.gathered, self.sampled, self.off_policy, self.clippable, self.wild)
        own, attribute = self._own(), self._attribute()
        rate = clip_rate or (own.clip_rate if own is not None and own.clip_rate > 0 else DEFAULT_CLIP_RATE)
        law, responses = self._law(), self.sampled.responses
        enough = responses if int(self.sampled.has_gradient.sum()) >= FEW else None
        return Audit(
            name=name,
            files=files,
            rows=self.gathered.rows,
            on_policy=self.gathered.on_policy.rows,
            sampled=len(self.sampled.columns.get("length", ())),
            unit="characters" if "text" in self.gathered.roles else "tokens",
            confidence=self.confidence,
            verdict=verdict(own if attribute is None else attribute),
            own_rule=self._own_rule,
            own=own,
            attribute=attribute,
            clip_rate=None if enough is None else rate,
            methods=[] if enough is None else self._methods(enough, rate),
            law=law,
            shape=shape(responses, law, self.confidence) if responses and law else None,
            ess=ratios.effective_share(responses.log_ratio) if responses else None,
            lengths=self._lengths(),
            spans=self.sampled.spans(),
            recommendation=None if enough is None else self._recommendation(enough, rate, own),
            notes=self.notes,
        )

    @property
    def _own_rule(self) -> str:
        return self.rule.name if self.rule is not None else "the run's own rule"

    # --- the rows ---------------------------------------------------------------------------------------------------

    def _edges(self) -> Array:
        """Of bins that hold equal shares of the rows that clipping can act on; of all rows, where there are none."""
        if self.clippable:
            return quantile_edges(self.cells["length"], self.bins, self.cells["with_gradient"])
        cells = self.cells if len(self.cells["length"]) else self.all_cells
        return quantile_edges(cells["length"], self.bins, cells["count"])

    def _sampled(self) -> SampledRows:
        columns, tokens = self.gathered.sample.result()
        lengths = columns.get("length", np.zeros(0))
        has_gradient = np.ones(len(lengths), bool)
        if "advantage" in columns:
            has_gradient = ratios.has_gradient(columns["advantage"])
        responses = self._responses(columns, tokens) if self.off_policy else None
        accepted = None
        if responses is not None:
            accepted = objectives.accepted(self.rule, responses) if self.rule is not None else columns.get("accepted")
        bins = cut(lengths[has_gradient], self.edges)
        return SampledRows(columns, responses, accepted, has_gradient, bins, self.confidence)

    def _responses(self, columns: Columns, tokens: Array | None) -> Responses:
        """The sampled rows as the objectives read them; the drift is without wild rows."""
        S, L = (np.asarray(columns[name], np.float64) for name in ("log_ratio", "length"))
        sign = np.sign(columns["advantage"]) if "advantage" in columns else np.zeros(len(S))
        self.wild = wild_rows(S, L)
        if self.wild.any():
            mu = ratios.drift(S[~self.wild], L[~self.wild])
        else:
            mu = ratios.drift(self.cells["log_ratio"], self.cells["count"] * self.cells["length"])
        return Responses(S, L, sign, tokens, mu)

    # --- fairness ---------------------------------------------------------------------------------------------------

    def _own(self) -> FairnessReport | None:
        """By length: from all rows if a column has what was accepted, else from the sample."""
        if self.sampled.accepted is None or not self.sampled.has_gradient.any():
            return None
        if self.rule is not None:
            return self.sampled.by_length(self.sampled.accepted)
        used = self.cells["with_gradient"] > 0
        lengths, clipped, count = (self.cells[name][used] for name in ("length", "clipped", "with_gradient"))
        return report_of_bins(cut(lengths, self.edges), clipped, count=count, confidence=self.confidence)

    def _attribute(self) -> FairnessReport | None:
        name = self.gathered.roles.by
        if name is None or self.sampled.accepted is None or not self.sampled.has_gradient.any():
            return None
        return self.sampled.by_attribute(self.sampled.accepted, name, self.bins)

    def _methods(self, responses: Responses, rate: float) -> list[Comparison]:
        name = self.gathered.roles.by
        if name is None:
            return compare(responses, rate, self.sampled.by_length, self.rule)
        by = self.sampled.by_attribute
        return compare(responses, rate, lambda accepted: by(accepted, name, self.bins), self.rule)

    # --- the model of S, and the band -------------------------------------------------------------------------------

    def _law(self) -> ScalingLaw | None:
        responses, c = self.sampled.responses, self.cells
        if responses is None:
            return None
        if self.off_policy < FEW:
            self.notes.append(f"mu, sigma and H: cannot tell from {self.off_policy} rows; at least {FEW} are needed.")
            return None
        S, L = responses.log_ratio, responses.lengths
        try:
            law = scaling_law_of_sums(
                c["length"], c["count"], c["log_ratio"], c["square"], sample=(S, L), confidence=self.confidence
            )
            self.heavy = bool(self.wild.any()) or heavy_tails(S, L, law)
            if self.heavy and not self.wild.any():
                self.notes.append(f"{HEAVY_TAILS}.")
            return robust_law(law, S, L, self.wild, self.confidence)
        except ValueError as error:
            self.notes.append(f"mu, sigma and H: cannot tell, {error}.")
            return None

    def _recommendation(self, responses: Responses, rate: float, own: FairnessReport | None) -> Recommendation | None:
        if "text" in self.gathered.roles:
            self.notes.append(
                "No band is recommended: lengths are characters of the text, and trainers count tokens. Give --length."
            )
            return None
        count, needed = int(responses.has_gradient.sum()), rows_needed(rate, self.confidence)
        if count < needed:
            high = fresh_rate_interval(rate, count, self.confidence)[1]
            self.notes.append(
                f"No band is recommended: {count} rows are too few for a clip rate of {percent(rate)}, since a band "
                f"from them could clip up to {percent(high)} of fresh rows; at least {needed} are needed."
            )
            return None
        parts = self.sampled.parts(self.gathered.roles)
        advisor = Advisor(responses, self.wild, self.sampled.by_length, parts, self.confidence, self.heavy)
        rates = None if own is None else BandRates(self._own_rule, own)
        band = advisor.recommend(rate, rates)
        if band is None:
            self.notes.append(f"No band clips {percent(rate)} with half on each side: ask for less with --clip-rate.")
        return band

    # --- lengths ----------------------------------------------------------------------------------------------------

    def _lengths(self) -> list[LengthRow]:
        bins = cut(self.all_cells["length"], self.edges)
        sums = {name: bins.sum(self.all_cells[name]) for name in ("count", "truncated", "scored", "reward")}
        gradients = self.sampled.gradient_shares()
        rows = []
        for k, number in enumerate(bins.numbers):
            n = sums["count"][k]
            row = gradients.get(int(number), {})
            if self.gathered.has("truncated"):
                row["truncated"] = float(sums["truncated"][k] / n)
                row["truncated_interval"] = wilson(sums["truncated"][k], n, self.confidence)
            if sums["scored"][k]:
                row["reward"] = float(sums["reward"][k] / sums["scored"][k])
            rows.append(LengthRow(bins.labels[k], int(n), **row))
        return rows
