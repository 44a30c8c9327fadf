"""The panels of a page: a plot in its figure, or a sentence in its place."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from fspo.pages.document import render

__all__ = ["COLOURS", "LAW_COLOURS", "Missing", "Panel", "Plot", "Slider", "colour_of", "grid"]

COLOURS = 10
LAW_COLOURS = (3, 4, 5)  # of the bands of objectives.LENGTH_LAWS


@dataclass(frozen=True)
class Slider:
    """A second chart, of bars, beside a heat map: it shows the span of steps that a slider chooses."""

    chart: Markup  # of the last span
    spans: list[tuple[float, float]]  # first and last step
    names: list[str]  # of the bars
    texts: list[str]  # what is said of each span
    cells: list[list[tuple[int, float, float, float] | None]]  # of each span and bar: count, rate and its interval

    @property
    def data(self) -> dict[str, Any]:
        """What the script needs."""
        return {"spans": self.spans, "names": self.names, "texts": self.texts, "cells": self.cells}


@dataclass(frozen=True)
class Plot:
    """A chart with its title and caption."""

    title: str
    svg: Markup
    caption: str = ""
    slider: Slider | None = None

    def html(self) -> Markup:
        return render("figure.html", plot=self)


@dataclass(frozen=True)
class Missing:
    """A sentence in the place of a plot that has no data."""

    title: str
    why: str

    def html(self) -> Markup:
        return render("missing.html", panel=self)


Panel = Plot | Missing


def grid(panels: Sequence[Panel], *, small: bool = False) -> Markup:
    """Panels side by side, as many as fit."""
    return render("grid.html", panels=panels, small=small)


def colour_of(k: int) -> int:
    """The colour of the k-th run or method."""
    return 1 + k % COLOURS
