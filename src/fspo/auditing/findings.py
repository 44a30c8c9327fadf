"""How unfair is a run's clipping? One pass over its rows, then everything that can be told from them."""

from __future__ import annotations

import math
from statistics import NormalDist
from typing import Any

import numpy as np
from scipy.special import ndtr

from fspo.auditing import rule as rules
from fspo.auditing.bins import Bins, quantile_edges
from fspo.auditing.gather import Pass
from fspo.auditing.methods import Answers, Comparison, compare
from fspo.auditing.recommend import Recommendation, recommend
from fspo.auditing.results import FEW, TOLERANCE, Audit, LengthRow, Shape, Span
from fspo.auditing.sample import Array
from fspo.auditing.sources import named, open_sources
from fspo.fairness.measure import FairnessReport, measure, wilson
from fspo.fairness.scaling import ScalingLaw, scaling_law_of_sums
from fspo.report.text import percent

SPANS = 10
CAP = 20.0  # of an exponent, as the objectives have it


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

    `columns` maps roles (length, log_ratio, logprobs, old_logprobs, accepted, advantage, reward, truncated, step) to
    the names of columns; what is not given is found by common names. `by` asks for fairness over another column.
    `rule` is the run's own rule, as `fspo:c_low=0.05,c_high=0.05`, where no column says what was accepted. `clip_rate`
    is the rate at which methods are compared and the band is chosen; by default the run's own, or 0.1.
    """
    if clip_rate is not None and not 0 < clip_rate < 1:
        raise ValueError(f"clip_rate = {clip_rate} must lie between 0 and 1")
    if bins < 1 or not 0 < confidence < 1:
        raise ValueError(f"bins = {bins} must be at least 1 and confidence = {confidence} between 0 and 1")
    own = None if rule is None else rules.parse(rule)
    sources = open_sources(data)
    found = Pass(sources, columns or {}, by)
    return Findings(found, own, clip_rate, bins, confidence).audit(named(data), [n for s in sources for n in s.names])


class Findings:
    """The parts of the audit, each from what the pass gathered."""

    def __init__(self, found: Pass, rule: Any, clip_rate: float | None, bins: int, confidence: float) -> None:
        self.found, self.rule, self.wanted, self.confidence = found, rule, clip_rate, confidence
        self.cells, self.all_cells = found.moved.table(), (found.moved + found.still).table()
        self.sample, self.tokens = found.sample.result()
        self.notes: list[str] = []
        self.moved = int(self.cells["count"].sum()) if found.has("log_ratio") else 0
        self.pulling = int(self.cells["pulls"].sum()) if self.moved else 0  # rows that clipping can act on
        self.edges = self._edges(bins)
        self.bins = bins
        lengths = self.sample.get("length", np.zeros(0))
        self.pulls = self.sample["advantage"] != 0 if "advantage" in self.sample else np.ones(len(lengths), bool)
        self.pulling_bins = Bins.cut(self.edges, lengths[self.pulls])  # of the sampled rows that have a gradient
        self.answers = self._answers() if self.moved else None
        self.accepted = self._accepted()

    def audit(self, name: str, files: list[str]) -> Audit:
        self._say_what_is_missing()
        own = self._own()
        attribute = self._by_attribute()
        rate = self.wanted or (own.clip_rate if own is not None and own.clip_rate > 0 else 0.1)
        law = self._law()
        enough = self.answers is not None and int(self.pulls.sum()) >= FEW
        methods = self._methods(rate) if enough else []
        return Audit(
            name=name,
            files=files,
            rows=self.found.rows,
            on_policy=self.found.on_policy,
            sampled=len(self.sample.get("length", ())),
            unit="characters" if "text" in self.found.roles else "tokens",
            confidence=self.confidence,
            verdict=_verdict(own if attribute is None else attribute),
            own_rule=self.rule.name if self.rule is not None else "the run's own rule",
            own=own,
            attribute=attribute,
            clip_rate=rate if enough else None,
            methods=methods,
            law=law,
            shape=_shape(self.answers, law, self.confidence) if self.answers and law else None,
            ess=_ess(self.answers.log_ratio) if self.answers else None,
            lengths=self._lengths(),
            spans=self._spans(),
            recommendation=self._recommendation(law, rate) if enough else None,
            notes=self.notes,
        )

    def _edges(self, bins: int) -> Array:
        """Of bins that hold equal shares of the rows that clipping can act on; of all rows, where it can on none."""
        if self.pulling:
            return quantile_edges({"length": self.cells["length"], "count": self.cells["pulls"]}, bins)
        return quantile_edges(self.cells if len(self.cells["length"]) else self.all_cells, bins)

    def _answers(self) -> Answers:
        S, L = self.sample["log_ratio"], self.sample["length"].astype(np.float64)
        mu = float(self.cells["log_ratio"].sum() / (self.cells["count"] @ self.cells["length"]))
        sign = np.sign(self.sample["advantage"]) if "advantage" in self.sample else np.zeros(len(S))
        return Answers(np.asarray(S, np.float64), L, sign, self.tokens, mu)

    def _accepted(self) -> Array | None:
        """What the run's own rule accepted of the sampled rows."""
        if self.answers is None:
            return None
        if self.rule is not None:
            return rules.accepted(self.rule, self.answers)
        return self.sample.get("accepted")

    def _say_what_is_missing(self) -> None:
        found = self.found
        if found.empty:
            self.notes.append(f"{found.empty:,} empty answers were left out.")
        if found.unscored:
            self.notes.append(f"{found.unscored:,} answers have no reward and count in no mean of it.")
        if not found.has("log_ratio"):
            self.notes.append(
                "There are no log-ratios, so clipping cannot be audited: log the sum of log pi - log pi_old of each "
                "answer (the TRL and verl adapters of fspo write it), or per-token logprobs and old_logprobs."
            )
            return
        if not self.moved:
            self.notes.append(
                "Every log-ratio is exactly 0: all updates are on-policy, so clipping cannot act. Take more than one "
                "optimiser step a rollout to have something to clip."
            )
            return
        if found.on_policy:
            self.notes.append(
                f"{found.on_policy:,} on-policy rows (log-ratio exactly 0) are left out: they cannot clip."
            )
        if not self.pulling:
            self.notes.append(
                "Every advantage is exactly 0: no answer has a gradient, so there is nothing for clipping to remove. "
                "Rewards that differ within groups of answers give advantages."
            )
            return
        if self.pulling < self.moved:
            self.notes.append(
                f"{self.moved - self.pulling:,} rows have advantage 0 and no gradient to clip: they are left out of "
                "clip rates."
            )
        if self.accepted is None:
            self.notes.append(
                "No column says what was accepted: name it with --accepted, or the run's rule with --rule, to see the "
                "run's own clip rate."
            )
        if not found.has("advantage"):
            self.notes.append(
                "There are no advantages: a method counts as clipping on either side of its range, and gradient shares "
                "are not known."
            )
        if found.sample.stride > 1:
            self.notes.append(
                f"Methods, shape, ESS, gradient shares and drift are from a random 1 in {found.sample.stride} rows."
            )

    # --- fairness ---------------------------------------------------------------------------------------------------

    def _own(self) -> FairnessReport | None:
        """By length: from all rows if a column says what was accepted, else from the sample."""
        if self.accepted is None or not self.pulls.any():
            return None
        if self.rule is not None:
            return self._by_length(self.accepted)
        used = self.cells["pulls"] > 0
        lengths, clipped, count = (self.cells[name][used] for name in ("length", "clipped", "pulls"))
        return Bins.cut(self.edges, lengths).report(clipped, self.confidence, count)

    def _by_length(self, accepted: Array) -> FairnessReport:
        return self.pulling_bins.report(1 - accepted[self.pulls], self.confidence)

    def _by_attribute(self) -> FairnessReport | None:
        if self.found.roles.by is None or self.accepted is None or not self.pulls.any():
            return None
        return self._over_by(self.accepted)

    def _over_by(self, accepted: Array) -> FairnessReport:
        lengths, kept, parts = (values[self.pulls] for values in (self.sample["length"], accepted, self.sample["by"]))
        return measure(
            lengths, np.clip(kept, 0, 1), self.bins, by=parts, confidence=self.confidence,
            attribute=self.found.roles.by,
        )  # fmt: skip

    def _methods(self, rate: float) -> list[Comparison]:
        assert self.answers is not None
        result = []
        for method in compare(self.answers, rate):
            report = None
            if method.accepted is not None:
                by_length = self.found.roles.by is None
                report = self._by_length(method.accepted) if by_length else self._over_by(method.accepted)
            result.append(Comparison(method.name, method.parameters, None, method.note, report))
        return result

    # --- the model of S ---------------------------------------------------------------------------------------------

    def _law(self) -> ScalingLaw | None:
        if self.answers is None:
            return None
        if self.moved < FEW:
            self.notes.append(f"mu, sigma and H: cannot tell from {self.moved} rows; at least {FEW} are needed.")
            return None
        c = self.cells
        sample = (self.answers.log_ratio, self.answers.lengths)
        try:
            return scaling_law_of_sums(
                c["length"], c["count"], c["log_ratio"], c["square"], sample=sample, confidence=self.confidence
            )
        except ValueError as error:
            self.notes.append(f"mu, sigma and H: cannot tell, {error}.")
            return None

    def _recommendation(self, law: ScalingLaw | None, rate: float) -> Recommendation | None:
        assert self.answers is not None
        band = recommend(self.answers, law, rate)
        if band is None:
            self.notes.append(f"No band clips {percent(rate)} with half on each side: ask for less with --clip-rate.")
        return band

    # --- lengths and training ---------------------------------------------------------------------------------------

    def _lengths(self) -> list[LengthRow]:
        c = self.all_cells
        bins = Bins.cut(self.edges, c["length"])
        sums = {name: bins.sum(c[name]) for name in ("count", "truncated", "scored", "reward")}
        gradients = self._gradients()
        rows = []
        for i, k in enumerate(bins.used):
            n = sums["count"][i]
            row = gradients.get(int(k), {})
            if self.found.has("truncated"):
                row["truncated"] = float(sums["truncated"][i] / n)
                row["truncated_interval"] = wilson(sums["truncated"][i], n, self.confidence)
            if sums["scored"][i]:
                row["reward"] = float(sums["reward"][i] / sums["scored"][i])
            rows.append(LengthRow(bins.labels[i], int(n), **row))
        return rows

    def _gradients(self) -> dict[int, dict[str, Any]]:
        """Share of each bin in sum |w A| L, the size of all token gradients, before and after clipping."""
        if self.answers is None or "advantage" not in self.sample or not self.pulls.any():
            return {}
        bins, A = self.pulling_bins, self.sample["advantage"][self.pulls]
        S, L = self.answers.log_ratio[self.pulls], self.answers.lengths[self.pulls]
        size = np.exp(np.minimum(S, CAP)) * np.abs(A) * L
        shares = bins.sum(size) / size.sum()
        rows: dict[int, dict[str, Any]] = {
            int(k): {"gradient": float(s)} for k, s in zip(bins.used, shares, strict=True)
        }
        kept = None if self.accepted is None else size * self.accepted[self.pulls]
        if kept is None or not kept.any():
            return rows
        total = float(kept.sum())
        # A share is a ratio of sums; its error is that of its influence, (1(in the bin) - share) kept / total.
        shares, squares = bins.sum(kept) / total, bins.sum(kept**2)
        errors = np.sqrt((1 - 2 * shares) * squares + shares**2 * squares.sum()) / total
        z = NormalDist().inv_cdf(0.5 + self.confidence / 2)
        for k, p, e in zip(bins.used, shares, errors, strict=True):
            rows[int(k)] |= {"kept": float(p), "kept_interval": (max(0.0, float(p - z * e)), float(p + z * e))}
        return rows

    def _spans(self) -> list[Span]:
        steps = self.sample.get("step")
        if steps is None or steps.min() == steps.max():
            return []
        order = np.unique(np.quantile(steps, np.arange(1, SPANS) / SPANS, method="inverted_cdf"))
        index = np.unique(np.searchsorted(order, steps, side="left"), return_inverse=True)[1]
        return [self._span(index == k, steps) for k in range(int(index.max()) + 1)]

    def _span(self, inside: Array, steps: Array) -> Span:
        n, L = int(inside.sum()), self.sample["length"][inside].astype(np.float64)
        row: dict[str, Any] = {}
        if self.answers is not None and n >= FEW:
            S = self.answers.log_ratio[inside]
            mu = float(S.sum() / L.sum())
            row = {"mu": mu, "sigma": math.sqrt(float(np.mean((S - mu * L) ** 2 / L))), "ess": _ess(S)}
            pulling = inside & self.pulls
            if self.accepted is not None and (count := int(pulling.sum())) >= FEW:
                report = self.pulling_bins.part(inside[self.pulls]).report(1 - self.accepted[pulling], self.confidence)
                low, high = wilson(float(self.accepted[pulling].sum()), count, self.confidence)
                row |= {"clip_rate": report.clip_rate, "interval": (1 - high, 1 - low), "lre": report.lre,
                        "lre_interval": report.lre_interval}  # fmt: skip
        return Span(float(steps[inside].min()), float(steps[inside].max()), n, float(L.mean()), **row)


def _ess(S: Array) -> float:
    """Effective share of the rows under the weights exp(S)."""
    w = np.exp(S - S.max())
    return float(w.sum() ** 2 / (w * w).sum() / len(w))


def _shape(answers: Answers, law: ScalingLaw, confidence: float) -> Shape:
    u = np.sort((answers.log_ratio - law.mu * answers.lengths) / (law.scale * answers.lengths**law.exponent))
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
    spread = float((centred**2).mean())
    skewness = float((centred**3).mean()) / spread**1.5
    return Shape(skewness, float((centred**4).mean()) / spread**2 - 3, distance, margin, verdict)


def _verdict(report: FairnessReport | None) -> str:
    if report is None:
        return "cannot tell how fair the run's own clipping is: see the notes"
    small = min(report.bins, key=lambda b: b.count)
    if small.count < FEW:
        return f"cannot tell: the bin {small.label} has {small.count} rows, and a rate needs {FEW}: use fewer bins"
    if len(report.bins) == 1:
        return f"cannot tell: all rows have the {report.attribute} {small.label}, so there is nothing to compare"
    (low, high), worst = report.lre_interval, max(report.bins, key=lambda b: abs(b.reweighting - 1))
    if low > TOLERANCE:
        return (
            f"unfair: {report.attribute} {worst.label} is clipped {percent(worst.clip_rate)} against "
            f"{percent(report.clip_rate)} overall, an LRE of {report.lre:.3f} ({low:.3f} to {high:.3f})"
        )
    if high <= TOLERANCE:
        return f"fair: every bin's acceptance is within {percent(high)} of the average"
    return f"cannot tell: the LRE is between {low:.3f} and {high:.3f}, and fair means at most {TOLERANCE:g}"
