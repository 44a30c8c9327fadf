"""An audit as one HTML file that opens from disk and requests nothing from any other machine."""

from __future__ import annotations

from fspo import objectives
from fspo.audits.audit_tables import band_sentences, tables
from fspo.audits.findings import Audit
from fspo.fairness import FEW, FairnessReport
from fspo.pages import charts, document
from fspo.pages.document import Plot, grid
from fspo.text import percent


def render(audit: Audit) -> str:
    """The page as text."""
    main = document.render(
        "audit.html",
        headline=audit.headline,
        unfair=audit.verdict.startswith("unfair"),
        plots=grid(_plots(audit)),
        tables=tables(audit),
        band=audit.recommendation,
        band_sentences=band_sentences(audit),
        clip_rate=None if audit.recommendation is None else percent(audit.recommendation.clip_rate),
        notes=audit.notes,
    )
    return document.document(
        title=f"{audit.name} – fspo audit",
        heading=audit.name,
        lead=f"Audit of clipping, {audit.rows:,} rows",
        main=main,
        footer="Written by fspo audit.",
    )


def _plots(audit: Audit) -> list[Plot]:
    drawn = []
    for report in (audit.own, audit.attribute):
        if report is not None:
            reference = ("overall", report.clip_rate)
            groups = [_bars(audit.own_rule, report, 1)]
            drawn.append(_chart(f"Clip rate by {report.attribute}, {audit.own_rule}", report, groups, reference))
    # The table has all methods; a chart of all of them could not be read.
    found = {m.name: m.report for m in audit.methods}
    reports = {name: report for name in objectives.LENGTH_LAWS if (report := found.get(name)) is not None}
    if reports:
        first = next(iter(reports.values()))
        groups = [_bars(name, report, k + 1) for k, (name, report) in enumerate(reports.items())]
        drawn.append(_chart(f"Clip rate by {first.attribute}, methods at the same overall rate", first, groups, None))
    if audit.recommendation is not None:
        first = audit.recommendation.report
        rates = [r for r in audit.recommendation.rates if len(r.report.bins) == len(first.bins)]
        groups = [_bars(r.name if k else "recommended", r.report, k + 1) for k, r in enumerate(rates)]
        reference = ("wanted", audit.recommendation.clip_rate)
        drawn.append(_chart("Clip rate by length, the recommended band", first, groups, reference))
    if any(s.clip_rate is not None for s in audit.spans):
        x = [(s.first + s.last) / 2 for s in audit.spans]
        low, high = ([s.interval[k] if s.interval else None for s in audit.spans] for k in (0, 1))
        line = charts.Series("clip rate", x, [s.clip_rate for s in audit.spans], low, high, dots=True)
        said = "Share clipped, by stretch of steps, with intervals."
        title = "Clip rate over training"
        drawn.append(Plot(title, charts.line(title, said, [line], y_label="clip rate", percent_axis=True)))
    return drawn


def _bars(label: str, report: FairnessReport, colour: int) -> charts.Bars:
    enough = [b.count >= FEW for b in report.bins]
    return charts.Bars(
        label,
        [b.clip_rate if ok else None for b, ok in zip(report.bins, enough, strict=True)],
        [b.clip_interval if ok else None for b, ok in zip(report.bins, enough, strict=True)],
        [f"{b.count:,} rows" for b in report.bins],
        colour,
    )


def _chart(title: str, report: FairnessReport, groups: list[charts.Bars], reference: tuple[str, float] | None) -> Plot:
    names = [b.label for b in report.bins]
    description = f"Share of answers whose gradient is clipped away, by bin of {report.attribute}, with intervals."
    svg = charts.bars(title, description, names, groups, report.attribute, "clip rate", reference=reference)
    return Plot(title, svg)
