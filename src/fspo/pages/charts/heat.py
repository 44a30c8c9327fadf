"""A heat map over steps and bins."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from fspo.pages.charts.axes import span
from fspo.pages.charts.frame import LETTER, WIDTH, Frame, n
from fspo.text import escape, percent


@dataclass(frozen=True)
class HeatCell:
    """The value of a span of steps and a row, and the text of its tooltip."""

    column: int
    row: int
    value: float
    note: str


def heat(
    title: str,
    description: str,
    spans: Sequence[tuple[float, float]],
    names: Sequence[str],
    cells: Sequence[HeatCell],
    y_label: str,
    value_label: str,
) -> Markup:
    """A cell for each span of steps and each row, shaded from light (0) to full (the largest value).

    A frame marks the last span; the page's slider moves it.
    """
    most = max((c.value for c in cells), default=0.0)
    most = span([most], True, 1.0)[1] if most > 0 else 0.01
    shades = 5
    first, last = spans[0][0] - 0.5, spans[-1][1] + 0.5
    frame = Frame(
        title,
        description,
        (first, last),
        (0, len(names)),
        "step",
        y_label,
        y_names=names,
        legend=[(value_label, '<rect class="cell" width="14" height="10" fill-opacity="0.6"/>')],
    )
    # The scale of shades, to the right of the label.
    end = percent(most, 0 if most >= 0.05 else 1)
    x = WIDTH - 12 - 24 * shades - LETTER * len(end) - 6
    frame.margin.append(f'<text x="{n(x - 5)}" y="13" text-anchor="end">0</text>')
    frame.margin += [
        f'<rect class="cell" x="{n(x + 24 * k)}" y="3" width="24" height="12" '
        f'fill-opacity="{_shade((k + 0.5) / shades)}"/>'
        for k in range(shades)
    ]
    frame.margin.append(f'<text x="{n(x + 24 * shades + 5)}" y="13">{end}</text>')
    for c in cells:
        low, high = spans[c.column]
        x0, x1 = frame.px(max(first, low - 0.5)), frame.px(high + 0.5)
        y0, y1 = frame.py(c.row + 1), frame.py(c.row)
        frame.parts.append(
            f'<rect class="cell" x="{n(x0)}" y="{n(y0 + 0.5)}" width="{n(x1 - x0 + 0.15)}" height="{n(y1 - y0 - 1)}" '
            f'fill-opacity="{_shade(c.value / most)}"><title>{escape(c.note)}</title></rect>'
        )
    x0 = frame.px(spans[-1][0] - 0.5)
    frame.parts.append(
        f'<rect class="marker" x="{n(x0)}" y="{n(frame.top)}" width="{n(frame.px(last) - x0)}" '
        f'height="{n(frame.bottom - frame.top)}"/>'
    )
    return frame.svg()


def _shade(share: float) -> str:
    return f"{0.06 + 0.94 * max(0.0, min(1.0, share)):.2f}"
