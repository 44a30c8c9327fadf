"""The report of a comparison: one HTML file that opens from disk and requests nothing from any other machine."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fspo.comparisons.plan import Row
from fspo.comparisons.suite import Suite
from fspo.comparisons.suite_results import SuiteResults
from fspo.comparisons.views.comparison_tables import details, notes, overview
from fspo.comparisons.views.figures import FigureSection, figure_sections
from fspo.comparisons.views.gain_views import gain_sections
from fspo.files import replace_file
from fspo.pages import document, images
from fspo.pages.document import Plot, Section, Table, grid

__all__ = ["plots", "render", "write", "write_images"]


def write(rows: Sequence[Row], suite: Suite, path: str | Path) -> Path:
    """Write the page."""
    return replace_file(path, render(rows, suite))


def render(rows: Sequence[Row], suite: Suite) -> str:
    """The page as text."""
    results = SuiteResults(rows, suite)
    sections = [_tables("overview", "Overview", overview(results), notes(results))]
    sections += [Section(f.id, f.title, grid(f.plots), f.lead) for f in _figures(results)]
    sections.append(_tables("tables", "Every task", details(results)))
    return document.document(
        title=f"{suite.title} – fspo compare",
        heading=suite.title,
        lead="Methods compared",
        main=document.sections(sections),
        footer="Written by fspo compare from results.parquet.",
        links=sections,
    )


def _tables(name: str, title: str, tables: Sequence[Table], sentences: Sequence[str] = ()) -> Section:
    return Section(name, title, document.render("tables.html", sentences=sentences, tables=tables))


def _figures(results: SuiteResults) -> list[FigureSection]:
    return figure_sections(results) + gain_sections(results)


def plots(rows: Sequence[Row], suite: Suite) -> list[Plot]:
    """Every figure of the page."""
    return [plot for section in _figures(SuiteResults(rows, suite)) for plot in section.plots]


def write_images(rows: Sequence[Row], suite: Suite, *, svg: Path | None = None, png: Path | None = None) -> list[Path]:
    """Every figure as a file of its own, in the folders that are given."""
    drawn, written = plots(rows, suite), []
    for folder, write_files in ((svg, images.write_svg), (png, images.write_png)):
        if folder is not None:
            written += write_files(drawn, folder)
    return written
