"""Tables as rows of words, and how they look in a page and in Markdown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fspo.report.text import escape, visible


@dataclass(frozen=True)
class Table:
    """A row of two cells is a name and a remark."""

    title: str
    head: Sequence[str]
    rows: list[list[str]]

    def html(self, level: int = 2) -> str:
        """Its title as a heading, and the table in a card that scrolls where it is wide."""
        head = "".join(f'<th{_side(k)} scope="col">{escape(cell)}</th>' for k, cell in enumerate(self.head))
        rows = []
        for row in self.rows:
            spread = f' colspan="{len(self.head) - 1}"' if len(row) < len(self.head) else ""
            cells = "".join(f'<td class="n"{spread}>{escape(cell)}</td>' for cell in row[1:])
            rows.append(f'<tr><th scope="row">{escape(row[0])}</th>{cells}</tr>')
        body = f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>"
        card = f'<div class="card scroll" tabindex="0" role="region" aria-label="{escape(self.title)}">{body}</div>'
        return f"<h{level}>{escape(self.title)}</h{level}>{card}"

    def markdown(self) -> str:
        """Its title, and a table of Markdown with numbers to the right."""
        rule = ["---"] + ["---:"] * (len(self.head) - 1)
        full = [[*row, *[""] * (len(self.head) - len(row))] for row in self.rows]
        lines = ["| " + " | ".join(_cell(cell) for cell in row) + " |" for row in (self.head, rule, *full)]
        return "\n".join([f"### {_cell(self.title)}", "", *lines])


def _side(place: int) -> str:
    return ' class="n"' if place else ""


def _cell(text: str) -> str:
    return visible(text).replace("\n", " ").replace("|", "\\|")
