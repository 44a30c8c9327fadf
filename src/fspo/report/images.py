"""Plots as files of their own, for papers: explicit colours, on white."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from fspo.report.document import resource
from fspo.report.panels.parts import Plot
from fspo.report.text import slug

FONT = "DejaVu Sans"
SCALE = 2  # pixels of the PNG for each unit of the SVG


def write_svg(plots: Iterable[Plot], folder: str | Path) -> list[Path]:
    """One SVG file a plot."""
    return [_put(Path(folder) / f"{name}.svg", text.encode()) for name, text in images(plots)]


def write_png(plots: Iterable[Plot], folder: str | Path) -> list[Path]:
    """One PNG file a plot, at twice the size."""
    try:
        import resvg_py
    except ImportError:
        raise ValueError("--png needs the package resvg-py: pip install resvg-py") from None
    font = _font()
    options: dict[str, Any] = {"font_files": [font], "skip_system_fonts": True, "font_family": FONT} if font else {}
    return [
        _put(Path(folder) / f"{name}.png", bytes(resvg_py.svg_to_bytes(svg_string=text, zoom=SCALE, **options)))
        for name, text in images(plots)
    ]


def _font() -> str | None:
    """The file that comes with matplotlib, so that every machine draws the same letters."""
    spec = find_spec("matplotlib")
    folders = (spec.submodule_search_locations if spec else None) or []
    paths = [Path(folder) / "mpl-data/fonts/ttf/DejaVuSans.ttf" for folder in folders]
    return next((str(path) for path in paths if path.is_file()), None)


def _put(path: Path, content: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def images(plots: Iterable[Plot]) -> Iterator[tuple[str, str]]:
    """Name and SVG document of every plot."""
    style = stylesheet()
    for plot in plots:
        width, height = re.search(r'viewBox="0 0 (\d+) (\d+)"', plot.svg).groups()  # type: ignore[union-attr]
        head = f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        ground = f'<style>{style}</style><rect width="{width}" height="{height}" fill="#ffffff"/>'
        text = plot.svg.replace("<svg ", head, 1).replace("</desc>", f"</desc>{ground}", 1)
        # The frame that the slider moves means nothing on paper.
        yield slug(plot.title), re.sub(r'<rect class="marker"[^>]*/>', "", text)


def stylesheet() -> str:
    """The page's rules for charts with the light theme's colours written out, a rule for each colour of a series."""
    light = dict(re.findall(r"(--\w+): light-dark\((#\w+),", resource("style.css")))
    series = [name for name in light if re.fullmatch(r"--c\d+", name)]
    rules = []
    for selector, body in re.findall(r"([^{}]+)\{([^{}]*)\}", resource("chart.css")):
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
    return re.sub(r"font-family: [^;]*; font-size: [^;]*;", f"font-family: {FONT}, sans-serif; font-size: 11px;", text)
