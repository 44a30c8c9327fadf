"""An audit for a reader: its tables, as text for a terminal and as one HTML file that opens offline."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Sequence
from typing import Any

from fspo.audits.findings import Audit
from fspo.audits.methods import Rule
from fspo.fairness import FEW, Bin, FairnessReport, Interval
from fspo.pages import charts, document
from fspo.pages.document import Plot, Table, grid
from fspo.text import percent, short, visible

NONE = "–"
WIDTH = 100  # of text that goes to no terminal


def text(audit: Audit, width: int = WIDTH) -> str:
    """Verdict, tables, recommendation and notes; no line is wider than `width` (80 or more)."""
    parts = [_wrapped(f"{audit.name}: {audit.rows:,} rows", width), _wrapped(audit.headline, width)]
    parts += [_text_table(table, width) for table in tables(audit)]
    if audit.recommendation is not None:
        parts.append("\n".join(_wrapped(sentence, width) for sentence in band_sentences(audit)))
    for name, lines in _snippets(audit).items():
        parts.append(f"{name}:\n{textwrap.indent(lines, '  ')}")
    if audit.notes:
        parts.append("\n".join(_wrapped(f"- {note}", width, "  ") for note in audit.notes))
    return visible("\n\n".join(parts))


def page(audit: Audit) -> str:
    """The page as text."""
    main = document.render(
        "audit.html",
        headline=audit.headline,
        unfair=audit.alarming,
        plots=grid(_plots(audit)),
        tables=tables(audit),
        snippets=_snippets(audit),
        band_sentences=band_sentences(audit),
        notes=audit.notes,
    )
    return document.document(
        title=f"{audit.name} – fspo audit",
        heading=audit.name,
        lead=f"Audit of {'clipping' if audit.mismatch is None else 'sampler and trainer'}, {audit.rows:,} rows",
        main=main,
        footer="Written by fspo audit.",
    )


def band_sentences(audit: Audit) -> list[str]:
    """The recommended band, how certain it is, and what is unfair about it."""
    band = audit.recommendation
    if band is None:
        return []
    width = "sqrt(L)" if band.exponent == 0.5 else f"L^{band.exponent:g}"
    low, high = band.exponent_interval
    return [
        f"Band for a clip rate of {percent(band.clip_rate)}: mu L - {band.c_low:g} {width} to mu L + {band.c_high:g} "
        f"{width}, mu = {band.mu:.4g}; {percent(band.outside)} of the rows lie outside.",
        f"From {band.rows:,} rows: of fresh rows {_span(band.fresh_interval)} will be clipped, and clipping has no "
        f"trend over length at an exponent between {low:.2f} and {high:.2f} ({_confidence(audit)} intervals).",
        *band.advice,
    ]


def _snippets(audit: Audit) -> dict[str, str]:
    """Settings to paste."""
    advice = audit.recommendation or audit.mismatch
    return {} if advice is None else advice.snippets


# --- tables ----------------------------------------------------------------------------------------------------------


def tables(audit: Audit) -> list[Table]:
    """The tables that have something to say."""
    shown: list[Table | None] = [_rates(audit, rules) for rules in _compared(audit)]
    if len(audit.methods) > 1:
        shown.append(_methods(audit))
    if audit.law is not None:
        shown.append(_model(audit))
    shown.append(_lengths(audit))
    if audit.spans:
        shown.append(_training(audit))
    return [table for table in shown if table is not None]


def _compared(audit: Audit) -> list[list[Rule]]:
    """The rules of each table of clip rates, by length and by another column, with the same bins in a table."""
    fixed = [Rule("fixed range", m.report) for m in audit.methods if m.name == "rloo" and m.report is not None]
    by_length = [] if audit.own is None else [Rule(audit.own_rule, audit.own)]
    by_length += [] if audit.recommendation is None else audit.recommendation.rates
    by_length += [] if audit.mismatch is None else audit.mismatch.rules
    by_column = [] if audit.attribute is None else [Rule(audit.own_rule, audit.attribute)]
    both = [
        [*rules, *(f for f in fixed if f.report.attribute == name)]
        for rules, name in ((by_length, "length"), (by_column, audit.attribute and audit.attribute.attribute))
    ]
    return [[rule for rule in rules if _labels(rule) == _labels(rules[0])] for rules in both if rules]


def _labels(rule: Rule) -> list[str]:
    return [b.label for b in rule.report.bins]


def _rates(audit: Audit, rules: Sequence[Rule]) -> Table:
    """Clip rates of several rules by the same bins."""
    first = rules[0].report
    few = any(b.count < FEW for b in first.bins)
    rows = [
        [b.label, f"{b.count:,}", *(_rate(rule.report.bins[k]) for rule in rules)] for k, b in enumerate(first.bins)
    ]
    total = f"{sum(b.count for b in first.bins):,}"
    rows.append(["all", total, *(f"{100 * rule.report.clip_rate:.1f}" for rule in rules)])
    summaries: list[tuple[str, Callable[[FairnessReport], str]]] = [
        ("LRE", lambda r: f"{r.lre:.3f}"),
        ("its interval", lambda r: f"{r.lre_interval[0]:.3f}–{r.lre_interval[1]:.3f}"),
        ("flatness", lambda r: percent(r.flatness)),
    ]
    for name, summary in summaries:
        rows.append([name, "", *("cannot tell" if few else summary(rule.report) for rule in rules)])
    unit = f" in {audit.unit}" if first.attribute == "length" else ""
    title = f"{_measured(audit)} by {first.attribute}, in %, ± half the {_confidence(audit)} interval"
    return Table(title, [first.attribute + unit, "rows", *(rule.name for rule in rules)], rows)


def _methods(audit: Audit) -> Table:
    """Every method at one clip rate; those that clip the same rows share a line."""
    reports = [(m, m.report) for m in audit.methods if m.report is not None]
    labels = list(dict.fromkeys(b.label for _, report in reports for b in report.bins))
    lines: dict[tuple[str, ...], list[str]] = {}
    for method, report in reports:
        bins = {b.label: b for b in report.bins}
        few = any(b.count < FEW for b in report.bins)
        lre = "cannot tell" if few else f"{report.lre:.3f}"
        cells = (*(_rate(bins.get(label)) for label in labels), percent(report.flatness), lre)
        lines.setdefault(cells, []).append(method.name)
    for method in audit.methods:
        if method.report is None:
            lines.setdefault((method.note,), []).append(method.name)
    over = next((report.attribute for _, report in reports), "length")
    title = f"Every method at a clip rate of {percent(audit.clip_rate)}: clip rate by {over}, in %, ± half the interval"
    rows = [[", ".join(names), *cells] for cells, names in lines.items()]
    return Table(title, ["method", *labels, "flatness", "LRE"], rows)


def _model(audit: Audit) -> Table:
    law = audit.law
    assert law is not None
    rows = [
        ["mu, drift per token", _number(law.mu), _span(law.mu_interval, _number)],
        ["sigma, spread of S at one token", _number(law.scale), _span(law.scale_interval, _number)],
        ["H, 0.5 for sqrt(L)", f"{law.exponent:.4f}", _span(law.interval, lambda v: f"{v:.4f}")],
    ]
    if audit.ess is not None:
        rows.append(["ESS under exp(S)", percent(audit.ess), ""])
    title = f"S = mu L + sigma L^H Z, over {law.count:,} rows"
    return Table(title, ["", "estimate", f"{_confidence(audit)} interval"], rows)


def _lengths(audit: Audit) -> Table | None:
    rows = []
    for r in audit.lengths:
        truncated = "" if r.truncated is None else _plus_minus(r.truncated, r.truncated_interval)
        shares = ["" if share is None else f"{100 * share:.1f}" for share in (r.gradient, r.kept)]
        rows.append([r.label, f"{r.count:,}", truncated, "" if r.reward is None else short(r.reward), *shares])
    head = [f"length in {audit.unit}", "rows", "truncated, %", "mean reward", "gradient, %", "kept, %"]
    used = [k for k in range(len(head)) if k < 2 or any(row[k] for row in rows)]
    if len(used) == 2:
        return None
    title = "By length; gradient is the share of |w A| L, kept the share of what clipping leaves of it"
    return Table(title, [head[k] for k in used], [[row[k] for k in used] for row in rows])


def _training(audit: Audit) -> Table:
    rows = []
    for s in audit.spans:
        clip = "" if s.clip_rate is None else _plus_minus(s.clip_rate, s.interval)
        lre = "" if s.lre is None else f"{s.lre:.3f}"
        numbers = [_number(s.mu), _number(s.sigma), NONE if s.ess is None else percent(s.ess)]
        steps = f"{s.first:g}" if s.first == s.last else f"{s.first:g}–{s.last:g}"
        rows.append([steps, f"{s.count:,}", f"{s.mean_length:.0f}", clip, lre, *numbers])
    head = ["steps", "sampled", "mean length", "clipped, %", "LRE", "mu", "sigma", "ESS"]
    return Table("Over training", head, rows)


def _measured(audit: Audit) -> str:
    return "Clip rate" if audit.mismatch is None else "Dropped"


def _confidence(audit: Audit) -> str:
    return f"{100 * audit.confidence:g} %"


def _rate(b: Bin | None) -> str:
    if b is None or b.count < FEW:
        return "cannot tell"
    return _plus_minus(b.clip_rate, b.clip_interval)


def _plus_minus(rate: float, interval: Interval | None) -> str:
    low, high = interval or (rate, rate)
    return f"{100 * rate:.1f} ±{50 * (high - low):.1f}"


def _number(value: float | None) -> str:
    return NONE if value is None else f"{value:.4g}"


def _span(interval: Interval, form: Callable[[float], str] = percent) -> str:
    return f"{form(interval[0])} to {form(interval[1])}"


# --- text ------------------------------------------------------------------------------------------------------------


def _wrapped(line: str, width: int, indent: str = "") -> str:
    return textwrap.fill(line, max(width, 20), subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def _text_table(table: Table, width: int) -> str:
    """Numbers are aligned right, names and words left; a table that is too wide continues below with its first column.

    A row of two cells is a name and a remark.
    """
    rows = [list(map(str, row)) for row in (table.head, *table.rows)]
    full = [row for row in rows if len(row) == len(table.head)]
    widths = [max(len(row[k]) for row in full) for k in range(len(table.head))]
    first = min(max(len(row[0]) for row in full), width // 2)
    words = len(table.head) - table.words  # the first column of text at the end
    blocks: list[list[int]] = [[]]
    for k in range(1, len(table.head)):
        if blocks[-1] and 2 + first + sum(widths[j] + 2 for j in (*blocks[-1], k)) > width:
            blocks.append([])
        blocks[-1].append(k)
    lines = [_wrapped(table.title, width)]
    for block in blocks:
        for row in full:
            cells = [row[k].ljust(widths[k]) if k >= words else row[k].rjust(widths[k]) for k in block]
            *above, name = textwrap.wrap(row[0], first) or [""]  # a long name takes several lines
            lines += [f"  {part}" for part in above] + ["  " + "  ".join([name.ljust(first), *cells]).rstrip()]
    for name, remark in ((row[0], row[1]) for row in rows if len(row) != len(table.head)):
        lines.append(textwrap.indent(_wrapped(f"{name}: {remark}", width - 2, "  "), "  "))
    return "\n".join(lines)


# --- charts ----------------------------------------------------------------------------------------------------------


def _plots(audit: Audit) -> list[Plot]:
    drawn = []
    for rules in _compared(audit):
        first = rules[0].report
        groups = [_bars(rule.name, rule.report, k + 1) for k, rule in enumerate(rules[:4])]
        names = [b.label for b in first.bins]
        title, y = f"{_measured(audit)} by {first.attribute}", _measured(audit).lower()
        description = f"Share of answers that a rule removes, by bin of {first.attribute}, with intervals."
        drawn.append(Plot(title, charts.bars(title, description, names, groups, first.attribute, y)))
    if any(s.clip_rate is not None for s in audit.spans):
        x = [(s.first + s.last) / 2 for s in audit.spans]
        low, high = ([s.interval[k] if s.interval else None for s in audit.spans] for k in (0, 1))
        line = charts.Series("clip rate", x, [s.clip_rate for s in audit.spans], low, high, dots=True)
        description = "Share clipped, by stretch of steps, with intervals."
        title = "Clip rate over training"
        drawn.append(Plot(title, charts.line(title, description, [line], y_label="clip rate", percent_axis=True)))
    return drawn


def _bars(label: str, report: FairnessReport, colour: int) -> charts.Bars:
    known: list[Any] = [b if b.count >= FEW else None for b in report.bins]
    return charts.Bars(
        label,
        [b and b.clip_rate for b in known],
        [b and b.clip_interval for b in known],
        [f"{b.count:,} rows" for b in report.bins],
        colour,
    )
