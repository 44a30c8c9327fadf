"""An audit for the terminal."""

from __future__ import annotations

from fspo.audits.audit_tables import band_sentences, tables
from fspo.audits.findings import Audit
from fspo.pages.document import Table
from fspo.text import percent, visible


def render(audit: Audit) -> str:
    """Verdict, tables, recommendation and notes as plain text."""
    parts = [f"{audit.name}: {audit.rows:,} rows", audit.headline]
    parts += [_table(table) for table in tables(audit)]
    band = audit.recommendation
    if band is not None:
        width = "sqrt(L)" if band.exponent == 0.5 else f"L^{band.exponent:g}"
        lines = [
            f"Band for a clip rate of {percent(band.clip_rate)}: mu L - {band.c_low:g} {width} to "
            f"mu L + {band.c_high:g} {width}, mu = {band.mu:.4g}; {percent(band.outside)} of the rows lie outside",
            *(f"  {sentence}" for sentence in band_sentences(audit)),
        ]
        lines += [f"  {name + ':':6}{text}" for name, text in band.snippets.items()]
        parts.append("\n".join(lines))
    if audit.notes:
        parts.append("\n".join(f"- {note}" for note in audit.notes))
    return visible("\n\n".join(parts))


def _table(table: Table) -> str:
    """Numbers are aligned right, the first column and words left; a row of two cells is a name and a remark."""
    rows = [list(map(str, row)) for row in (table.head, *table.rows)]
    full = [row for row in rows if len(row) == len(table.head)]
    widths = [max(len(row[k]) for row in full) for k in range(len(table.head))]
    widths[0] = max(len(row[0]) for row in rows)
    lines = [table.title]
    for row in rows:
        cells = [row[0].ljust(widths[0])]
        aligned = len(row) == len(table.head)
        numbers = len(row) - 1 - table.words if aligned else 0
        cells += [c.rjust(w) if k < numbers else c for k, (c, w) in enumerate(zip(row[1:], widths[1:], strict=False))]
        lines.append("  " + "  ".join(cells).rstrip())
    return "\n".join(lines)
