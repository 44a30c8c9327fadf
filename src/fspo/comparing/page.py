"""The report of a comparison: one HTML file that opens from disk and asks nothing of any other machine."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fspo.comparing.figures import parts
from fspo.comparing.results import Results
from fspo.comparing.statistics import Row
from fspo.comparing.table import details, overview, said
from fspo.report import images
from fspo.report.document import THEME_BUTTON, document
from fspo.report.page import put
from fspo.report.panels.parts import Plot, grid, section
from fspo.report.tables import Table
from fspo.report.text import escape


def write(rows: Sequence[Row], suite: Any, path: str | Path) -> Path:
    return put(Path(path), render(rows, suite))


def render(rows: Sequence[Row], suite: Any) -> str:
    """The page as text."""
    results = Results(rows, suite)
    words = "".join(f"<p>{escape(line)}</p>" for line in said(results))
    sections = [("overview", "Overview", words + _listed(overview(results)), "")]
    sections += [(part.id, part.title, grid(part.plots), part.lead) for part in parts(results)]
    sections.append(("tables", "Every task", _listed(details(results)), ""))
    links = "".join(f'<a href="#{name}">{escape(title)}</a>' for name, title, _, _ in sections)
    main = "\n".join(section(*each) for each in sections)
    body = f"""<header><div><h1>{escape(suite.title)}</h1>{THEME_BUTTON}</div>
<p class="lead">Methods compared</p></header>
<nav aria-label="Sections">{links}</nav>
<main>
{main}
</main>
<footer>Written by fspo compare from results.parquet.</footer>"""
    return document(f"{suite.title} – fspo compare", body, ["page.js"])


def _listed(tables: Sequence[Table]) -> str:
    return "".join(table.html(3) for table in tables)


def plots(rows: Sequence[Row], suite: Any) -> list[Plot]:
    return [plot for part in parts(Results(rows, suite)) for plot in part.plots]


def write_images(rows: Sequence[Row], suite: Any, *, svg: Path | None = None, png: Path | None = None) -> list[Path]:
    """Every figure as a file of its own, in the folders that are given."""
    drawn, written = plots(rows, suite), []
    for folder, write_files in ((svg, images.write_svg), (png, images.write_png)):
        if folder is not None:
            written += write_files(drawn, folder)
    return written
