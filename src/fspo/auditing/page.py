"""An audit as one HTML file that opens from disk, with no script and no request to anywhere."""

from __future__ import annotations

from fspo.auditing.results import FEW, Audit
from fspo.auditing.tables import clip_interval, tables
from fspo.fairness.measure import FairnessReport
from fspo.report import charts
from fspo.report.document import resource
from fspo.report.panels.parts import Plot, grid
from fspo.report.text import escape, percent

SHOWN = ("fspo", "gspo", "rloo")  # methods drawn beside the run's own rule; the table has all


def render(audit: Audit) -> str:
    """The page as text."""
    style = resource("style.css") + resource("chart.css")
    body = "".join(f"<section>{table.html()}</section>" for table in tables(audit))
    notes = "".join(f"<li>{escape(note)}</li>" for note in audit.notes)
    title = escape(audit.name)
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>{title} – fspo audit</title>
<style>
{style}</style>
</head>
<body>
<header><h1>{title}</h1><p class="lead">Audit of clipping, {audit.rows:,} rows</p></header>
<main>
<p class="{"alert" if audit.verdict.startswith("unfair") else "card"}">{escape(audit.headline)}</p>
{grid(_plots(audit))}
{body}
{_band(audit)}
{f"<section><h2>Notes</h2><ul>{notes}</ul></section>" if notes else ""}
</main>
<footer>Written by fspo audit.</footer>
</body>
</html>
"""


def _plots(audit: Audit) -> list[Plot]:
    drawn = []
    for report in (audit.own, audit.attribute):
        if report is not None:
            reference = ("overall", report.clip_rate)
            groups = [_bars(audit.own_rule, report, 1)]
            drawn.append(_chart(f"Clip rate by {report.attribute}, {audit.own_rule}", report, groups, reference))
    reports = {m.name: m.report for m in audit.methods if m.report is not None and m.name in SHOWN}
    if reports:
        first = next(iter(reports.values()))
        groups = [_bars(name, report, k + 1) for k, (name, report) in enumerate(reports.items())]
        drawn.append(_chart(f"Clip rate by {first.attribute}, methods at the same overall rate", first, groups, None))
    if any(s.clip_rate is not None for s in audit.spans):
        x = [(s.first + s.last) / 2 for s in audit.spans]
        low, high = ([s.interval[k] if s.interval else None for s in audit.spans] for k in (0, 1))
        line = charts.Series("clip rate", x, [s.clip_rate for s in audit.spans], low, high, dots=True)
        said = "Share clipped, by stretch of steps, with intervals."
        title = "Clip rate over training"
        drawn.append(Plot(title, charts.line(title, said, [line], y_label="clip rate", percent_axis=True)))
    return drawn


def _bars(label: str, report: FairnessReport, colour: int) -> charts.Bars:
    known = [b.count >= FEW for b in report.bins]
    return charts.Bars(
        label,
        [b.clip_rate if ok else None for b, ok in zip(report.bins, known, strict=True)],
        [clip_interval(b) if ok else None for b, ok in zip(report.bins, known, strict=True)],
        [f"{b.count:,} rows" for b in report.bins],
        colour,
    )


def _chart(title: str, report: FairnessReport, groups: list[charts.Bars], reference: tuple[str, float] | None) -> Plot:
    names = [b.label for b in report.bins]
    description = f"Share of answers whose gradient is clipped away, by bin of {report.attribute}, with intervals."
    svg = charts.bars(title, description, names, groups, report.attribute, "clip rate", reference=reference)
    return Plot(title, svg)


def _band(audit: Audit) -> str:
    band = audit.recommendation
    if band is None:
        return ""
    lines = "".join(f"<h3>{escape(name)}</h3><pre>{escape(text)}</pre>" for name, text in band.snippets.items())
    said = f"mu = {band.mu:.4g}, c_low = {band.c_low:g}, c_high = {band.c_high:g}, H = {band.exponent:g}"
    return f"<section><h2>Band for a clip rate of {percent(band.clip_rate)}</h2><p>{escape(said)}</p>{lines}</section>"
