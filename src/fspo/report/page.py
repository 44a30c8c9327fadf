"""The report of one run or of several: one HTML file that opens from disk and asks nothing of any other machine.

The charts are drawn here, as SVG; the script only moves the slider, searches the answers and sets the theme, and
without it everything can still be read.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from fspo.report.document import THEME_BUTTON, document
from fspo.report.load import Run, load_all
from fspo.report.panels.fairness import fairness
from fspo.report.panels.guarantee import guarantee
from fspo.report.panels.health import health, lengths
from fspo.report.panels.learning import learning
from fspo.report.panels.overview import overview
from fspo.report.panels.parts import Panel, Plot, grid, section
from fspo.report.panels.ratios import ratios
from fspo.report.panels.words import configuration, samples, warnings
from fspo.report.text import escape


@dataclass(frozen=True)
class Section:
    """A part of the page: plots, or words."""

    id: str
    title: str
    lead: str = ""
    plots: Callable[[Sequence[Run]], list[Panel]] | None = None
    words: Callable[[Sequence[Run]], str] | None = None
    small: bool = False

    def html(self, runs: Sequence[Run]) -> str:
        body = grid(self.plots(runs), self.small) if self.plots else self.words(runs) if self.words else ""
        return section(self.id, self.title, body, self.lead)


SECTIONS = (
    Section("overview", "Overview", words=overview),
    Section("learning", "Learning", plots=learning),
    Section(
        "fairness",
        "Fairness over length",
        "Does clipping remove answers of every length at the same rate?",
        fairness,
    ),
    Section(
        "direction",
        "LRE and direction",
        "The Length Reweighting Error (LRE) is how far the worst bin's acceptance lies from the average, as a share of "
        "it: 0 is fair. A small LRE bounds how far clipping can turn the update, if clipping is even inside a bin.",
        guarantee,
    ),
    Section(
        "ratios",
        "Importance ratios",
        "S is the sum of an answer's token log-ratios. For L tokens its mean is near μL and its standard deviation "
        "near σ√L: a band of that shape treats all lengths alike.",
        ratios,
    ),
    Section("lengths", "Lengths", plots=lengths),
    Section("health", "Health of the updates", plots=health, small=True),
    Section("warnings", "Warnings", words=warnings),
    Section("samples", "Sampled answers", "As the model wrote them, from steps spread over the run.", words=samples),
    Section("configuration", "Configuration", words=configuration),
)


def write(run_folders: str | Path | Sequence[str | Path], path: str | Path | None = None) -> Path:
    """Write the report of a run, by default to `report.html` in its folder, or of several to `compare.html`."""
    folders = [run_folders] if isinstance(run_folders, str | Path) else list(run_folders)
    return save(load_all(folders), path)


def save(runs: Sequence[Run], path: str | Path | None = None) -> Path:
    default = runs[0].folder / "report.html" if len(runs) == 1 else Path("compare.html")
    return put(Path(path or default), render(runs))


def put(target: Path, text: str) -> Path:
    """Written aside and renamed, so that a reader never sees half a page."""
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(target.name + ".part")
    part.write_text(text, encoding="utf-8")
    os.replace(part, target)
    return target


def render(runs: Sequence[Run]) -> str:
    """The page as text."""
    return frame([run.name for run in runs], content(runs))


def frame(names: Sequence[str], main: str, version: str | None = None) -> str:
    """The page around its content; with a version, one that asks its own server for newer content."""
    links = "".join(f'<a href="#{s.id}">{s.id.capitalize()}</a>' for s in SECTIONS)
    name = " and ".join(names) if len(names) < 3 else f"{len(names)} runs"
    lead = "Run report" if len(names) == 1 else "Runs compared"
    status = "" if version is None else ': <span id="status" role="status">live</span>'
    body = f"""<header><div><h1>{escape(name)}</h1>{THEME_BUTTON}</div><p class="lead">{lead}{status}</p></header>
<nav aria-label="Sections">{links}</nav>
<main>
{main}
</main>
<footer>Written by fspo from the files in the folder of the run{"s" * (len(names) > 1)}.</footer>"""
    return document(f"{name} – fspo report", body, ["page.js"], version)


def content(runs: Sequence[Run]) -> str:
    """All sections."""
    return "\n".join(part.html(runs) for part in SECTIONS)


def plots(runs: Sequence[Run]) -> Iterator[Plot]:
    """Every plot of the page, without those that a slider moves."""
    for part in SECTIONS:
        yield from (panel for panel in (part.plots(runs) if part.plots else ()) if isinstance(panel, Plot))
