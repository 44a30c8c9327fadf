"""What every page is made of: the shell, its sections, figures and tables; and figures as SVG files of their own.

A page requests nothing from other machines. HTML is put together by the templates beside this module. Whatever a
template prints is made visible (control characters become codes) and escaped, unless it is `Markup`, which only
templates and `fspo.pages.charts` produce.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from fspo.files import replace_file
from fspo.text import slug, visible

__all__ = [
    "COLOURS", "Plot", "Section", "Table", "TableCell", "asset", "colour_of", "document", "embedded", "grid",
    "render", "write_svg",
]  # fmt: skip

COLOURS = 10  # of runs and methods in a chart, see assets/style.css


@dataclass(frozen=True)
class Section:
    """A part of a page under its heading."""

    id: str
    title: str
    body: Markup | None = None
    lead: str = ""
    plots: Sequence[Plot | None] | None = None  # after the body


def document(
    *,
    title: str,
    heading: str,
    lead: str,
    main: Markup,
    footer: str,
    links: Sequence[str] = (),
    scripts: Sequence[str] = ("page.js",),
    version: str | None = None,
) -> str:
    """A whole page; `links` are the sections in its navigation.

    A page with a version is live: it asks its own server for newer content.
    The scripts are in the head, so that the theme is set before anything is drawn.
    """
    style = "\n" + asset("style.css") + asset("chart.css")
    code = "\n" + "".join(asset(name) for name in ("theme.js", *scripts))
    return render(
        "shell.html", title=title, heading=heading, lead=lead, main=main, footer=footer, links=links,
        style=Markup(style), script=Markup(code), policy=_policy(style, code, live=version is not None),
        version=version,
    )  # fmt: skip


def render(template: str, **values: Any) -> Markup:
    """A template filled in."""
    return Markup(_environment.get_template(template).render(values))


def asset(name: str) -> str:
    """The text of a style sheet or a script."""
    return files("fspo.pages").joinpath("assets", name).read_text(encoding="utf-8")


def embedded(value: Any) -> Markup:
    """JSON for a script element, which it cannot end."""
    return Markup(json.dumps(value, separators=(",", ":")).replace("<", "\\u003c").replace(">", "\\u003e"))


def coordinate(value: float) -> str:
    """A number in an SVG."""
    return f"{value:.1f}".removesuffix(".0")


@dataclass(frozen=True)
class Plot:
    """A chart with its title and caption; without a chart, the caption says why there is none."""

    title: str
    svg: Markup
    caption: str = ""


def grid(plots: Iterable[Plot | None]) -> Markup:
    """Plots side by side, as many as fit."""
    return render("grid.html", plots=[plot for plot in plots if plot is not None])


def colour_of(k: int) -> int:
    """The colour of the k-th run or method."""
    return 1 + k % COLOURS


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
    colours: Sequence[int] = ()  # of the line in the charts that each row stands for

    def html(self, level: int | None = 2) -> Markup:
        """The table in a card that scrolls where it is too wide, under its title as a heading of this level, if any."""
        rows = [[cell if isinstance(cell, TableCell) else TableCell(cell) for cell in row] for row in self.rows]
        kinds = ["", *["n"] * (len(self.head) - 1 - self.words), *["text"] * self.words]
        return render("table.html", table=self, rows=rows, kinds=kinds, level=level)

    def markdown(self) -> str:
        """Its title, and the table in Markdown."""
        rule = ["---", *["---:"] * (len(self.head) - 1 - self.words), *["---"] * self.words]
        full = [[*row, *[""] * (len(self.head) - len(row))] for row in self.rows]
        lines = ["| " + " | ".join(_in_markdown(cell) for cell in row) + " |" for row in (self.head, rule, *full)]
        return "\n".join([f"### {_in_markdown(self.title)}", "", *lines])


def _in_markdown(cell: str | TableCell) -> str:
    return visible(cell).replace("\n", " ").replace("|", "\\|")


def _policy(style: str, script: str, *, live: bool) -> Markup:
    """The content security policy: exactly this style and this script, and nothing from anywhere."""
    own = [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in (style, script)]
    rules = f"default-src 'none'; style-src 'sha256-{own[0]}'; script-src 'sha256-{own[1]}'; base-uri 'none'"
    return Markup(rules + ("; connect-src 'self'" if live else ""))


def _printed(value: Any) -> Any:
    """Applied to every value that a template prints, before it is escaped."""
    return value if isinstance(value, Markup) else visible(value)


_environment = Environment(
    loader=PackageLoader("fspo.pages"),
    autoescape=True,
    finalize=_printed,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
_environment.globals["grid"] = grid
_environment.filters |= {"embedded": embedded, "n": coordinate, "slug": slug}


# --- plots as files of their own, for papers: explicit colours, on white ---

FONTS = "DejaVu Sans, Liberation Sans, Noto Sans, Arial, Helvetica, sans-serif"


def write_svg(plots: Iterable[Plot], folder: str | Path) -> list[Path]:
    """One SVG file per plot."""
    style = _stylesheet()
    paths = []
    for plot in plots:
        svg = str(plot.svg)
        width, height = re.search(r'viewBox="0 0 (\d+) (\d+)"', svg).groups()  # type: ignore[union-attr]
        head = f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        ground = f'<style>{style}</style><rect width="{width}" height="{height}" fill="#ffffff"/>'
        text = svg.replace("<svg ", head, 1).replace("</desc>", f"</desc>{ground}", 1)
        paths.append(replace_file(Path(folder) / f"{slug(plot.title)}.svg", text))
    return paths


def _stylesheet() -> str:
    """The page's rules for charts with the light theme's colours written out."""
    light = dict(re.findall(r"(--\w+): light-dark\((#\w+),", asset("style.css")))
    rules = re.sub(
        r"^svg(?:\.key)? \{.*\n", "", asset("chart.css"), flags=re.MULTILINE
    )  # the position of a chart in the page
    text = re.sub(r"var\((--\w+)\)", lambda match: light[match[1]], rules)
    return re.sub(r"font-family: [^;]*; font-size: [^;]*;", f"font-family: {FONTS}; font-size: 11px;", text)
