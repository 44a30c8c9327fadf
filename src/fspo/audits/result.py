"""The result of an audit: its figures and verdict, as text for a terminal, as JSON, and as one HTML page."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, is_dataclass
from pathlib import Path
from typing import Any

from fspo.audits.rules import MismatchAudit, Recommendation, Rule
from fspo.fairness import Bin, FairnessReport, ScalingLaw
from fspo.fairness.bins import Interval
from fspo.fairness.measure import FAIR, FEW
from fspo.files import json_text, plain, replace_file
from fspo.pages import charts, document
from fspo.pages.document import Plot, Table, grid
from fspo.text import percent, short, visible


@dataclass(frozen=True)
class LengthRow:
    """A bin of lengths, on-policy rows and rows without a gradient included."""

    label: str
    count: int
    truncated: float | None = None
    reward: float | None = None


@dataclass(frozen=True)
class Audit:
    """All figures of an audit. Print it for the tables, or use `to_dict`, `write_json` and `write_html`."""

    name: str  # of the data, as it was given
    files: list[str]
    rows: int
    on_policy: int
    sampled: int  # rows behind all figures
    unit: str  # of length: tokens or characters
    verdict: str
    own_rule: str
    own: FairnessReport | None  # by length
    attribute: FairnessReport | None  # by another column
    clip_rate: float | None  # of the band and of the fixed range
    fixed: FairnessReport | None  # of a fixed range at this clip rate
    law: ScalingLaw | None
    lengths: list[LengthRow]
    recommendation: Recommendation | None
    mismatch: MismatchAudit | None  # of log-probs of sampler and trainer
    notes: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        return self.text()

    def text(self, width: int = 100) -> str:
        """Verdict, tables, recommendation and notes; no line is wider than `width` (80 or more)."""
        parts = [_wrapped(f"{self.name}: {self.rows:,} rows", width), _wrapped(self.headline, width)]
        parts += [_text_table(table, width) for table in _tables(self)]
        if self.recommendation is not None:
            parts.append("\n".join(_wrapped(sentence, width) for sentence in _band_sentences(self)))
        for name, lines in self._settings.items():
            parts.append(f"{name}:\n{textwrap.indent(lines, '  ')}")
        if self.notes:
            parts.append("\n".join(_wrapped(f"- {note}", width, "  ") for note in self.notes))
        return visible("\n\n".join(parts))

    @property
    def headline(self) -> str:
        """The verdict as a sentence."""
        return f"{self.verdict[0].upper()}{self.verdict[1:]}."

    @property
    def _settings(self) -> dict[str, str]:
        """Settings to paste."""
        advice = self.recommendation or self.mismatch
        return {} if advice is None else advice.snippets

    def to_dict(self) -> dict[str, Any]:
        """All figures as plain values; NaN, and a rate of too few rows, is None."""
        figures: dict[str, Any] = plain(_fields(self))
        return figures

    def to_json(self) -> str:
        return json_text(self.to_dict(), indent=1)

    def write_json(self, path: str | Path) -> None:
        replace_file(path, self.to_json() + "\n")

    def write_html(self, path: str | Path) -> None:
        """One page that opens offline."""
        main = document.render(
            "audit.html",
            headline=self.headline,
            unfair=self.verdict.startswith(("unfair", "too much")),
            plots=grid(_plots(self)),
            tables=_tables(self),
            snippets=self._settings,
            band_sentences=_band_sentences(self),
            notes=self.notes,
        )
        page = document.document(
            title=f"{self.name} – fspo audit",
            heading=self.name,
            lead=f"Audit of {'clipping' if self.mismatch is None else 'sampler and trainer'}, {self.rows:,} rows",
            main=main,
            footer="Written by fspo audit.",
        )
        replace_file(path, page)


def verdict(report: FairnessReport | None) -> str:
    """Fair, unfair or cannot tell, and why."""
    if report is None:
        return "cannot tell how fair the run's own clipping is: add --rule NAME, or see the notes"
    if not report.clip_rate:
        count = sum(b.count for b in report.bins)
        return f"nothing was clipped: the rule left all {count:,} gradients as they are, so there is nothing to judge"
    small = min(report.bins, key=lambda b: b.count)
    if small.count < FEW:
        rows = "1 row" if small.count == 1 else f"{small.count} rows"
        fix = "join it with another, or leave it out" if math.isnan(small.low) else "use fewer bins"
        return f"cannot tell: the bin {small.label} has {rows}, and a rate needs {FEW}: {fix}"
    if len(report.bins) == 1:
        return f"cannot tell: all rows are in the bin {small.label} of {report.attribute}, so nothing can be compared"
    (low, high), worst = report.lre_interval, max(report.bins, key=lambda b: abs(b.reweighting - 1))
    if low > FAIR:
        return (
            f"unfair: {report.attribute} {worst.label} is clipped {percent(worst.clip_rate)} against "
            f"{percent(report.clip_rate)} overall, an LRE of {report.lre:.3f} ({low:.3f} to {high:.3f})"
        )
    if high <= FAIR:
        return f"fair: every bin's acceptance is within {percent(high)} of the average"
    return f"cannot tell: the LRE is between {low:.3f} and {high:.3f}, and fair means at most {FAIR:g}"


def _fields(value: Any) -> Any:
    """Dataclasses as dictionaries; a bin with the rates that follow from its fields."""
    if isinstance(value, Bin):
        row = asdict(value) | {"clip_rate": value.clip_rate, "clip_interval": value.clip_interval}
        if value.count < FEW:
            row |= dict.fromkeys(("acceptance", "interval", "reweighting", "clip_rate", "clip_interval"))
        return row | {"cannot_tell": value.count < FEW}
    if is_dataclass(value) and not isinstance(value, type):
        return {name: _fields(getattr(value, name)) for name in value.__dataclass_fields__}
    return [_fields(item) for item in value] if isinstance(value, list) else value


# --- the band ---------------------------------------------------------------------------------------------------------


def _band_sentences(audit: Audit) -> list[str]:
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
        f"trend over length at an exponent between {low:.2f} and {high:.2f} (95 % intervals).",
        *([band.advice] if band.advice else []),
    ]


# --- tables ----------------------------------------------------------------------------------------------------------


def _tables(audit: Audit) -> list[Table]:
    """The tables that have something to say."""
    shown = [_rates(audit, rules) for rules in _compared(audit)]
    if audit.law is not None:
        shown.append(_model(audit.law))
    lengths = _lengths(audit)
    return shown if lengths is None else [*shown, lengths]


def _compared(audit: Audit) -> list[list[Rule]]:
    """The rules of each table of clip rates, by length and by another column, with the same bins in a table."""
    by_length = [] if audit.own is None else [Rule(audit.own_rule, audit.own)]
    by_length += [] if audit.recommendation is None else audit.recommendation.rates
    by_length += [] if audit.mismatch is None else audit.mismatch.rules
    by_length += [Rule("fixed range", audit.fixed)] if by_length and audit.fixed is not None else []
    by_column = [] if audit.attribute is None else [Rule(audit.own_rule, audit.attribute)]
    return [rules for rules in (by_length, by_column) if rules]


def _rates(audit: Audit, rules: Sequence[Rule]) -> Table:
    """Clip rates of several rules by the same bins."""
    first = rules[0].report
    few = any(b.count < FEW for b in first.bins)
    rows = [
        [b.label, f"{b.count:,}", *(_rate(rule.report.bins[k]) for rule in rules)] for k, b in enumerate(first.bins)
    ]
    total = f"{sum(b.count for b in first.bins):,}"
    rows.append(["all", total, *(f"{100 * rule.report.clip_rate:.1f}" for rule in rules)])
    lre = ["cannot tell" if few else f"{rule.report.lre:.3f}" for rule in rules]
    rows.append(["LRE", "", *lre])
    if not few:
        ends = (rule.report.lre_interval for rule in rules)
        rows.append(["its interval", "", *(f"{low:.2f}–{high:.2f}" for low, high in ends)])
    unit = audit.unit if first.attribute == "length" else first.attribute
    title = f"{_measured(audit)} by {first.attribute}, in %, ± half the 95 % interval"
    return Table(title, [unit, "rows", *(rule.name for rule in rules)], rows)


def _model(law: ScalingLaw) -> Table:
    rows = [
        ["mu, drift per token", _number(law.mu), _span(law.mu_interval, _number)],
        ["sigma, spread of S at one token", _number(law.scale), _span(law.scale_interval, _number)],
        ["H, 0.5 for sqrt(L)", f"{law.exponent:.4f}", _span(law.interval, lambda v: f"{v:.4f}")],
    ]
    return Table(f"S = mu L + sigma L^H Z, over {law.count:,} rows", ["", "estimate", "95 % interval"], rows)


def _lengths(audit: Audit) -> Table | None:
    head = [audit.unit, "rows", "truncated, %", "mean reward"]
    rows = []
    for r in audit.lengths:
        truncated = "" if r.truncated is None else f"{100 * r.truncated:.1f}"
        rows.append([r.label, f"{r.count:,}", truncated, "" if r.reward is None else short(r.reward)])
    used = [k for k in range(len(head)) if k < 2 or any(row[k] for row in rows)]
    if len(used) == 2:
        return None
    return Table("All rows by length", [head[k] for k in used], [[row[k] for k in used] for row in rows])


def _measured(audit: Audit) -> str:
    return "Clip rate" if audit.mismatch is None else "Dropped"


def _rate(b: Bin) -> str:
    if b.count < FEW:
        return "cannot tell"
    low, high = b.clip_interval
    return f"{100 * b.clip_rate:.1f} ±{50 * (high - low):.1f}"


def _number(value: float) -> str:
    return f"{value:.4g}"


def _span(interval: Interval, form: Callable[[float], str] = percent) -> str:
    return f"{form(interval[0])} to {form(interval[1])}"


# --- text ------------------------------------------------------------------------------------------------------------


def _wrapped(line: str, width: int, indent: str = "") -> str:
    return textwrap.fill(line, max(width, 20), subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def _text_table(table: Table, width: int) -> str:
    """Numbers are aligned right, names left; a table that is too wide continues below with its first column."""
    rows = [list(map(str, row)) for row in (table.head, *table.rows)]
    widths = [max(len(row[k]) for row in rows) for k in range(len(table.head))]
    first = min(widths[0], width // 2)
    blocks: list[list[int]] = [[]]
    for k in range(1, len(table.head)):
        if blocks[-1] and 2 + first + sum(widths[j] + 2 for j in (*blocks[-1], k)) > width:
            blocks.append([])
        blocks[-1].append(k)
    lines = [_wrapped(table.title, width)]
    for block in blocks:
        for row in rows:
            name = row[0] if len(row[0]) <= first else f"{row[0][: first - 1]}…"
            lines.append("  " + "  ".join([name.ljust(first), *(row[k].rjust(widths[k]) for k in block)]).rstrip())
    return "\n".join(lines)


# --- charts ----------------------------------------------------------------------------------------------------------


def _plots(audit: Audit) -> list[Plot]:
    drawn = []
    for rules in _compared(audit):
        first = rules[0].report
        groups = [charts.Bars(rule.name, rule.report.bins, k + 1, FEW) for k, rule in enumerate(rules[:4])]
        title, y = f"{_measured(audit)} by {first.attribute}", _measured(audit).lower()
        description = f"Share of answers that a rule removes, by bin of {first.attribute}, with intervals."
        drawn.append(Plot(title, charts.bars(title, description, groups, first.attribute, y)))
    return drawn
