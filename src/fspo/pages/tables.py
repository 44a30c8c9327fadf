"""The one kind of table: cells of text, as HTML and as Markdown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from fspo.pages.document import render
from fspo.text import visible

__all__ = ["Table", "TableCell"]

MANY = 8  # columns; a table with more is set in smaller type


@dataclass(frozen=True)
class TableCell:
    """A text with small print under it, such as an interval."""

    text: str
    small: str = ""

    def __str__(self) -> str:
        return f"{self.text} ({self.small})" if self.small else self.text


@dataclass(frozen=True)
class Table:
    """Each row is a name followed by numbers, aligned right, and last by `words` columns of text.

    A row of two cells is a name and a remark across all columns.
    """

    title: str
    head: Sequence[str]
    rows: Sequence[Sequence[str | TableCell]]
    words: int = 0  # columns of text at the end
    wrap: bool = False  # whether those texts are broken into lines
    colours: Sequence[int] = ()  # of the line in the charts that each row stands for

    def html(self, level: int | None = 2) -> Markup:
        """The table in a card that scrolls where it is too wide, under its title as a heading of this level, if any."""
        rows = [[cell if isinstance(cell, TableCell) else TableCell(cell) for cell in row] for row in self.rows]
        words = "text" if self.wrap else "words"
        kinds = ["", *["n"] * (len(self.head) - 1 - self.words), *[words] * self.words]
        return render("table.html", table=self, rows=rows, kinds=kinds, level=level, many=len(self.head) > MANY)

    def markdown(self) -> str:
        """Its title, and the table in Markdown."""
        rule = ["---", *["---:"] * (len(self.head) - 1 - self.words), *["---"] * self.words]
        full = [[*row, *[""] * (len(self.head) - len(row))] for row in self.rows]
        lines = ["| " + " | ".join(_in_markdown(cell) for cell in row) + " |" for row in (self.head, rule, *full)]
        return "\n".join([f"### {_in_markdown(self.title)}", "", *lines])


def _in_markdown(cell: str | TableCell) -> str:
    return visible(cell).replace("\n", " ").replace("|", "\\|")
