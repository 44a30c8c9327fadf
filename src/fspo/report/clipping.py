"""Does clipping remove answers of every length at the same rate, and how far does it turn the update?

Clip rates by length over the last steps and through training, beside those of other ranges on the same answers; the
LRE and the measured cosine; S against the length, with the band of the run and those of other methods at its clip rate.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import polars as pl
from markupsafe import Markup

from fspo import objectives, ratios
from fspo.fairness import FairnessReport, measure, scaling_law, wilson
from fspo.objectives import AtRate, Objective, Totals
from fspo.pages import charts
from fspo.pages.charts import Series
from fspo.pages.document import Plot, colour_of
from fspo.ratios import Floats
from fspo.report.explore import length_band
from fspo.report.panels import TOKENS, MetricPanel, Panels, ends_of, line_plot, overlay, range_name
from fspo.report.report_run import LOWEST_RATE, ReportRun, RowSummary
from fspo.runs.rows import HAS_GRADIENT
from fspo.text import percent, short

SAME_ANSWERS_BINS = 6  # as many as have space for their names
SCATTER_POINTS = 2000
NO_BAND = (
    "The run's own range is not drawn: its objective has no band on S that depends on length alone, or is not "
    "installed here (--trust imports it)."
)

CLIP_RATE = MetricPanel(
    "Clip rate", "clip rate", lambda m: m.clip_rate, share=True,
    note="Share of each step's gradients that clipping removed.",
)  # fmt: skip

LRE = MetricPanel(
    "Length Reweighting Error", "LRE (worst bin)", lambda m: m.lre, interval=lambda m: m.lre_interval,
    note="Each step alone: a step has few answers per bin, and their noise raises the LRE above 0.",
)  # fmt: skip


def clip_rates(runs: Sequence[ReportRun]) -> Panels:
    return [CLIP_RATE.panel(runs), *(_through_training(run) for run in runs)]


def direction(runs: Sequence[ReportRun]) -> Panels:
    return [LRE.panel(runs), *(_measured_cosine(run) for run in runs)]


# --- Clip rates on the same answers ---


def same_answers(run: ReportRun) -> Plot:
    """What this run clipped by length, and what other ranges of the same overall rate would have clipped."""
    title = f"Clip rate by length, and other ranges on the same answers{run.suffix}"
    own = run.fairness(SAME_ANSWERS_BINS)
    if own is None or run.rows is None:
        return Plot(title, Markup(), _why_no_clipping(run))
    rate = run.rows.comparison_rate
    reports = [("this run", 1, own)]
    rules, notes = rules_at(run.rows, rate)
    for rule in rules:
        if rule.name != run.objective.get("name") or own.clip_rate < LOWEST_RATE:
            reports.append((rule.objective.label, rule.objective.colour, rule.report(run.rows)))
    groups = [charts.Bars(label, report.bins, colour) for label, colour, report in reports]
    flat = ", ".join(f"{label} {100 * report.flatness:.1f}" for label, _, report in reports)
    svg = charts.bars(
        title, f"Difference between the highest and the lowest clip rate, in points: {flat}.", groups, TOKENS,
        "clip rate", reference=(f"overall, {percent(rate)}", rate),
    )  # fmt: skip
    return Plot(title, svg, " ".join([f"Highest minus lowest rate, in points: {flat}.", _which(run.rows), *notes]))


def _why_no_clipping(run: ReportRun) -> str:
    if run.rows is None:
        return "There are no rows of single answers yet."
    if run.rows.off_policy:
        return "Every advantage of these steps is 0: no answer has a gradient that clipping could remove."
    return "Every update so far was on-policy: S is 0, so clipping cannot act and there is nothing to compare."


def _which(rows: RowSummary) -> str:
    updates = f"Off-policy updates of {rows.named_steps}"
    own = rows.clip_rate
    if own is None or own < LOWEST_RATE:
        rate = percent(rows.comparison_rate)
        return f"{updates}. The run clipped only {percent(own)}, so every range is set to clip {rate}."
    return f"{updates}; the other ranges are set to clip the same share. Bars of equal height are fair to every length."


# --- Clip rates through training ---


def _through_training(run: ReportRun) -> Plot | None:
    """One line per bin of length: fair clipping keeps them together."""
    rows = run.rows
    if rows is None or not rows.off_policy or rows.clip.is_empty():
        return None
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
    title = f"Clip rate by length through training{run.suffix}"
    return line_plot(title, lines, said, note, y_label="clip rate", top=1.0, percent_axis=True)


# --- The cosine of the update ---


def _measured_cosine(run: ReportRun) -> Plot:
    title = f"Measured cosine of the clipped and the true update{run.suffix}"
    lines = overlay([("measured", run.cosine)], lambda c: c.measured)
    if not lines:
        why = "it takes the gradients of every bin of length. `fspo train log.cosine=10` measures it every 10 steps."
        return Plot(title, Markup(), f"Not recorded: {why}")
    values = charts.known(lines[0].y)
    held = [None if c.bound <= -1 else c.bound for c in run.cosine]
    if any(v is not None for v in held):
        lines.append(Series("guaranteed", [c.step for c in run.cosine], held, colour=4, dashed=True))
    said = [
        f"Between {short(min(values))} and {short(max(values))}",
        f"the bound guaranteed nothing in {held.count(None)} of {len(held)} measurements",
    ]
    note = (
        "Between the last update of a step and the unclipped update of whole answers: a method that weighs tokens or "
        "answers differently has another direction even where nothing is clipped."
    )
    return line_plot(title, lines, said, note, y_label="cosine", top=1.0)


# --- Log-ratios against the length, with the bands of the run and of other methods ---


def log_ratios(run: ReportRun) -> Plot | None:
    rows = run.rows
    if rows is None or not rows.off_policy:
        return None
    responses = rows.last_responses
    sigma = ratios.scale(responses.log_ratio, responses.lengths, responses.mu)
    some = rows.last.sample(SCATTER_POINTS, seed=0) if len(rows.last) > SCATTER_POINTS else rows.last
    drawn = []
    for label, colour, chosen in (("kept", 1, pl.col("accepted") > 0.5), ("clipped", 2, pl.col("accepted") <= 0.5)):
        part = some.filter(chosen)
        drawn.append(Series(label, part["length"].to_list(), part["log_ratio"].to_list(), colour=colour, cloud=True))
    longest = float(rows.last["length"].max())  # type: ignore[arg-type]
    L = np.linspace(0, charts.span([longest], True, whole=True)[1], 81)
    own = own_rule(run)
    rate = rows.comparison_rate
    rules, notes = rules_at(rows, rate)
    others = [rule for rule in rules if own is None or rule.objective.name != own.objective.name]
    if own is not None:
        drawn += _curves(own, L, f"{own.name}, the run's band", of_run=True)
    for rule in others:
        drawn += _curves(rule, L, rule.name, of_run=False)
    title = f"Log-ratio S against length L{run.suffix}"
    described = (
        f"{len(some):,} answers of {rows.named_steps}; drift {short(responses.mu)} per token, scale {short(sigma)}."
    )
    svg = charts.line(title, described, drawn, "answer length L (tokens)", "S = log π − log π_old")
    said = f"Solid: the run's range, {own.text}." if own else NO_BAND
    return Plot(title, svg, f"{said} {_caption(others, notes, rate, len(some), rows)}")


def _curves(rule: DrawnBand, L: Floats, label: str, *, of_run: bool) -> list[Series]:
    """The upper and the lower bound; the axes are set by the run's own alone."""
    low, high = rule.bounds(L)
    upper = Series(
        label, L.tolist(), high.tolist(), colour=rule.objective.colour, dashed=not of_run, cut_off=not of_run
    )
    return [upper, replace(upper, label="", y=low.tolist())]


def _caption(others: Sequence[DrawnBand], notes: Sequence[str], rate: float, drawn: int, rows: RowSummary) -> str:
    text = f"Dashed: other methods set to clip {percent(rate)} of these answers: "
    text += "; ".join(rule.text for rule in others) + ". "
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


def own_rule(run: ReportRun) -> DrawnBand | None:
    """The rule that the run clipped by, with the band that its last step recorded.

    None where the objective has no range of S by length alone, or is not one of this installation: a folder that came
    from elsewhere may name `module:Class`, which is not imported.
    """
    name = run.objective.get("name")
    if run.rows is None or not isinstance(name, str) or not objectives.known(name):
        return None
    try:
        objective = objectives.get(**run.objective)
    except (TypeError, ValueError):  # parameters of another version, or not parameters at all
        return None
    if run.metrics:
        objective = objective.recorded(run.metrics[-1].model_dump())
    rule = DrawnBand(name, objective, run.rows.last_responses.totals)
    return None if length_band(objective, np.ones(1), rule.totals) is None else rule


def rules_at(rows: RowSummary, rate: float) -> tuple[list[DrawnBand], list[str]]:
    """The length laws with the ranges that clip this share of the last rows; and why one of them cannot."""
    rules, notes = [], []
    for name in objectives.LENGTH_LAWS:
        try:
            at_rate = objectives.get(name).at_clip_rate(rows.last_responses, rate)
        except (ArithmeticError, ValueError):  # log-ratios of thousands, whose exponential is no number
            at_rate = AtRate(note="has no finite range for such log-ratios")
        if at_rate.objective is None:
            notes.append(f"{objectives.get_class(name).label} {at_rate.note}.")
        else:
            rules.append(DrawnBand(name, at_rate.objective, rows.last_responses.totals, at_rate.accepted))
    return rules, notes
