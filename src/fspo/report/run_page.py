"""The report of one run or of several: one HTML file that opens from disk and requests nothing from any other machine.

The charts are drawn here, as SVG. The script searches the answers and sets the theme; without it the page can still be
read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from markupsafe import Markup

from fspo.files import replace_file
from fspo.pages import document
from fspo.pages.document import Panel, Plot, Section, grid
from fspo.report.clipping import clip_rates, direction, log_ratios, same_answers
from fspo.report.learning import health, learning, lengths
from fspo.report.overview import configuration, overview, samples, warnings
from fspo.report.report_run import ReportRun, load_all

__all__ = ["SECTIONS", "content", "frame", "plots", "save", "write"]

Runs = Sequence[ReportRun]


@dataclass(frozen=True)
class Part:
    """A section of the page: panels side by side, or a body of its own, which may show its panels too."""

    id: str
    title: str
    panels: Callable[[Runs], list[Panel]] = lambda runs: []
    lead: str = ""
    body: Callable[[Runs], Markup] | None = None

    def section(self, runs: Runs) -> Section:
        body = grid(self.panels(runs)) if self.body is None else self.body(runs)
        return Section(self.id, self.title, body, self.lead)


SECTIONS = (
    Part("overview", "Overview", same_answers, body=overview),
    Part("learning", "Learning", learning),
    Part(
        "fairness", "Fairness over length", clip_rates, "Does clipping remove answers of every length at the same rate?"
    ),
    Part(
        "direction",
        "LRE and direction",
        direction,
        "The Length Reweighting Error (LRE) is how far the acceptance of the worst bin lies from the average, as a "
        "share of it: 0 is fair. A small LRE bounds how far clipping can turn the update, if clipping is even inside "
        "a bin.",
    ),
    Part(
        "ratios",
        "Importance ratios",
        log_ratios,
        "S is the sum of an answer's token log-ratios. For L tokens its mean is near μL and its standard deviation "
        "near σ√L: a band of that shape treats all lengths alike.",
    ),
    Part("lengths", "Lengths", lengths),
    Part("health", "Health of the updates", health),
    Part("warnings", "Warnings", body=warnings),
    Part("samples", "Sampled answers", lead="As the model wrote them, from steps spread over the run.", body=samples),
    Part("configuration", "Configuration", body=configuration),
)


def write(run_folders: str | Path | Sequence[str | Path], path: str | Path | None = None) -> Path:
    """Write the report of a run, by default to `report.html` in its folder, or of several to `compare.html`."""
    folders = [run_folders] if isinstance(run_folders, str | Path) else list(run_folders)
    return save(load_all(folders), path)


def save(runs: Runs, path: str | Path | None = None) -> Path:
    """Write the report of runs that are loaded."""
    default = runs[0].folder / "report.html" if len(runs) == 1 else Path("compare.html")
    return replace_file(path or default, frame([run.name for run in runs], content(runs)))


def frame(names: Sequence[str], main: Markup, version: str | None = None) -> str:
    """The page around its content; with a version, a live page that asks its own server for newer content."""
    name = " and ".join(names) if len(names) < 3 else f"{len(names)} runs"
    return document.document(
        title=f"{name} – fspo report",
        heading=name,
        lead="Run report" if len(names) == 1 else "Runs compared",
        main=main,
        footer=f"Written by fspo from the files in the run folder{'s' * (len(names) > 1)}.",
        links=[Section(part.id, part.title, Markup(), link=part.id.capitalize()) for part in SECTIONS],
        version=version,
    )


def content(runs: Runs) -> Markup:
    """All sections."""
    return document.sections([part.section(runs) for part in SECTIONS])


def plots(runs: Runs) -> Iterator[Plot]:
    """Every plot of the page."""
    for part in SECTIONS:
        yield from (panel for panel in part.panels(runs) if isinstance(panel, Plot))
