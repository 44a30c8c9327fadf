"""Tables as rows of words, and how they look in a page and in Markdown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fspo.report.text import escape, visible

MANY = 7  # columns; a table of more is set smaller


@dataclass(frozen=True)
class Table:
    """Numbers to the right, but for the name in front and the last columns if they hold words. A row of two cells is a
    name and a remark."""

    title: str
    head: Sequence[str]
    rows: list[list[str]]
    words: int = 0  # how many of the last columns hold words

    def html(self, level: int = 2) -> str:
        """Its title as a heading, and the table in a card that scrolls where it is wide."""
        sides = ["", *[' class="n"'] * (len(self.head) - 1 - self.words), *[' class="words"'] * self.words]
        across = f' class="none" colspan="{len(self.head) - 1}"'
        head = "".join(
            f'<th{side} scope="col">{escape(cell)}</th>' for side, cell in zip(sides, self.head, strict=True)
        )
        rows = []
        for row in self.rows:
            kinds = sides[1:] if len(row) == len(self.head) else [across]
            cells = "".join(f"<td{kind}>{escape(cell)}</td>" for kind, cell in zip(kinds, row[1:], strict=True))
            rows.append(f'<tr><th scope="row">{escape(row[0])}</th>{cells}</tr>')
        kind = ' class="many"' if len(self.head) > MANY else ""
        body = f"<table{kind}><thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>"
        card = f'<div class="card scroll" tabindex="0" role="region" aria-label="{escape(self.title)}">{body}</div>'
        return f"<h{level}>{escape(self.title)}</h{level}>{card}"

    def markdown(self) -> str:
        """Its title, and a table of Markdown with numbers to the right."""
        rule = ["---", *["---:"] * (len(self.head) - 1 - self.words), *["---"] * self.words]
        full = [[*row, *[""] * (len(self.head) - len(row))] for row in self.rows]
        lines = ["| " + " | ".join(_cell(cell) for cell in row) + " |" for row in (self.head, rule, *full)]
        return "\n".join([f"### {_cell(self.title)}", "", *lines])


def _cell(text: str) -> str:
    return visible(text).replace("\n", " ").replace("|", "\\|")
