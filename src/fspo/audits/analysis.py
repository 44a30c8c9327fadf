"""How unfair is a run's clipping? All figures that follow from its rows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from fspo import fairness, ratios
from fspo.audits.columns import Array, Gathered, assigned, gather
from fspo.audits.result import Audit, LengthRow, verdict
from fspo.audits.rules import Advisor, Recommendation, fixed_range, mismatch_rules, parse_rule
from fspo.audits.sources import named, open_sources
from fspo.fairness import FairnessReport, ScalingLaw
from fspo.fairness.bins import Bins, cut, quantile_edges, require_rate
from fspo.fairness.measure import FEW, report_of_bins
from fspo.fairness.robust_band import fresh_rate_interval, heavy_tails, outlier_rows, robust_law, rows_needed
from fspo.objectives import Responses
from fspo.text import percent

__all__ = ["Audit", "audit"]

DEFAULT_CLIP_RATE = 0.1  # the wanted rate where the run's own is unknown or too high
HIGH_CLIP_RATE = 0.2  # a higher rate is itself the finding, and no band is chosen for it
MOST_CATEGORIES = 100


def audit(
    data: Any,
    *,
    columns: dict[str, str] | None = None,
    by: str | None = None,
    rule: str | None = None,
    clip_rate: float | None = None,
    mismatch: bool = False,
    bins: int = 8,
) -> Audit:
    """Audit a path, several paths, a frame or a dictionary of columns.

    `columns` maps roles (length, log_ratio, logprobs, old_logprobs, sampler_logprobs, mask, accepted, clipped,
    advantage, reward, truncated, off_policy) to the names of columns; a role that is not given is recognised by
    common names. `by` asks for fairness over another column. `rule` is the run's own rule, such as
    `fspo:c_low=0.05,c_high=0.05` or `module:Class`, for data without a column of what was accepted. `clip_rate` is the
    rate for which the band is chosen; default: the run's own if it is at most 0.2, otherwise 0.1.
    `mismatch=True`: the log-ratios compare trainer and sampler. Detected from column names where possible.

    >>> import numpy as np, fspo
    >>> random = np.random.default_rng(0)
    >>> length = random.integers(10, 2000, 4000)
    >>> log_ratio = 0.02 * np.sqrt(length) * random.normal(size=4000)
    >>> result = fspo.audit({"length": length, "log_ratio": log_ratio}, rule="rloo")
    >>> result.own.bins[0].clip_rate < result.own.bins[-1].clip_rate  # a fixed range clips long responses more
    True
    """
    if clip_rate is not None:
        require_rate(clip_rate)
    own_rule = None if rule is None else parse_rule(rule)
    sources = open_sources(data)
    by_source = assigned(sources, columns or {}, by, mismatch)
    if by_source[0].mismatch and own_rule is not None:
        raise ValueError("--rule applies to clipping, but this file compares sampler and trainer: remove --rule")
    analysis = Analysis(gather(sources, by_source, own_rule), None if own_rule is None else own_rule.name, bins)
    analysis.notes += [f"Read as a dump of {t}." for t in dict.fromkeys(s.trainer for s in sources) if t]
    rewards = [name for name in sources[0].schema if "reward" in name.lower()]
    if rewards and "reward" not in by_source[0]:
        analysis.notes.append(f"No column is known as the reward: give --reward with one of {', '.join(rewards)}.")
    return analysis.audit(named(data), [name for source in sources for name in source.names], clip_rate)


class Analysis:
    """The parts of an audit, each computed from the rows that were gathered."""

    def __init__(self, gathered: Gathered, rule: str | None, bins: int) -> None:
        self.gathered, self.roles, self.rule, self.bins = gathered, gathered.roles, rule, bins
        self.all, self.notes = gathered.columns, list[str]()
        self.heavy = False  # whether the tails of S are heavy
        # The off-policy rows, and which of them have a gradient: clipping can act on these.
        moved = self.all["moved"] if "log_ratio" in self.all else np.zeros(len(self.all["length"]), bool)
        self.columns = {name: values[moved] for name, values in self.all.items()}
        L = self.columns["length"]
        self.has_gradient = np.ones(len(L), bool)
        if "advantage" in self.columns:
            self.has_gradient = ratios.has_gradient(self.columns["advantage"])
        binned = next(v for v in (L[self.has_gradient], L, self.all["length"]) if len(v))
        self.edges = quantile_edges(binned, bins)
        self.length_bins = cut(L[self.has_gradient], self.edges)
        self.accepted: Array | None = self.columns.get("accepted")
        self.outliers = np.zeros(0, bool)
        self.responses = self._responses() if len(L) else None
        by = self.columns.get("by", np.zeros(0))
        if by.dtype == object and len(values := np.unique(by)) > MOST_CATEGORIES:
            raise ValueError(
                f"column {self.roles.by!r} has {len(values):,} different values: --by shows fairness over at most "
                f"{MOST_CATEGORIES} words, or over numbers"
            )

    def audit(self, name: str, files: list[str], clip_rate: float | None) -> Audit:
        self.asked = clip_rate is not None  # for a band
        self.notes += self._missing()
        own = attribute = None
        if self.accepted is not None and self.has_gradient.any():
            own = self._by_length(self.accepted)
            if self.roles.by is not None:
                L, kept, values = (self.columns[name][self.has_gradient] for name in ("length", "accepted", "by"))
                attribute = fairness.measure(L, np.clip(kept, 0, 1), self.bins, by=values, attribute=self.roles.by)
        rate = clip_rate or DEFAULT_CLIP_RATE
        if clip_rate is None and own is not None and 0 < own.clip_rate <= HIGH_CLIP_RATE:
            rate = own.clip_rate
        enough = self.responses if int(self.has_gradient.sum()) >= FEW else None
        between_engines = None
        if self.roles.mismatch and enough is not None:
            between_engines, enough = mismatch_rules(enough, self.length_bins), None
            self.notes.append(between_engines.weight_note)
        return Audit(
            name=name,
            files=files,
            rows=self.gathered.rows,
            on_policy=len(self.all["length"]) - len(self.columns["length"]) if "log_ratio" in self.all else 0,
            sampled=len(self.all["length"]),
            unit="characters" if "text" in self.roles else "tokens",
            verdict=between_engines.sentence if between_engines else self._verdict(own, attribute),
            own_rule=self.rule or "own rule",
            own=own,
            attribute=attribute,
            clip_rate=None if enough is None else rate,
            fixed=None if enough is None else fixed_range(enough, rate, self._by_length),
            law=self._law(),
            lengths=self._lengths(),
            recommendation=None if enough is None else self._recommendation(enough, rate, own),
            mismatch=between_engines,
            notes=self.notes,
        )

    # --- the rows ---------------------------------------------------------------------------------------------------

    def _responses(self) -> Responses:
        """The off-policy rows as the objectives read them; the drift is without outliers."""
        S, L = (np.asarray(self.columns[name], np.float64) for name in ("log_ratio", "length"))
        sign = np.sign(self.columns["advantage"]) if "advantage" in self.columns else np.zeros(len(S))
        self.outliers = outlier_rows(S, L)
        return Responses(S, L, sign, mu=ratios.drift(S[~self.outliers], L[~self.outliers]))

    def _by_length(self, accepted: Array) -> FairnessReport:
        """The report of a rule that accepts these shares of the off-policy rows."""
        return report_of_bins(self.length_bins, 1 - accepted[self.has_gradient])

    # --- fairness ---------------------------------------------------------------------------------------------------

    def _verdict(self, own: FairnessReport | None, attribute: FairnessReport | None) -> str:
        if not self.roles.has_ratio:
            return (
                "no log-probs here, so clipping cannot be audited. Log these columns, one row per answer: length, "
                "log_ratio (the sum of log pi - log pi_old, or logprobs and old_logprobs), advantage, accepted. "
                "A column of another name is given with --log-ratio"
            )
        if self.roles.mismatch:
            return f"log-probs of sampler and trainer: {self.has_gradient.sum()} rows are too few, {FEW} are needed"
        report = own if attribute is None else attribute
        if report is not None and own is not None and self._inverted():
            name = self.roles.columns["accepted"]
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
        """Whether, within bins of length, accepted rows lie farther outside the band than clipped ones."""
        r = self.responses
        if self.rule is not None or r is None or self.accepted is None or "accepted" not in self.roles:
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
        S, L = self.responses.log_ratio, self.responses.lengths
        if len(S) < FEW:
            self.notes.append(f"mu, sigma and H: cannot tell from {len(S)} rows; at least {FEW} are needed.")
            return None
        try:
            law = fairness.scaling_law(S, L)
            self.heavy = bool(self.outliers.any()) or heavy_tails(S, L, law)
            if self.heavy and not self.outliers.any():
                self.notes.append(
                    "S has heavy tails: the intervals also cover the estimates from the middle half of the rows."
                )
            return robust_law(law, S, L, self.outliers)
        except ValueError as error:
            self.notes.append(f"mu, sigma and H: cannot tell, {error}.")
            return None

    def _recommendation(self, responses: Responses, rate: float, own: FairnessReport | None) -> Recommendation | None:
        """The band for a clip rate, if the rows can support it and it is clearly fairer than the run's own rule."""
        band, problem = None, ""
        count, needed = int(responses.has_gradient.sum()), rows_needed(rate)
        if "text" in self.roles:
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
            advisor = Advisor(responses, self.outliers, self._by_length, self.heavy)
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

    # --- lengths ----------------------------------------------------------------------------------------------------

    def _lengths(self) -> list[LengthRow]:
        """Truncation and mean reward by length; an answer without a score has the reward NaN."""
        bins = cut(self.all["length"], self.edges)
        means = {name: _means(bins, self.all[name]) for name in ("truncated", "reward") if name in self.all}
        unknown = [None] * len(bins)
        table = zip(bins.labels, bins.sum(), means.get("truncated", unknown), means.get("reward", unknown), strict=True)
        return [LengthRow(label, int(count), truncated, reward) for label, count, truncated, reward in table]

    # --- notes ------------------------------------------------------------------------------------------------------

    def _missing(self) -> Iterator[str]:
        """What the audit cannot tell or has left out, in sentences."""
        gathered, still = self.gathered, len(self.all["length"]) - len(self.columns["length"])
        if gathered.stride > 1:
            yield f"All figures are from a random 1 in {gathered.stride} rows."
        if gathered.empty:
            empty = "answers without a trained token" if self.roles.tokens else "empty answers"
            yield f"{gathered.empty:,} {empty} were left out."
        if "log_ratio" not in self.all:
            if self.roles.has_ratio:
                yield (
                    "The column of log-ratios is empty, so clipping cannot be audited. A run of fspo leaves it empty "
                    "where the advantage is 0: rewards that differ within groups of answers give advantages, and "
                    "update.all_rows=true computes the others too."
                )
            return
        if self.responses is None:
            gradients = "advantage" not in self.all or ratios.has_gradient(self.all["advantage"]).any()
            yield (
                "Every log-ratio is 0: all updates are on-policy, so clipping cannot act. Clipping needs more than one "
                f"optimiser step per rollout{'' if gradients else ', and advantages'}."
            )
            return
        if still:
            yield f"{still:,} on-policy rows (log-ratio 0) are left out: they cannot clip."
        if not self.has_gradient.any():
            yield "Every advantage is exactly 0: no answer has a gradient that clipping could remove."
            return
        if not self.has_gradient.all():
            without = int((~self.has_gradient).sum())
            yield f"{without:,} rows have advantage 0 and no gradient to clip: they are left out of clip rates."
        if self.accepted is None and not self.roles.mismatch:
            yield (
                "No column says what was accepted: name it with --accepted or --clipped, or the run's rule with "
                "--rule, to see the run's own clip rate."
            )
        elif self.rule is None and "clipped" in self.roles and self.accepted is not None:
            yield f"The column {self.roles.columns['clipped']!r} is read as what was clipped."
        if "advantage" not in self.columns and not self.roles.mismatch:
            yield "Without advantages, an answer outside the range on either side counts as clipped."
        if self.outliers.any():
            yield (
                f"{self.outliers.sum():,} of {len(self.outliers):,} rows are outliers for their length: the band, "
                "mu, sigma and H leave them out; the intervals also cover the estimates with them."
            )


def _means(bins: Bins, values: Array) -> list[float | None]:
    """The mean of each bin without NaN; None where nothing is known."""
    known = ~np.isnan(values)
    sums, counts = bins.sum(np.where(known, values, 0.0)), bins.sum(known)
    return [float(total / count) if count else None for total, count in zip(sums, counts, strict=True)]
