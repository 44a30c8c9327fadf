"""Plots as files of their own, for papers: explicit colours, on white."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from fspo.files import replace_file
from fspo.pages.document import Plot, asset
from fspo.text import slug

__all__ = ["write_png", "write_svg"]

FONTS = "DejaVu Sans, Liberation Sans, Noto Sans, Arial, Helvetica, sans-serif"
"""The first of these that the system has draws the letters: the same fonts give the same PNG on every machine."""

SCALE = 2  # pixels of the PNG for each unit of the SVG


def write_svg(plots: Iterable[Plot], folder: str | Path) -> list[Path]:
    """One SVG file per plot."""
    return [replace_file(Path(folder) / f"{name}.svg", text) for name, text in _images(plots)]


def write_png(plots: Iterable[Plot], folder: str | Path) -> list[Path]:
    """One PNG file per plot, at twice the size."""
    if not _draws_letters():
        raise ValueError("--png needs a font: install one, such as DejaVu Sans (Debian: apt install fonts-dejavu-core)")
    return [replace_file(Path(folder) / f"{name}.png", _png(text, zoom=SCALE)) for name, text in _images(plots)]


def _png(svg: str, **options: Any) -> bytes:
    try:
        import resvg_py
    except ImportError:
        raise ValueError("--png needs the package resvg-py: pip install resvg-py") from None
    return bytes(resvg_py.svg_to_bytes(svg_string=svg, **options))


def _draws_letters(**options: Any) -> bool:
    """Whether there is any font: without one, texts would be left out without an error."""
    frame = '<svg xmlns="http://www.w3.org/2000/svg" width="20" height="20">{}</svg>'
    letter = f'<text x="2" y="16" font-family="{FONTS}">x</text>'
    return _png(frame.format(letter), **options) != _png(frame.format(""), **options)


def _images(plots: Iterable[Plot]) -> Iterator[tuple[str, str]]:
    """Name and SVG document of every plot."""
    style = _stylesheet()
    for plot in plots:
        svg = str(plot.svg)
        width, height = re.search(r'viewBox="0 0 (\d+) (\d+)"', svg).groups()  # type: ignore[union-attr]
        head = f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        ground = f'<style>{style}</style><rect width="{width}" height="{height}" fill="#ffffff"/>'
        text = svg.replace("<svg ", head, 1).replace("</desc>", f"</desc>{ground}", 1)
        # The frame around the steps that a slider chooses has no meaning on paper.
        yield slug(plot.title), re.sub(r'<rect class="marker"[^>]*/>', "", text)


def _stylesheet() -> str:
    """The page's rules for charts with the light theme's colours written out, one rule per colour of a series."""
    light = dict(re.findall(r"(--\w+): light-dark\((#\w+),", asset("style.css")))
    series = [name for name in light if re.fullmatch(r"--c\d+", name)]
    rules = []
    for selector, body in re.findall(r"([^{}]+)\{([^{}]*)\}", asset("chart.css")):
        selector = selector.strip()
        if selector.startswith("svg") and "text" not in selector and ".label" not in selector:
            continue  # the place of a chart in the page
        if "--c:" in body:
            continue
        if "var(--c)" in body:
            rules += [f"{selector}.{name[2:]}{{{body.replace('var(--c)', light[name])}}}" for name in series]
        else:
            rules.append(f"{selector}{{{body}}}")
    text = re.sub(r"var\((--\w+)\)", lambda match: light[match[1]], "\n".join(rules))
    return re.sub(r"font-family: [^;]*; font-size: [^;]*;", f"font-family: {FONTS}; font-size: 11px;", text)
