"""How unfair is a run's clipping? One pass over its rows, then all figures that follow from them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from fspo import fairness, objectives, ratios
from fspo.audits.columns import Array
from fspo.audits.gather import Pass
from fspo.audits.methods import compare, mismatch_rules, parse_rule
from fspo.audits.recommend import Advisor, Recommendation
from fspo.audits.result import Audit, LengthRow, verdict
from fspo.audits.sources import named, open_sources
from fspo.fairness import FairnessReport, ScalingLaw
from fspo.fairness.bins import cut, quantile_edges
from fspo.fairness.measure import FEW, report_of_bins
from fspo.fairness.robust_band import fresh_rate_interval, heavy_tails, outlier_rows, robust_law, rows_needed
from fspo.fairness.scaling import scaling_law_of_sums
from fspo.objectives import Objective, Responses
from fspo.text import percent

__all__ = ["Audit", "audit"]

DEFAULT_CLIP_RATE = 0.1  # where the run's own is not known, or too high to be kept
HIGH_CLIP_RATE = 0.2  # above it the rate itself is the finding, and no band is chosen to keep it
MOST_BINS = 1000
MOST_CATEGORIES = 100


def audit(
    data: Any,
    *,
    columns: dict[str, str] | None = None,
    by: str | None = None,
    rule: str | None = None,
    clip_rate: float | None = None,
    methods: str = "few",
    mismatch: bool = False,
    bins: int = 8,
) -> Audit:
    """Audit a path, several paths, a frame or a dictionary of columns.

    `columns` maps roles (length, log_ratio, logprobs, old_logprobs, sampler_logprobs, mask, accepted, clipped,
    advantage, reward, truncated, off_policy) to the names of columns; a role that is not given is recognised by
    common names. `by` asks for fairness over another column. `rule` is the run's own rule, such as
    `fspo:c_low=0.05,c_high=0.05` or `module:Class`, for data without a column of what was accepted. `clip_rate` is the
    rate at which methods are compared and the band is chosen; default: the run's own if it is at most 0.2, otherwise
    0.1. `methods` is `few` (a fixed range) or `all`. `mismatch` states that the log-ratios are of trainer and sampler,
    which is known without it where the names of the columns tell.

    >>> import numpy as np, fspo
    >>> random = np.random.default_rng(0)
    >>> length = random.integers(10, 2000, 4000)
    >>> log_ratio = 0.02 * np.sqrt(length) * random.normal(size=4000)
    >>> result = fspo.audit({"length": length, "log_ratio": log_ratio}, rule="rloo")
    >>> result.own.bins[0].clip_rate < result.own.bins[-1].clip_rate  # a fixed range clips long responses more
    True
    """
    if clip_rate is not None and not 0 < clip_rate < 1:
        raise ValueError(f"clip_rate = {clip_rate} must lie between 0 and 1")
    if not 1 <= bins <= MOST_BINS:
        raise ValueError(f"bins = {bins} must be at least 1 and at most {MOST_BINS}")
    if methods not in ("few", "all"):
        raise ValueError(f"methods = {methods!r} must be 'few' or 'all'")
    own_rule = None if rule is None else parse_rule(rule)
    sources = open_sources(data)
    gathered = Pass(sources, columns or {}, by, mismatch)
    if gathered.roles.mismatch and own_rule is not None:
        raise ValueError("--rule is a rule of clipping, and these are log-probs of sampler and trainer: leave it out")
    files = [name for source in sources for name in source.names]
    return Analysis(gathered, own_rule, bins).audit(named(data), files, clip_rate, methods)


class Analysis:
    """The parts of an audit, each computed from what the pass gathered."""

    def __init__(self, gathered: Pass, rule: Objective | None, bins: int) -> None:
        self.gathered, self.rule, self.bins = gathered, rule, bins
        self.own_rule = rule.name if rule is not None else "own rule"
        self.cells, self.all_cells = gathered.all.table(gathered.on_policy), gathered.all.table()
        self.notes: list[str] = list(gathered.notes)
        self.heavy = False  # whether the tails of S are heavy
        # How many rows are off-policy, and how many of these have a gradient: clipping can act on them.
        self.off_policy = int(self.cells["count"].sum()) if gathered.has("log_ratio") else 0
        self.clippable = int(self.cells["with_gradient"].sum()) if self.off_policy else 0
        self.edges = self._edges()
        # The sampled off-policy rows.
        self.columns, tokens = gathered.sample.result()
        lengths = self.columns.get("length", np.zeros(0))
        self.has_gradient = np.ones(len(lengths), bool)
        if "advantage" in self.columns:
            self.has_gradient = ratios.has_gradient(self.columns["advantage"])
        self.length_bins = cut(lengths[self.has_gradient], self.edges)
        self.outliers = np.zeros(0, bool)
        self.responses = self._responses(tokens) if self.off_policy else None
        self.accepted: Array | None = None
        if self.responses is not None:
            self.accepted = self.columns.get("accepted")
            if self.rule is not None:
                self.accepted = objectives.accepted(self.rule, self.responses)
        by = self.columns.get("by", np.zeros(0))
        if by.dtype == object and len(values := np.unique(by)) > MOST_CATEGORIES:
            raise ValueError(
                f"column {gathered.roles.by!r} has {len(values):,} different values: --by shows fairness over at most "
                f"{MOST_CATEGORIES} words, or over numbers"
            )

    def audit(self, name: str, files: list[str], clip_rate: float | None, methods: str) -> Audit:
        self.asked = clip_rate is not None  # for a band
        self.notes += self._missing()
        own, by = self._own(), self.gathered.roles.by
        attribute = None if own is None or by is None or self.accepted is None else self._by_attribute(self.accepted)
        report = self._by_length if by is None else self._by_attribute
        rate = clip_rate or DEFAULT_CLIP_RATE
        if clip_rate is None and own is not None and 0 < own.clip_rate <= HIGH_CLIP_RATE:
            rate = own.clip_rate
        enough = self.responses if int(self.has_gradient.sum()) >= FEW else None
        between_engines = None
        if self.gathered.roles.mismatch and enough is not None:
            between_engines, enough = mismatch_rules(enough, self.length_bins), None
            self.notes.append(between_engines.weight_note)
        return Audit(
            name=name,
            files=files,
            rows=self.gathered.rows,
            on_policy=self.gathered.on_policy.rows,
            sampled=len(self.columns.get("length", ())),
            unit="characters" if "text" in self.gathered.roles else "tokens",
            verdict=between_engines.sentence if between_engines else self._verdict(own, attribute),
            own_rule=self.own_rule,
            own=own,
            attribute=attribute,
            clip_rate=None if enough is None else rate,
            methods=[] if enough is None else compare(enough, rate, report, None if methods == "all" else ("rloo",)),
            law=self._law(),
            lengths=self._lengths(),
            recommendation=None if enough is None else self._recommendation(enough, rate, own),
            mismatch=between_engines,
            notes=self.notes,
        )

    # --- the rows ---------------------------------------------------------------------------------------------------

    def _edges(self) -> Array:
        """Of bins that hold equal shares of the rows that clipping can act on; of all rows, where there are none."""
        if self.clippable:
            return quantile_edges(self.cells["length"], self.bins, self.cells["with_gradient"])
        cells = self.cells if len(self.cells["length"]) else self.all_cells
        return quantile_edges(cells["length"], self.bins, cells["count"])

    def _responses(self, tokens: Array | None) -> Responses:
        """The sampled rows as the objectives read them; the drift is without outliers."""
        S, L = (np.asarray(self.columns[name], np.float64) for name in ("log_ratio", "length"))
        sign = np.sign(self.columns["advantage"]) if "advantage" in self.columns else np.zeros(len(S))
        self.outliers = outlier_rows(S, L)
        if self.outliers.any():
            mu = ratios.drift(S[~self.outliers], L[~self.outliers])
        else:
            mu = ratios.drift(self.cells["log_ratio"], self.cells["count"] * self.cells["length"])
        return Responses(S, L, sign, tokens, mu)

    def _by_length(self, accepted: Array) -> FairnessReport:
        """The report of a rule that accepts these shares of the sampled rows."""
        return report_of_bins(self.length_bins, 1 - accepted[self.has_gradient])

    def _by_attribute(self, accepted: Array) -> FairnessReport:
        """The same by the column that was asked for."""
        L, kept, values = (v[self.has_gradient] for v in (self.columns["length"], accepted, self.columns["by"]))
        name = self.gathered.roles.by
        return fairness.measure(L, np.clip(kept, 0, 1), self.bins, by=values, attribute=name)

    # --- fairness ---------------------------------------------------------------------------------------------------

    def _own(self) -> FairnessReport | None:
        """By length: from all rows if a column has what was accepted, else from the sample."""
        if self.accepted is None or not self.has_gradient.any():
            return None
        if self.rule is not None:
            return self._by_length(self.accepted)
        used = self.cells["with_gradient"] > 0
        lengths, clipped, count = (self.cells[name][used] for name in ("length", "clipped", "with_gradient"))
        return report_of_bins(cut(lengths, self.edges), clipped, count=count)

    def _verdict(self, own: FairnessReport | None, attribute: FairnessReport | None) -> str:
        if not self.gathered.has("log_ratio") and not self.gathered.roles.has_ratio:
            return (
                "no log-probs here, so clipping cannot be audited. Log these columns, one row per answer: length, "
                "log_ratio (the sum of log pi - log pi_old, or logprobs and old_logprobs), advantage, accepted"
            )
        report = own if attribute is None else attribute
        if report is not None and own is not None and self._inverted():
            name = self.gathered.roles.columns["accepted"]
            return (
                f"cannot tell: among answers of like length the rows that the column {name!r} calls accepted lie "
                f"farther out than the others, so it seems to hold what was clipped: give --clipped {name}"
            )
        if own is not None and own.clip_rate > HIGH_CLIP_RATE:
            return (
                f"too much is clipped: {percent(own.clip_rate)} of the gradients are lost, and a rate above "
                f"{percent(HIGH_CLIP_RATE, 0)} is itself the finding: use fewer or smaller steps per rollout, or a "
                f"wider range. By {'length' if report is None else report.attribute}: {verdict(report)}"
            )
        return verdict(report)

    def _inverted(self) -> bool:
        """Whether, within bins of length, rows called accepted lie farther out than those called clipped.

        Out is where clipping acts: above for A > 0, below for A < 0, either side where advantages are not known.
        """
        r = self.responses
        if self.rule is not None or r is None or self.accepted is None or "accepted" not in self.gathered.roles:
            return False
        off = (r.log_ratio - r.mu * r.lengths) / np.sqrt(r.lengths)
        out = (r.sign * off if r.sign.any() else np.abs(off))[self.has_gradient]
        kept, bins = self.accepted[self.has_gradient].astype(np.float64), self.length_bins
        out = out - (bins.sum(out) / bins.sum())[bins.index]
        kept = kept - (bins.sum(kept) / bins.sum())[bins.index]
        scale = np.sqrt((out**2).sum() * (kept**2).sum() / len(out))
        return bool(scale > 0 and (out * kept).sum() / scale > 5)  # standard errors of no correlation

    # --- the model of S, and the band -------------------------------------------------------------------------------

    def _law(self) -> ScalingLaw | None:
        if self.responses is None:
            return None
        if self.off_policy < FEW:
            self.notes.append(f"mu, sigma and H: cannot tell from {self.off_policy} rows; at least {FEW} are needed.")
            return None
        S, L, c = self.responses.log_ratio, self.responses.lengths, self.cells
        try:
            law = scaling_law_of_sums(c["length"], c["count"], c["log_ratio"], c["square"], sample=(S, L))
            self.heavy = bool(self.outliers.any()) or heavy_tails(S, L, law)
            if self.heavy and not self.outliers.any():
                self.notes.append(
                    "S has heavy tails: the intervals reach to the values of the middle half of the rows."
                )
            return robust_law(law, S, L, self.outliers)
        except ValueError as error:
            self.notes.append(f"mu, sigma and H: cannot tell, {error}.")
            return None

    def _recommendation(self, responses: Responses, rate: float, own: FairnessReport | None) -> Recommendation | None:
        """The band for a clip rate, if the rows can support it and it is clearly fairer than the run's own rule."""
        band, problem = None, ""
        count, needed = int(responses.has_gradient.sum()), rows_needed(rate)
        if "text" in self.gathered.roles:
            problem = "lengths are characters of the text, and trainers count tokens. Give --length"
        elif count < needed:
            high = fresh_rate_interval(rate, count)[1]
            problem = (
                f"{count} rows are too few for a clip rate of {percent(rate)}, since a band from them could clip up to "
                f"{percent(high)} of fresh rows; at least {needed} are needed"
            )
        elif own is not None and self._inverted():
            problem = "it is not clear what the run accepted"
        elif own is not None and not own.clip_rate and not self.asked:
            problem = "the run's own rule clipped nothing. To choose one anyway, give --clip-rate"
        else:
            advisor = Advisor(responses, self.outliers, self._by_length, self._parts(), self.heavy)
            band = advisor.recommend(rate)
            if band is None:
                problem = f"none clips {percent(rate)} with half on each side; ask for less with --clip-rate"
            elif own is not None and own.clip_rate and band.report.lre_interval[1] > own.lre:
                low, high = band.report.lre_interval
                problem = (
                    f"that for a clip rate of {percent(rate)} has an LRE of {band.report.lre:.3f} ({low:.3f} to "
                    f"{high:.3f}), which is not clearly below the {own.lre:.3f} of the run's own rule"
                )
        if problem:
            self.notes.append(f"No band is recommended: {problem}.")
            return None
        return band

    def _parts(self) -> tuple[str, Array] | None:
        """A column of categories that may explain differences, and its name: that of --by, or one known by its name."""
        roles = self.gathered.roles
        for name, role in ((roles.by, "by"), (roles.columns.get("part"), "part")):
            if name is not None and role in self.columns:
                return name, self.columns[role]
        return None

    # --- lengths ----------------------------------------------------------------------------------------------------

    def _lengths(self) -> list[LengthRow]:
        bins = cut(self.all_cells["length"], self.edges)
        names = ("count", "truncated", "scored", "reward")
        count, truncated, scored, reward = (bins.sum(self.all_cells[name]) for name in names)
        rows = []
        for k, label in enumerate(bins.labels):
            cut_off = float(truncated[k] / count[k]) if self.gathered.has("truncated") else None
            rows.append(LengthRow(label, int(count[k]), cut_off, float(reward[k] / scored[k]) if scored[k] else None))
        return rows

    # --- notes ------------------------------------------------------------------------------------------------------

    def _missing(self) -> Iterator[str]:
        """What the audit cannot tell or has left out, in sentences."""
        gathered = self.gathered
        if gathered.empty:
            yield f"{gathered.empty:,} empty answers were left out."
        if gathered.rewards and "reward" not in gathered.roles:
            yield f"No column is known as the reward: give --reward with one of {', '.join(gathered.rewards)}."
        if not gathered.has("log_ratio"):
            if gathered.roles.has_ratio:
                yield (
                    "The column of log-ratios is empty, so clipping cannot be audited. A run of fspo leaves it empty "
                    "where the advantage is 0: rewards that differ within groups of answers give advantages, and "
                    "update.all_rows=true computes the others too."
                )
            return
        if not self.off_policy:
            yield (
                "Every log-ratio is 0: all updates are on-policy, so clipping cannot act. Clipping needs more than one "
                f"optimiser step per rollout{'' if self.all_cells['with_gradient'].any() else ', and advantages'}."
            )
            return
        if gathered.on_policy.rows:
            yield f"{gathered.on_policy.rows:,} on-policy rows (log-ratio 0) are left out: they cannot clip."
        if not self.clippable:
            yield "Every advantage is exactly 0: no answer has a gradient that clipping could remove."
            return
        if without := self.off_policy - self.clippable:
            yield f"{without:,} rows have advantage 0 and no gradient to clip: they are left out of clip rates."
        if self.accepted is None and not gathered.roles.mismatch:
            yield (
                "No column says what was accepted: name it with --accepted or --clipped, or the run's rule with "
                "--rule, to see the run's own clip rate."
            )
        elif self.rule is None and "clipped" in gathered.roles and self.accepted is not None:
            yield f"The column {gathered.roles.columns['clipped']!r} is read as what was clipped."
        if not gathered.has("advantage") and not gathered.roles.mismatch:
            yield "There are no advantages: a method counts as clipping on either side of its range."
        if self.outliers.any():
            yield (
                f"{self.outliers.sum():,} of {len(self.outliers):,} rows lie far outside of all others of like length: "
                "the band, mu, sigma and H are without them, and the intervals reach to the values with them."
            )
        signs = np.unique(np.sign(self.columns.get("advantage", 0.0)))
        if signs.sum():  # not both, and not none
            side = "upper" if signs.sum() > 0 else "lower"
            yield f"All advantages have one sign: only the {side} side of a range can be judged."
        if gathered.sample.stride > 1:
            yield f"Methods and the band are from a random 1 in {gathered.sample.stride} rows."
