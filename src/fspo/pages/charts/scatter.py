"""Points with curves over them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from fspo.pages.charts.axes import finite, span
from fspo.pages.charts.frame import Frame, dot_key, line_key, n, path
from fspo.pages.charts.lines import Series


@dataclass(frozen=True)
class Points:
    """Points of one colour."""

    label: str
    x: Sequence[float]
    y: Sequence[float]
    colour: int = 1


def scatter(
    title: str,
    description: str,
    groups: Sequence[Points],
    curves: Sequence[Series],
    others: Sequence[Series],
    x_label: str,
    y_label: str,
) -> Markup:
    """Points, with curves (a band) over them. The axis need not include all of `others`, which are for comparison."""
    xs = [v for g in groups for v in g.x]
    ys = [v for g in groups for v in g.y] + [float(v) for c in curves for v in c.y if finite(v)]  # type: ignore[arg-type]
    low, high = span(xs, True, whole=True)
    frame = Frame(
        title,
        description,
        (low, high),
        span(ys, True),
        x_label,
        y_label,
        legend=[(g.label, dot_key(g.colour)) for g in groups]
        + [(c.label, line_key(c.colour, c.dashed)) for c in (*curves, *others) if c.label],
    )
    for g in groups:
        d = "".join(f"M{n(frame.px(x))} {n(frame.py(y))}h0" for x, y in zip(g.x, g.y, strict=True))
        if d:
            frame.parts.append(f'<path class="dots c{g.colour}" d="{d}"/>')
    for c in others:
        frame.parts.append(path(frame, c.x, c.y, f"line c{c.colour}{' dashed' if c.dashed else ''}"))
    for c in curves:
        frame.parts.append(path(frame, c.x, c.y, f"line strong c{c.colour}{' dashed' if c.dashed else ''}"))
    return frame.svg()
