"""Does clipping remove answers of every length at the same rate, and how far does it turn the update?

Clip rates by length over the last steps and through training, beside those of other ranges on the same answers; the
LRE, and the measured cosine of the clipped update; the log-ratio S against the length, with the run's own band and
other methods' bands at the same clip rate. Bands come from the objectives: an objective that another package registers
is drawn like the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

from fspo import objectives, ratios
from fspo.fairness import FairnessReport, measure, scaling_law, wilson
from fspo.fairness.bins import cut
from fspo.objectives import Objective, Totals
from fspo.pages import charts
from fspo.pages.charts import Bars, Series
from fspo.pages.document import Missing, Panel, Plot, colour_of
from fspo.ratios import Floats
from fspo.report.explore import length_band
from fspo.report.report_run import LENGTH_BINS, LOWEST_RATE, ReportRun, RowSummary
from fspo.report.series import (
    TOKENS,
    MetricPanel,
    between,
    ends_of,
    line_plot,
    of_run,
    overlay,
    range_name,
    values_of,
    why_no_clipping,
)
from fspo.runs.rows import HAS_GRADIENT
from fspo.text import percent, short

SAME_ANSWERS_BINS = 6  # as many as have space for their names
SCATTER_POINTS = 2000


def same_answers(runs: Sequence[ReportRun]) -> list[Panel]:
    """For the page of one run; several runs have their own clip rates side by side."""
    return [_beside_others(runs[0])] if len(runs) == 1 else []


def clip_rates(runs: Sequence[ReportRun]) -> list[Panel]:
    """Beside the overview's bars: over the steps, and for several runs the bars of all of them."""
    bars = [_last_steps(runs)] if len(runs) > 1 else []
    return [*bars, CLIP_RATE.panel(runs), *(_through_training(run, runs) for run in runs)]


def direction(runs: Sequence[ReportRun]) -> list[Panel]:
    return [LRE.panel(runs), _measured_cosine(runs)]


CLIP_RATE = MetricPanel(
    "Clip rate", "clip rate", lambda m: m.clip_rate, share=True, label="clip rate",
    note="Share of each step's gradients that clipping removed.",
    missing="No step has a clip rate.",
)  # fmt: skip

LRE = MetricPanel(
    "Length Reweighting Error", "LRE (worst bin)", lambda m: m.lre, label="LRE", interval=lambda m: m.lre_interval,
    note="Each step alone: a step has few answers per bin, and their noise raises the LRE above 0.",
    missing="No step has an LRE: it needs updates in which something was clipped.",
)  # fmt: skip


# --- Clip rates on the same answers ---


def _beside_others(run: ReportRun) -> Panel:
    """What this run clipped by length, and what other ranges of the same overall rate would have clipped."""
    title = "Clip rate by length, and other ranges on the same answers"
    own = run.fairness(SAME_ANSWERS_BINS)
    if own is None or run.rows is None:
        return Missing(title, why_no_clipping(run))
    rate = run.rows.comparison_rate
    clips = own.clip_rate >= LOWEST_RATE
    reports = [("this run", 1, own)] if clips else []
    rules, notes = rules_at(run.rows, rate)
    for rule in rules:
        if not (clips and rule.name == run.objective.get("name")):  # not the run itself
            reports.append((rule.objective.label, rule.objective.color, rule.report(run.rows)))
    groups = [charts.rate_bars(label, report.bins, colour) for label, colour, report in reports]
    flat = ", ".join(f"{label} {100 * report.flatness:.1f}" for label, _, report in reports)
    svg = charts.bars(
        title, f"Difference between the highest and the lowest clip rate, in points: {flat}.",
        [range_name(b.low, b.high) for b in own.bins], groups, TOKENS, "clip rate",
        reference=(f"overall, {percent(rate)}", rate),
    )  # fmt: skip
    return Plot(title, svg, " ".join([f"Highest minus lowest rate, in points: {flat}.", _which(run.rows), *notes]))


def _which(rows: RowSummary) -> str:
    updates = f"Off-policy updates of {between(rows.last_steps)}"
    own = rows.clip_rate
    if own is None or own < LOWEST_RATE:
        rate = percent(rows.comparison_rate)
        return f"{updates}. The run clipped only {percent(own)}, so every range is set to clip {rate}."
    return f"{updates}; the other ranges are set to clip the same share. Bars of equal height are fair to every length."


# --- Clip rates of the runs ---


def _last_steps(runs: Sequence[ReportRun]) -> Panel:
    """Clip rates by length, in the bins of all runs together, so that bars side by side are of the same lengths."""
    title = "Clip rate by length, last steps"
    tables = [(k, run.rows.last_with_gradient) for k, run in enumerate(runs) if run.rows and run.rows.off_policy]
    tables = [(k, table) for k, table in tables if not table.is_empty()]
    if not tables:
        return Missing(title, why_no_clipping(runs[-1]))
    bins = cut(np.concatenate([table["length"].to_numpy() for _, table in tables]), LENGTH_BINS)
    names = [range_name(low, high) for low, high in bins.ranges]
    groups = []
    parts = np.split(bins.index, np.cumsum([len(table) for _, table in tables])[:-1])
    for (k, table), index in zip(tables, parts, strict=True):
        counts = np.bincount(index, minlength=len(bins)).tolist()
        clipped = np.bincount(index, 1 - table["accepted"].to_numpy(), len(bins)).tolist()
        rates = [lost / n if n else None for n, lost in zip(counts, clipped, strict=True)]
        intervals = [wilson(lost, n) if n else None for n, lost in zip(counts, clipped, strict=True)]
        groups.append(Bars(runs[k].name, rates, intervals, [f"{n:,} answers" for n in counts], colour_of(k)))
    said = "; ".join(
        f"{g.label}: " + ", ".join(f"{name} tokens {percent(v)}" for name, v in zip(names, g.values, strict=True))
        for g in groups
    )
    return Plot(
        title,
        charts.bars(title, said + ".", names, groups, TOKENS, "clip rate"),
        "Off-policy updates of each run's last steps, pooled, without answers whose advantage is 0; 95 % intervals "
        "(Wilson). Bars of equal height mean fair clipping.",
    )


def _through_training(run: ReportRun, runs: Sequence[ReportRun]) -> Panel:
    """One line per bin of length: fair clipping keeps them together."""
    title = of_run("Clip rate by length through training", run, runs)
    rows = run.rows
    if rows is None or not rows.off_policy or rows.clip.is_empty():
        return Missing(title, why_no_clipping(run))
    lines, said = [], []
    for k, part in enumerate(rows.clip.partition_by("bin", maintain_order=True)):
        name = f"{range_name(min(part['shortest']), max(part['longest']))} tokens"
        rates = part["clip_rate"].to_list()
        ends = ends_of([wilson(n * rate, n) for n, rate in zip(part["count"], rates, strict=True)])
        lines.append(Series(name, ((part["first"] + part["last"]) / 2).to_list(), rates, *ends, colour=colour_of(k)))
        said.append(f"{name}: {percent(rates[0])} to {percent(rates[-1])}")
    note = (
        "Equal shares of the answers in each bin; intervals are Wilson's at 95 %. Fair clipping keeps lines together."
    )
    return line_plot(title, lines, said, note, y_label="clip rate", top=1.0, percent_axis=True)


# --- The cosine of the update ---


def _measured_cosine(runs: Sequence[ReportRun]) -> Panel:
    title = "Measured cosine of the clipped and the true update"
    lines = overlay([(run.name, run.cosine) for run in runs], lambda c: c.measured, "measured", smooth=False)
    if not lines:
        return Missing(
            title,
            "Not recorded: it takes the gradients of every bin of length. `fspo train log.cosine=10` measures it every "
            "10 steps.",
        )
    values = values_of(lines)
    said = f"Between {short(min(values))} and {short(max(values))}"
    if len(runs) == 1:
        held = [None if c.bound <= -1 else c.bound for c in runs[0].cosine]
        said += f". The bound guaranteed nothing in {held.count(None)} of {len(held)} measurements"
        if any(v is not None for v in held):
            lines.append(Series("guaranteed", [c.step for c in runs[0].cosine], held, colour=4, dashed=True))
    note = (
        "Between the last update of a step and the unclipped update of whole answers: a method that weighs tokens or "
        "answers differently has another direction even where nothing is clipped."
    )
    return line_plot(title, lines, [said], note, y_label="cosine", top=1.0)


# --- Log-ratios against the length, with the bands of the run and of other methods ---


def log_ratios(runs: Sequence[ReportRun]) -> list[Panel]:
    return [_scatter(run, runs) for run in runs]


def _scatter(run: ReportRun, runs: Sequence[ReportRun]) -> Panel:
    title = of_run("Log-ratio S against length L", run, runs)
    rows = run.rows
    if rows is None or not rows.off_policy:
        return Missing(title, why_no_clipping(run))
    responses = rows.last_responses
    sigma = ratios.scale(responses.log_ratio, responses.lengths, responses.mu)
    some = rows.last.sample(SCATTER_POINTS, seed=0) if len(rows.last) > SCATTER_POINTS else rows.last
    groups = []
    for label, colour, chosen in (("kept", 1, pl.col("accepted") > 0.5), ("clipped", 2, pl.col("accepted") <= 0.5)):
        part = some.filter(chosen)
        groups.append(Series(label, part["length"].to_list(), part["log_ratio"].to_list(), colour=colour))
    longest = float(rows.last["length"].max())  # type: ignore[arg-type]
    L = np.linspace(0, charts.span([longest], True, whole=True)[1], 81)
    own = own_rule(run)
    rate = rows.comparison_rate
    rules, notes = rules_at(rows, rate)
    others = [rule for rule in rules if own is None or rule.objective.name != own.objective.name]
    svg = charts.scatter(
        title,
        f"{len(some):,} answers of {between(rows.last_steps)}; drift {short(responses.mu)} per token, scale "
        f"{short(sigma)}.",
        groups,
        _curves(own, L, f"{own.name}, the run's band", False) if own else [],
        [line for rule in others for line in _curves(rule, L, rule.name, True)],
        "answer length L (tokens)",
        "S = log π − log π_old",
    )
    said = f"Solid: the run's range, {own.text}." if own else _why_no_band(run)
    return Plot(title, svg, f"{said} {_caption(others, notes, rate, len(some), rows)}")


def _curves(rule: DrawnBand, L: Floats, label: str, dashed: bool) -> list[Series]:
    low, high = rule.bounds(L)
    return [
        Series(label, list(L), [float(v) for v in high], colour=rule.objective.color, dashed=dashed),
        Series("", list(L), [float(v) for v in low], colour=rule.objective.color, dashed=dashed),
    ]


def _why_no_band(run: ReportRun) -> str:
    if own_objective(run) is None:
        hint = ": --trust imports it" if ":" in str(run.objective.get("name")) else ""
        return f"The run's objective is not known here, so its range is not drawn{hint}."
    return f"{run.objective['name']} has no range of S that depends on the length alone."


def _caption(others: Sequence[DrawnBand], notes: Sequence[str], rate: float, drawn: int, rows: RowSummary) -> str:
    at = f"the run's clip rate, {percent(rate)}" if rate == rows.clip_rate else percent(rate)
    text = f"Dashed: other methods set to {at}, on these answers: {'; '.join(rule.text for rule in others)}. "
    text += "".join(f"{note} " for note in notes)
    text += "An answer outside is clipped only if its advantage would push it further out."
    text += f" {drawn:,} of {len(rows.last):,} answers drawn." if drawn < len(rows.last) else ""
    return text + _scaling(rows)


def _scaling(rows: RowSummary) -> str:
    """How the spread of S grows with the length; nothing where it cannot be estimated."""
    try:
        law = scaling_law(rows.last["log_ratio"].to_numpy(), rows.last["length"].to_numpy())
    except ValueError:  # too few answers, or one length only
        return ""
    return (
        f" The spread of S grows as L to the power {law.exponent:.2f} ({law.interval[0]:.2f} to "
        f"{law.interval[1]:.2f}); the √L band expects 0.5."
    )


@dataclass(frozen=True)
class DrawnBand:
    """An objective and the rows it is applied to: the bounds of S by length."""

    name: str
    objective: Objective
    totals: Totals
    accepted: Floats | None = None  # share of each of the last rows, where the range was set to a clip rate

    @property
    def text(self) -> str:
        """The name and the parameters of the range."""
        parameters = self.objective.clip_parameters.items()
        values = [f"{key} = {v:.3g}" if isinstance(v, float) else f"{key} = {v}" for key, v in parameters]
        return f"{self.name} ({', '.join(values)})" if values else self.name

    def bounds(self, L: Floats) -> tuple[Floats, Floats]:
        """The lower and the upper bound of S at each length."""
        band = length_band(self.objective, L, self.totals)
        assert band is not None
        centre, below, above = band
        return centre - below, centre + above

    def report(self, rows: RowSummary) -> FairnessReport:
        """The clip rates of the last rows by length."""
        assert self.accepted is not None
        has_gradient = rows.last.select(HAS_GRADIENT).to_series().to_numpy()
        lengths = rows.last["length"].to_numpy()
        return measure(lengths[has_gradient], self.accepted[has_gradient], SAME_ANSWERS_BINS)


def own_objective(run: ReportRun) -> Objective | None:
    """The run's objective with the band that its last steps recorded; None if it is not one of this installation.

    A folder that came from elsewhere may name `module:Class`, which is not imported.
    """
    name = run.objective.get("name")
    if not isinstance(name, str) or not objectives.known(name):
        return None
    try:
        objective = objectives.get(**run.objective)
    except (TypeError, ValueError):  # parameters of another version, or not parameters at all
        return None
    return objective if run.rows is None else objective.recorded(_last_means(run, run.rows))


def own_rule(run: ReportRun) -> DrawnBand | None:
    """The rule that the run clipped by, where it is a range of S that depends on the length alone."""
    objective = own_objective(run)
    if run.rows is None or objective is None:
        return None
    rule = DrawnBand(run.objective["name"], objective, run.rows.last_responses.totals)
    return None if length_band(objective, np.ones(1), rule.totals) is None else rule


def rules_at(rows: RowSummary, rate: float) -> tuple[list[DrawnBand], list[str]]:
    """The length laws with the ranges that clip this share of the last rows; and why one of them cannot."""
    rules, notes = [], []
    for name in objectives.LENGTH_LAWS:
        at_rate = rows.at_clip_rate(name, rate)
        if at_rate.objective is None:
            notes.append(f"{objectives.get_class(name).label} {at_rate.note}.")
        else:
            rules.append(DrawnBand(name, at_rate.objective, rows.last_responses.totals, at_rate.accepted))
    return rules, notes


def _last_means(run: ReportRun, rows: RowSummary) -> dict[str, float]:
    """Means of the metrics of the last steps, those of the objective included."""
    first, last = rows.last_steps
    values: dict[str, list[float | None]] = {}
    for line in run.metrics:
        if first <= line.step <= last:
            for key, value in line.model_dump().items():
                if isinstance(value, float):
                    values.setdefault(key, []).append(value)
    return {key: mean for key, column in values.items() if (mean := charts.mean(column)) is not None}
