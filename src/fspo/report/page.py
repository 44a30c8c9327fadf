"""The report of a run: one HTML file that opens from disk, with no script and no request to anywhere."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from fspo.report import panels
from fspo.report.load import Run, load
from fspo.report.text import escape


@dataclass(frozen=True)
class Section:
    id: str
    title: str
    lead: str
    body: Callable[[Run], str]


SECTIONS = (
    Section("overview", "Overview", "", panels.overview),
    Section("learning", "Learning", "", panels.learning),
    Section(
        "fairness",
        "Fairness over length",
        "Does clipping remove answers of every length at the same rate? The Length Reweighting Error (LRE) is how far "
        "the worst bin's acceptance lies from the average, as a share of it: 0 is fair.",
        panels.fairness,
    ),
    Section(
        "ratios",
        "Importance ratios",
        "S is the sum of an answer's token log-ratios. For L tokens its mean is near μL and its standard deviation "
        "near σ√L: a band of that shape treats all lengths alike.",
        panels.ratios,
    ),
    Section("lengths", "Lengths", "", panels.lengths),
    Section("health", "Health of the updates", "", panels.health),
    Section("warnings", "Warnings", "", panels.warnings),
    Section("samples", "Sample answers", "As the model wrote them, from the first and last steps.", panels.samples),
    Section("configuration", "Configuration", "", panels.configuration),
)


def write(run_folder: str | Path, path: str | Path | None = None) -> Path:
    """Write the report of a run, by default to `report.html` in its folder, and return where it is."""
    run = load(run_folder)
    target = Path(path) if path is not None else run.folder / "report.html"
    part = target.with_name(target.name + ".part")
    part.write_text(render(run), encoding="utf-8")
    os.replace(part, target)
    return target


def render(run: Run) -> str:
    """The page as text."""
    style = files("fspo.report").joinpath("style.css").read_text(encoding="utf-8")
    links = "".join(f'<a href="#{s.id}">{escape(s.title)}</a>' for s in SECTIONS)
    body = "\n".join(
        f'<section id="{s.id}" aria-labelledby="{s.id}-h"><h2 id="{s.id}-h">{escape(s.title)}</h2>'
        + (f'<p class="lead">{escape(s.lead)}</p>' if s.lead else "")
        + s.body(run)
        + "</section>"
        for s in SECTIONS
    )
    name = escape(run.name)
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>{name} – fspo run report</title>
<style>
{style}</style>
</head>
<body>
<header><h1>{name}</h1><p class="lead">Run report</p></header>
<nav aria-label="Sections">{links}</nav>
<main>
{body}
</main>
<footer>Written by fspo from the files in the run's folder.</footer>
</body>
</html>
"""
