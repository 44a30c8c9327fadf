"""Pieces of the page: a plot in its figure, or a sentence in its place."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fspo.report.load import Run
from fspo.report.text import escape, slug

COLOURS = 10


@dataclass(frozen=True)
class Plot:
    """A figure; with `slider`, a second chart shows one span of steps of the first."""

    title: str
    svg: str
    caption: str = ""
    second: Plot | None = None
    slider: dict[str, Any] | None = None

    def html(self) -> str:
        note = f"<figcaption>{escape(self.caption)}</figcaption>" if self.caption else ""
        head = f"<h3>{escape(self.title)}</h3>"
        if self.second is None or self.slider is None:
            return f"<figure>{head}{self.svg}{note}</figure>"
        name = slug(self.title)
        last = len(self.slider["spans"]) - 1
        return (
            f'<figure class="wide" data-slider="{name}">{head}<div class="pair"><div>{self.svg}</div>'
            f"<div>{self.second.svg}</div></div>"
            f'<p class="control"><label for="{name}-at" hidden>Steps</label>'
            f'<input type="range" id="{name}-at" min="0" max="{last}" value="{last}" hidden>'
            f"<output>{escape(self.slider['texts'][-1])}</output></p>{note}"
            f'<script type="application/json">{embedded(self.slider)}</script></figure>'
        )


@dataclass(frozen=True)
class Missing:
    """What a panel lacks."""

    title: str
    why: str

    def html(self) -> str:
        return f'<div class="card"><h3>{escape(self.title)}</h3><p class="none">{escape(self.why)}</p></div>'


Panel = Plot | Missing


def grid(panels: Sequence[Panel], small: bool = False) -> str:
    return f'<div class="grid{" small" if small else ""}">{"".join(p.html() for p in panels)}</div>'


def section(name: str, title: str, body: str, lead: str = "") -> str:
    """A part of a page under its heading."""
    head = f'<h2 id="{name}-h">{escape(title)}</h2>' + (f'<p class="lead">{escape(lead)}</p>' if lead else "")
    return f'<section id="{name}" aria-labelledby="{name}-h">{head}{body}</section>'


def embedded(value: Any) -> str:
    """JSON that cannot end the element it stands in."""
    return json.dumps(value, separators=(",", ":")).replace("<", "\\u003c").replace(">", "\\u003e")


def of_run(title: str, run: Run, runs: Sequence[Run]) -> str:
    """The title of a plot that each run has for itself."""
    return title if len(runs) == 1 else f"{title} – {run.name}"


def colour_of(k: int) -> int:
    """The colour of the k-th run."""
    return 1 + k % COLOURS
