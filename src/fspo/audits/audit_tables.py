"""The tables of an audit, for the terminal and for the page."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fspo.audits.findings import Audit
from fspo.audits.recommend import Recommendation
from fspo.fairness import FEW, Bin, FairnessReport, Interval
from fspo.pages.document import Table
from fspo.text import percent, short

NONE = "–"


def tables(audit: Audit) -> list[Table]:
    """The tables that have rows."""
    found = [_fairness(audit, report) for report in (audit.own, audit.attribute) if report is not None]
    if audit.methods:
        found.append(_methods(audit))
    if audit.recommendation is not None:
        found.append(_band(audit, audit.recommendation))
    if audit.law is not None:
        found.append(_model(audit))
    found.append(_lengths(audit))
    if audit.spans:
        found.append(_training(audit))
    return found


def _fairness(audit: Audit, report: FairnessReport) -> Table:
    rows = []
    for b in report.bins:
        known = b.count >= FEW
        clip = (
            [percent(b.clip_rate), _span(b.clip_interval), f"{b.reweighting:.3f}"] if known else ["cannot tell", "", ""]
        )
        rows.append([b.label, f"{b.count:,}", *clip])
    if all(b.count >= FEW for b in report.bins):
        rows.append(["all", f"{sum(b.count for b in report.bins):,}", percent(report.clip_rate), "", ""])
        title = f"LRE {_with(report.lre, report.lre_interval)}, flatness {percent(report.flatness)}"
    else:
        title = f"LRE: cannot tell, a bin has fewer than {FEW} rows"
    unit = f" in {audit.unit}" if report.attribute == "length" else ""
    return Table(
        f"Clip rate by {report.attribute}, {audit.own_rule}. {title}",
        [report.attribute + unit, "rows", "clip rate", _interval(audit), "r"],
        rows,
    )


def _methods(audit: Audit) -> Table:
    labels = list(dict.fromkeys(b.label for m in audit.methods if m.report for b in m.report.bins))
    rows = []
    for method in audit.methods:
        parameters = " ".join(f"{key}={_parameter(value)}" for key, value in method.parameters.items())
        if method.report is None:
            rows.append([method.name, method.note])
            continue
        bins = {b.label: b for b in method.report.bins}
        cells = [_rate(bins.get(label)) for label in labels]
        few = any(b.count < FEW for b in method.report.bins)
        lre = "cannot tell" if few else _with(method.report.lre, method.report.lre_interval)
        rows.append([method.name, *cells, percent(method.report.flatness), lre, parameters])
    over = next((m.report.attribute for m in audit.methods if m.report), "length")
    title = f"Every method at a clip rate of {percent(audit.clip_rate)}: clip rate by {over}, in %, ± half the interval"
    return Table(title, ["method", *labels, "flatness", "LRE", "range"], rows, words=1)


def band_sentences(audit: Audit) -> list[str]:
    """How certain the recommended band is, and what is unfair about it."""
    band = audit.recommendation
    if band is None:
        return []
    low, high = band.exponent_interval
    sure = (
        f"From {band.rows:,} rows: of fresh rows {_span(band.fresh_interval)} will be clipped, and clipping has no "
        f"trend over length at an exponent between {low:.2f} and {high:.2f} ({_interval(audit)}s)."
    )
    return [sure, *band.advice]


def _band(audit: Audit, band: Recommendation) -> Table:
    first = band.report
    rows = []
    for k, b in enumerate(first.bins):
        cells = []
        for rule in band.rates:
            same = rule.report.bins[k] if len(rule.report.bins) == len(first.bins) else None
            known = same is not None and same.count >= FEW
            cells.append(
                f"{percent(same.clip_rate)} ({_span(same.clip_interval)})" if same and known else "cannot tell"
            )
        rows.append([b.label, f"{b.count:,}", *cells])
    few = any(b.count < FEW for b in first.bins)
    reports = [rule.report for rule in band.rates]
    rows.append(["all", f"{band.rows:,}", *(percent(r.clip_rate) for r in reports)])
    rows.append(["LRE", "", *("cannot tell" if few else _with(r.lre, r.lre_interval) for r in reports)])
    rows.append(["flatness", "", *("cannot tell" if few else percent(r.flatness) for r in reports)])
    title = f"The recommended band: clip rate by length, with {_interval(audit)}s"
    return Table(title, [f"length in {audit.unit}", "rows", *(rule.name for rule in band.rates)], rows)


def _model(audit: Audit) -> Table:
    law, shape = audit.law, audit.shape
    assert law is not None
    rows = [
        ["mu", _number(law.mu), _span(law.mu_interval, _number), "drift per token"],
        ["sigma", _number(law.scale), _span(law.scale_interval, _number), "spread of S at one token"],
        ["H", f"{law.exponent:.4f}", _span(law.interval, lambda v: f"{v:.4f}"), "spread grows as L^H; sqrt(L) is 0.5"],
    ]
    if shape is not None:
        rows.append(["Gaussian?", f"{shape.distance:.4f}", f"± {shape.margin:.4f}", shape.verdict])
        rows.append(["", f"{shape.skewness:.2f}", f"{shape.excess_kurtosis:.2f}", "skewness and excess kurtosis"])
    if audit.ess is not None:
        rows.append(["ESS", percent(audit.ess), "", "effective share of the rows under the weights exp(S)"])
    title = f"S = mu L + sigma L^H Z, over {law.count:,} rows"
    return Table(title, ["", "estimate", _interval(audit), ""], rows, words=1)


def _lengths(audit: Audit) -> Table:
    rows = []
    for r in audit.lengths:
        truncated = "" if r.truncated_interval is None else f"{percent(r.truncated)} ({_span(r.truncated_interval)})"
        kept = "" if r.kept_interval is None else f"{percent(r.kept)} ({_span(r.kept_interval)})"
        reward = "" if r.reward is None else short(r.reward)
        rows.append(
            [r.label, f"{r.count:,}", truncated, reward, percent(r.gradient) if r.gradient is not None else "", kept]
        )
    head = [f"length in {audit.unit}", "rows", "truncated", "mean reward", "gradient share", "after clipping"]
    used = [k for k in range(len(head)) if k < 2 or any(row[k] for row in rows)]
    title = "By length: truncation, reward, and share of the gradient (|w A| L)"
    return Table(title, [head[k] for k in used], [[row[k] for k in used] for row in rows])


def _training(audit: Audit) -> Table:
    rows = []
    for s in audit.spans:
        clip = "" if s.interval is None else f"{percent(s.clip_rate)} ({_span(s.interval)})"
        lre = "" if s.lre is None or s.lre_interval is None else _with(s.lre, s.lre_interval)
        numbers = [_number(s.mu), _number(s.sigma), NONE if s.ess is None else percent(s.ess)]
        steps = f"{s.first:g}" if s.first == s.last else f"{s.first:g}–{s.last:g}"
        rows.append([steps, f"{s.count:,}", f"{s.mean_length:.0f}", clip, lre, *numbers])
    head = ["steps", "sampled", "mean length", "clip rate", "LRE", "mu", "sigma", "ESS"]
    return Table("Over training", head, rows)


def _interval(audit: Audit) -> str:
    return f"{100 * audit.confidence:g} % interval"


def _rate(b: Bin | None) -> str:
    if b is None or b.count < FEW:
        return "?"
    return f"{100 * b.clip_rate:.1f}±{50 * (b.interval[1] - b.interval[0]):.1f}"


def _number(value: float | None) -> str:
    return NONE if value is None else f"{value:.4g}"


def _parameter(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def _span(interval: Interval, form: Callable[[float], str] = percent) -> str:
    return f"{form(interval[0])} to {form(interval[1])}"


def _with(value: float, interval: Interval) -> str:
    return f"{value:.3f} ({interval[0]:.3f} to {interval[1]:.3f})"
